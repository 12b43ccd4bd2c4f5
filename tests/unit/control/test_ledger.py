"""What is known of items and chunks, whatever order it is learnt in."""

from __future__ import annotations

import pytest

from airflow_provider_spotbatch.control.ledger import Ledger
from airflow_provider_spotbatch.control.snapshot import Retry
from airflow_provider_spotbatch.job.chunks import FRESH, RESEND, RETRY, Batch, Chunk
from airflow_provider_spotbatch.job.index import RECORD, Place, place_at
from airflow_provider_spotbatch.job.keys import ChunkId, Generation
from airflow_provider_spotbatch.job.outcome import ItemOutcome, ResultHead, decode_head, encode_result
from airflow_provider_spotbatch.job.policy import MAX_LOSSES, Policy
from airflow_provider_spotbatch.job.report import EndedChunk
from airflow_provider_spotbatch.job.signing import Signer

SIGNER = Signer(b"k" * 32, Generation("job", 1))


def chunk(batch: int, *ranges: tuple[int, int], attempt: int = 1, memory_class: int = 0) -> Chunk:
    return Chunk(ChunkId(1, batch, 0), ranges, attempt, memory_class)


def send(ledger: Ledger, sent: Chunk, kind: str = FRESH, at: float = 0.0) -> Chunk:
    ledger.sent(Batch(sent.id.batch, kind, (sent,)), at)
    return sent


def well(of: Chunk, seconds: float = 1.0) -> EndedChunk:
    return EndedChunk(str(of.id), of.count, 0, seconds, 100)


def head(of: Chunk, *causes: str) -> ResultHead:
    """The head of a result object in which the items of a chunk ended so."""
    outcomes = [
        ItemOutcome(item, of.attempt, cause, "json" if cause == "ok" else "failure", b"{}", 0.0, 0.0)
        for item, cause in zip(of.items(), causes, strict=True)
    ]
    return decode_head(SIGNER, of.id, encode_result(SIGNER, of.id, outcomes, {}))


def places(ledger: Ledger) -> list[Place]:
    data = b"".join(ledger.records())
    return [place_at(data, position) for position in range(len(data) // RECORD.size)]


def counted(ledger: Ledger) -> tuple[int, int, int, int, int]:
    counts = ledger.counts
    return counts.waiting, counts.sent, counts.retrying, counts.ok, counts.failed


def test_a_chunk_that_ended_well_settles_its_items() -> None:
    ledger = Ledger(5, Policy())
    sent = send(ledger, chunk(1, (0, 3)))
    assert counted(ledger) == (2, 3, 0, 0, 0)
    ledger.ended_well(well(sent))
    assert counted(ledger) == (2, 0, 0, 3, 0)
    assert places(ledger)[2] == Place("ok", 1, sent.id, 2)
    assert places(ledger)[4] == Place(None, 0, None, 0)
    assert ledger.fresh(10) == ((3, 5),)


def test_the_end_of_a_chunk_counts_once() -> None:
    ledger = Ledger(2, Policy())
    sent = send(ledger, chunk(1, (0, 2)))
    ledger.ended_well(well(sent))
    ledger.ended_well(well(sent))
    ledger.ended_read(None, head(sent, "error", "error"), 0.0)
    assert counted(ledger) == (0, 0, 0, 2, 0)
    assert ledger.pace.items == 2


@pytest.mark.parametrize("cause", ["error", "timeout", "crash"])
def test_failures_spend_retries_and_wait_longer_each_time(cause: str) -> None:
    ledger = Ledger(1, Policy(item_retries=2))
    now = 100.0
    for attempt, wait in ((1, 1.0), (2, 2.0)):
        sent = send(ledger, chunk(attempt, (0, 1), attempt=attempt), RETRY if attempt > 1 else FRESH)
        ledger.ended_read(None, head(sent, cause), now)
        assert ledger.next_due(now) == wait
        assert ledger.due(now + wait - 0.01) == ()
        assert ledger.due(now + wait) == (Retry(0, attempt + 1, 0),)
        now += wait
    sent = send(ledger, chunk(3, (0, 1), attempt=3), RETRY)
    ledger.ended_read(None, head(sent, cause), now)
    assert counted(ledger) == (0, 0, 0, 0, 1)
    assert ledger.causes[cause] == 1
    assert places(ledger)[0] == Place(cause, 3, sent.id, 0)


def test_memory_goes_to_the_next_class_at_once_while_there_is_one() -> None:
    ledger = Ledger(1, Policy(item_retries=5), most_memory_class=1)
    ledger.ended_read(None, head(send(ledger, chunk(1, (0, 1))), "memory"), 5.0)
    assert ledger.due(5.0) == (Retry(0, 2, 1),)
    assert ledger.unsent() == {1: 1}
    sent = send(ledger, chunk(2, (0, 1), attempt=2, memory_class=1), RETRY)
    ledger.ended_read(None, head(sent, "memory"), 6.0)
    assert counted(ledger) == (0, 0, 0, 0, 1)


def test_losses_spend_no_retries_but_have_their_own_limit() -> None:
    ledger = Ledger(2, Policy(item_retries=0))
    sent = send(ledger, chunk(1, (0, 2)))
    for _ in range(MAX_LOSSES - 1):
        ledger.lost(sent.id)
    ledger.ended_read(None, head(sent, "lost", "lost"), 0.0)
    assert ledger.due(0.0) == (Retry(0, 1, 0, alone=True), Retry(1, 1, 0, alone=True))
    single = send(ledger, chunk(2, (0, 1)), RETRY)
    ledger.lost(single.id)
    ledger.ended_read(None, head(single, "lost"), 0.0)
    assert ledger.counts.failed == 1
    assert ledger.causes["lost"] == 1


def test_a_success_wins_over_failures_before_and_after_it() -> None:
    ledger = Ledger(1, Policy(item_retries=0))
    first, second = send(ledger, chunk(1, (0, 1))), send(ledger, chunk(2, (0, 1)), RESEND)
    ledger.ended_read(None, head(first, "error"), 0.0)
    assert ledger.counts.failed == 1
    ledger.ended_well(well(second))
    assert counted(ledger) == (0, 0, 0, 1, 0)
    assert not +ledger.causes
    assert places(ledger)[0].chunk == second.id


def test_a_resend_renews_the_age_and_nothing_else() -> None:
    ledger = Ledger(2, Policy())
    sent = send(ledger, chunk(1, (0, 2)), at=1.0)
    ledger.sent(Batch(2, RESEND, (sent,)), 50.0)
    assert [(entry.id, at) for entry, at, *_ in ledger.open_chunks()] == [(sent.id, 50.0)]
    assert counted(ledger) == (0, 2, 0, 0, 0)


def test_carried_items_are_done_and_never_fresh() -> None:
    ledger = Ledger(6, Policy())
    earlier = ChunkId(1, 4, 2)
    for item in (0, 1, 4):
        ledger.carry(item, Place("ok", 2, earlier, item))
    assert ledger.fresh(10) == ((2, 4), (5, 6))
    assert ledger.counts.ok == 3
    assert places(ledger)[4] == Place("ok", 2, earlier, 4)


def test_fresh_is_bounded_by_items_and_ranges() -> None:
    ledger = Ledger(1_000_000, Policy())
    assert ledger.fresh(100) == ((0, 100),)
    for item in range(1, 100, 2):
        ledger.carry(item, Place("ok", 1, ChunkId(1, 1, 0), 0))
    assert len(ledger.fresh(1000, ranges=10)) == 10


def test_what_waits_is_told_by_memory_class() -> None:
    ledger = Ledger(4, Policy(), most_memory_class=3)
    ledger.ended_read(None, head(send(ledger, chunk(1, (0, 2))), "memory", "error"), 0.0)
    assert ledger.unsent() == {0: 3, 1: 1}


class TestAProcessThatCameLater:
    """It reads all batches first, then the results in any order."""

    def test_a_failure_whose_retry_was_sent_already_is_not_retried_again(self) -> None:
        ledger = Ledger(1, Policy(item_retries=2))
        first = send(ledger, chunk(1, (0, 1)))
        again = send(ledger, chunk(2, (0, 1), attempt=2), RETRY)
        ledger.ended_read(None, head(first, "error"), 0.0)
        assert counted(ledger) == (0, 1, 0, 0, 0)
        assert ledger.due(1000.0) == ()
        ledger.ended_read(None, head(again, "error"), 0.0)
        assert [retry.attempt for retry in ledger.due(1000.0)] == [3]

    def test_attempts_are_those_of_the_chunk_that_settled_the_item(self) -> None:
        ledger = Ledger(2, Policy(item_retries=1))
        first = send(ledger, chunk(1, (0, 2)))
        second = send(ledger, chunk(2, (0, 1), attempt=2), RETRY)
        third = send(ledger, Chunk(ChunkId(1, 2, 1), ((1, 2),), 2), RETRY)
        ledger.ended_read(None, head(third, "error"), 0.0)
        ledger.ended_well(well(second))
        ledger.ended_read(None, head(first, "error", "error"), 0.0)
        assert counted(ledger) == (0, 0, 0, 1, 1)
        assert places(ledger) == [Place("ok", 2, second.id, 0), Place("error", 2, third.id, 0)]
