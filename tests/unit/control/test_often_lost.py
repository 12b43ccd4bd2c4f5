"""Where machines vanish often, chunks are cut so that most of them end before their machine does."""

from __future__ import annotations

from airflow_provider_spotbatch.control.decide import CHUNKS_PER_LOSS, decide
from airflow_provider_spotbatch.control.plan import CloseChunk, Send
from airflow_provider_spotbatch.control.sizing import CHUNK_SECONDS
from airflow_provider_spotbatch.control.snapshot import Counts, Pace, Snapshot
from tests.unit.control.test_decide import answered, machine, of, open_chunk, seen

MANY = Counts(total=100_000, waiting=100_000, sent=0, retrying=0, ok=0, failed=0)


def losing(machines: int, busy_seconds: float, **changes: object) -> Snapshot:
    """Items of 0.1 s each; so many machines were lost in so many seconds of work."""
    lost = tuple(
        machine(f"lost{number}", state="terminated", loss_recorded=True) for number in range(machines)
    )
    return seen(
        counts=MANY,
        fresh=((0, MANY.total),),
        machines=(machine("m1"), machine("m2"), *lost),
        launches=(answered(),),
        pace=Pace(items=int(busy_seconds * 10), seconds=0.1, size=1.0, busy_seconds=busy_seconds),
        **changes,
    )


def longest_sent(snapshot: Snapshot) -> float:
    """Seconds of work of the longest chunk that the plan sends."""
    (send,) = of(decide(snapshot), Send)
    return max(chunk.count for chunk in send.batch.chunks) * 0.1


def test_chunks_are_a_part_of_the_time_between_two_losses() -> None:
    assert longest_sent(losing(10, busy_seconds=60.0)) == 60.0 / 10 / CHUNKS_PER_LOSS


def test_rare_losses_change_nothing() -> None:
    assert longest_sent(losing(1, busy_seconds=4000.0)) == longest_sent(losing(0, busy_seconds=4000.0))
    assert longest_sent(losing(0, busy_seconds=4000.0)) > CHUNK_SECONDS


def test_a_lost_chunk_that_is_too_long_for_such_machines_is_closed_at_once() -> None:
    long = open_chunk(0, ((0, 100),), losses=1)
    (close,) = of(decide(losing(10, 60.0, open_chunks=(long,))), CloseChunk)
    assert close.chunk == long.chunk
    assert "travel singly" in close.reason


def test_a_lost_chunk_that_is_short_or_a_single_item_runs_again_as_it_is() -> None:
    for ranges in (((0, 14),), ((0, 1),)):
        lost = open_chunk(0, ranges, losses=1)
        assert not of(decide(losing(10, 60.0, open_chunks=(lost,))), CloseChunk)
    slow = Pace(items=10, seconds=600.0, busy_seconds=6000.0)
    hour_long = seen(open_chunks=(open_chunk(0, ((0, 1),), losses=1),), pace=slow)
    assert not of(decide(hour_long), CloseChunk)


def test_a_long_chunk_in_other_hands_is_not_closed() -> None:
    held = open_chunk(0, ((0, 100),), losses=1, held=True)
    assert not of(decide(losing(10, 60.0, open_chunks=(held,))), CloseChunk)
