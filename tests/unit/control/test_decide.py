"""The decision, rule by rule: a snapshot in, a plan out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.decide import (
    BOOT_SECONDS,
    ENDED_SECONDS,
    GONE_SECONDS,
    LAUNCH_REPEAT_SECONDS,
    PLAN_SECONDS,
    counted_slots,
    decide,
)
from airflow_provider_spotbatch.control.plan import (
    CloseChunk,
    CloseLaunches,
    Launch,
    Plan,
    RecordLoss,
    RecordStop,
    Send,
    Terminate,
    WriteControl,
)
from airflow_provider_spotbatch.control.snapshot import (
    Counts,
    LaunchView,
    Machine,
    OpenChunk,
    Pace,
    Retry,
    Snapshot,
)
from airflow_provider_spotbatch.job.chunks import FRESH, RESEND, RETRY, Chunk
from airflow_provider_spotbatch.job.errors import AccessDenied, NoCapacity, QuotaExceeded
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import CHUNK_LOSSES, MAX_LOSSES, Policy

OFFER = Offer(name="small", slots=2)


def seen(**changes: Any) -> Snapshot:
    """A young run of 10 items, 4 slots, nothing launched or sent yet."""
    base = Snapshot(
        now=100.0,
        run=1,
        run_age=1.0,
        policy=Policy(),
        concurrency=4,
        counts=Counts(total=10, waiting=10, sent=0, retrying=0, ok=0, failed=0),
        fresh=((0, 10),),
        offers={0: (OFFER,)},
        unsent={0: 10},
        control_age=0.0,
    )
    return replace(base, **changes)


def machine(name: str = "m1", **changes: Any) -> Machine:
    base = Machine(id=name, launch=1, memory_class=0, slots=2, state="running", reported="running")
    return replace(base, **changes)


def answered(number: int = 1, slots: tuple[int, ...] = (2, 2), **changes: Any) -> LaunchView:
    instances = tuple(Instance(f"m{i}", number, "running", n) for i, n in enumerate(slots, 1))
    view = LaunchView(LaunchRecord(number, slots=slots), LaunchOutcome(instances), age=5.0, answer_age=5.0)
    return replace(view, **changes)


def open_chunk(number: int = 0, ranges: tuple[tuple[int, int], ...] = ((0, 1),), **changes: Any) -> OpenChunk:
    base = OpenChunk(Chunk(ChunkId(1, 1, number), ranges), sent_age=1.0, held=False, losses=0, item_losses=0)
    return replace(base, **changes)


def of(plan: Plan, kind: type) -> list[Any]:
    return [action for action in plan.actions if isinstance(action, kind)]


# --- launching ----------------------------------------------------------------------------------


def test_machines_are_asked_for_up_to_the_concurrency() -> None:
    (launch,) = of(decide(seen()), Launch)
    assert launch.record.slots == (2, 2)
    assert not launch.again


def test_the_last_machine_gets_only_the_slots_that_are_left_in_a_launch_of_its_own() -> None:
    (launch,) = of(decide(seen(concurrency=3)), Launch)
    assert launch.record.slots == (2,)
    (launch,) = of(
        decide(seen(concurrency=3, launches=(answered(slots=(2,)),), machines=(machine(),))), Launch
    )
    assert launch.record.slots == (1,)


def test_no_more_slots_than_items() -> None:
    few = seen(counts=Counts(1, 1, 0, 0, 0, 0), fresh=((0, 1),), unsent={0: 1})
    (launch,) = of(decide(few), Launch)
    assert launch.record.slots == (1,)


def test_a_launch_without_an_answer_is_asked_again_once_its_writer_can_no_longer_ask() -> None:
    pending = LaunchView(LaunchRecord(1, slots=(2,)), None, age=5.0, asked_age=5.0)
    assert not of(decide(seen(launches=(pending,))), Launch)
    dead = replace(pending, age=PLAN_SECONDS + 1, asked_age=PLAN_SECONDS + 1)
    assert [launch.asking for launch in of(decide(seen(launches=(dead,))), Launch)] == [2]
    claimed = replace(dead, asked=2, asked_age=5.0)
    assert not of(decide(seen(launches=(claimed,))), Launch)


def test_a_machine_that_is_not_in_its_launchs_answer_is_ended() -> None:
    plan = decide(seen(launches=(answered(slots=(2,)),), machines=(machine("m1"), machine("m9"))))
    assert [action.instances for action in of(plan, Terminate)] == [("m9",)]


def test_agents_are_told_of_the_burn_before_more_machines_burn() -> None:
    dear = replace(OFFER, usd_per_hour=3.6)
    plan = decide(seen(budget_usd=1.0, offers={0: (dear,)}))
    kinds = [type(action) for action in plan.actions if isinstance(action, (WriteControl, Launch))]
    assert kinds == [WriteControl, Launch]
    assert of(plan, WriteControl)[0].spend_for == pytest.approx(500.0)


def test_slots_of_an_unanswered_record_are_counted_until_its_machines_are_listed() -> None:
    pending = LaunchView(LaunchRecord(1, slots=(2, 2)), None, age=5.0)
    assert counted_slots(seen(launches=(pending,))) == 4
    assert counted_slots(seen(launches=(pending,), machines=(machine("m1"),))) == 4


def test_a_launch_is_never_asked_again_after_its_time() -> None:
    old = LaunchView(LaunchRecord(1, slots=(2, 2)), None, age=LAUNCH_REPEAT_SECONDS + 1)
    assert not [launch for launch in of(decide(seen(launches=(old,))), Launch) if launch.again]


def test_a_machine_that_appears_after_that_is_ended() -> None:
    old = LaunchView(LaunchRecord(1, slots=(2,)), None, age=LAUNCH_REPEAT_SECONDS + 1)
    plan = decide(seen(launches=(old,), machines=(machine(),)))
    assert of(plan, Terminate)[0].instances == ("m1",)


def test_an_ended_machine_is_replaced_while_there_is_work() -> None:
    both = seen(
        launches=(answered(),),
        machines=(machine("m1", state="terminated"), machine("m2", held=("1-1-0", "1-1-1"))),
    )
    (launch,) = of(decide(both), Launch)
    assert launch.record.slots == (2,)


def test_a_silent_machine_keeps_its_slots_until_it_is_gone() -> None:
    silent = seen(launches=(answered(slots=(2, 2)),), machines=(machine("m1", silent=1000.0), machine("m2")))
    plan = decide(silent)
    assert of(plan, Terminate)[0].instances == ("m1",)
    assert not of(plan, Launch)


def test_a_missing_machine_counts_until_it_is_due() -> None:
    missing = machine("m1", state="missing", reported="", due=False)
    assert counted_slots(seen(machines=(missing,))) == 2
    assert counted_slots(seen(machines=(replace(missing, due=True),))) == 0


def test_the_instance_limit_of_the_connection_holds() -> None:
    (launch,) = of(decide(seen(max_instances=1)), Launch)
    assert launch.record.slots == (2,)


def test_the_hourly_limit_of_the_connection_holds() -> None:
    dear = Offer(name="dear", slots=2, usd_per_hour=1.0)
    (launch,) = of(decide(seen(offers={0: (dear,)}, max_usd_per_hour=1.5)), Launch)
    assert launch.record.slots == (2,)


def test_a_memory_class_has_launches_of_its_own() -> None:
    heavy = seen(
        counts=Counts(10, 0, 9, 1, 0, 0),
        fresh=(),
        unsent={1: 1},
        due=(Retry(3, 2, 1),),
        offers={0: (OFFER,), 1: (OFFER,)},
        concurrency=5,
        launches=(answered(),),
        machines=(machine("m1", held=("a", "b")), machine("m2", held=("c", "d"))),
    )
    plan = decide(heavy)
    assert of(plan, Launch)[0].record.memory_class == 1
    assert of(plan, Send)[0].memory_class == 1


def outgrown(**changes: Any) -> Snapshot:
    """All slots are taken, and the last item needs twice the memory that they have."""
    base = seen(
        counts=Counts(10, 0, 0, 1, 9, 0),
        fresh=(),
        unsent={1: 1},
        offers={0: (OFFER,), 1: (OFFER,)},
        launches=(answered(),),
        machines=(machine("m1"), machine("m2")),
    )
    return replace(base, **changes)


def test_an_idle_machine_makes_room_for_items_of_another_memory_class() -> None:
    assert [action.instances for action in of(decide(outgrown()), Terminate)] == [("m2",)]
    ended = outgrown(machines=(machine("m1"), machine("m2", state="terminated")))
    assert not of(decide(ended), Terminate)
    (launch,) = of(decide(ended), Launch)
    assert (launch.record.memory_class, launch.record.slots) == (1, (1,))


@pytest.mark.parametrize(
    "changes",
    [
        {"concurrency": 5},
        {"machines": (machine("m1", held=("a",)), machine("m2", held=("b", "c")))},
        {"machines": (machine("m1", reported="booting"), machine("m2", reported="draining"))},
        {"unsent": {0: 1, 1: 1}},
        {"open_chunks": (open_chunk(),)},
        {"unsent": {}},
    ],
    ids=["room", "busy", "not at work", "work to send", "work sent", "nothing waits"],
)
def test_no_machine_makes_room(changes: dict[str, Any]) -> None:
    assert not of(decide(outgrown(**changes)), Terminate)


def test_an_idle_machine_makes_room_below_the_instance_limit() -> None:
    full = outgrown(concurrency=64, max_instances=2)
    assert [action.instances for action in of(decide(full), Terminate)] == [("m2",)]


# --- sending ------------------------------------------------------------------------------------


def test_single_items_first_two_for_every_slot() -> None:
    (send,) = of(decide(seen()), Send)
    assert send.batch.kind == FRESH
    assert [chunk.count for chunk in send.batch.chunks] == [1] * 8
    assert [item for chunk in send.batch.chunks for item in chunk.items()] == list(range(8))


def test_nothing_more_is_sent_unmeasured_while_enough_is_open() -> None:
    sent = tuple(open_chunk(n, ((n, n + 1),)) for n in range(8))
    assert not of(decide(seen(open_chunks=sent, fresh=((8, 10),))), Send)


def test_measured_items_travel_in_chunks_that_shrink_to_the_end() -> None:
    many = seen(
        counts=Counts(100_000, 100_000, 0, 0, 0, 0),
        fresh=((0, 100_000),),
        unsent={0: 100_000},
        pace=Pace(items=8, seconds=0.001, size=10.0, busy_seconds=0.008),
    )
    (send,) = of(decide(many), Send)
    sizes = [chunk.count for chunk in send.batch.chunks]
    assert sum(sizes) == 100_000
    assert sizes[0] > 1000
    assert sizes == sorted(sizes, reverse=True)


def test_only_single_items_are_sent_while_only_failures_are_known() -> None:
    failing = seen(
        counts=Counts(1000, 996, 0, 0, 0, 4),
        fresh=((4, 1000),),
        outcomes=4,
        only_error="error: ValueError",
        pace=Pace(items=4, seconds=0.001, size=10.0, busy_seconds=0.004),
    )
    (send,) = of(decide(failing), Send)
    assert [chunk.count for chunk in send.batch.chunks] == [1] * 8
    (send,) = of(decide(replace(failing, policy=Policy(early_stop=None))), Send)
    assert max(chunk.count for chunk in send.batch.chunks) > 1


def test_long_items_travel_singly_and_not_all_at_once() -> None:
    long = seen(
        counts=Counts(1000, 1000, 0, 0, 0, 0),
        fresh=((0, 1000),),
        unsent={0: 1000},
        pace=Pace(items=4, seconds=3600.0, size=10.0, busy_seconds=4 * 3600.0),
    )
    (send,) = of(decide(long), Send)
    assert [chunk.count for chunk in send.batch.chunks] == [1] * 8


def test_large_results_bound_the_chunk() -> None:
    large = seen(
        counts=Counts(1000, 1000, 0, 0, 0, 0),
        fresh=((0, 1000),),
        unsent={0: 1000},
        pace=Pace(items=4, seconds=0.01, size=50e6, busy_seconds=0.04),
    )
    (send,) = of(decide(large), Send)
    assert {chunk.count for chunk in send.batch.chunks} == {1}


def test_retries_are_new_chunks_by_attempt_and_class() -> None:
    due = (Retry(1, 2, 0), Retry(2, 2, 0), Retry(3, 3, 0), Retry(4, 2, 1))
    plan = decide(
        seen(
            due=due,
            fresh=(),
            counts=Counts(10, 0, 6, 4, 0, 0),
            pace=Pace(8, 0.01, 1.0, 0.08),
            offers={0: (OFFER,), 1: (OFFER,)},
        )
    )
    sends = of(plan, Send)
    assert [(send.memory_class, send.batch.kind, send.batch.number) for send in sends] == [
        (0, RETRY, 1),
        (1, RETRY, 2),
    ]
    assert {chunk.attempt for chunk in sends[0].batch.chunks} == {2, 3}
    assert all(len({chunk.attempt}) == 1 for chunk in sends[0].batch.chunks)


def test_items_of_a_lost_chunk_travel_alone() -> None:
    due = tuple(Retry(n, 1, 0, alone=True) for n in range(3))
    plan = decide(seen(due=due, fresh=(), counts=Counts(10, 0, 7, 3, 0, 0), pace=Pace(8, 0.01, 1.0, 0.08)))
    (send,) = of(plan, Send)
    assert [chunk.count for chunk in send.batch.chunks] == [1, 1, 1]


def test_chunks_that_wait_for_more_memory_do_not_hold_back_fresh_items() -> None:
    larger = tuple(
        OpenChunk(Chunk(ChunkId(1, 2, n), ((n, n + 1),), 2, 1), 1.0, False, 0, 0) for n in range(2)
    )
    waiting = seen(
        concurrency=1,
        counts=Counts(3, 1, 2, 0, 0, 0),
        fresh=((2, 3),),
        open_chunks=larger,
        pace=Pace(items=9, seconds=70.0, busy_seconds=630.0),
    )
    assert [send.memory_class for send in of(decide(waiting), Send)] == [0]


def test_a_lost_message_is_sent_again_only_where_an_idle_agent_saw_the_queue_empty() -> None:
    lost = seen(
        fresh=(),
        counts=Counts(10, 0, 1, 0, 9, 0),
        open_chunks=(open_chunk(sent_age=61.0),),
        launches=(answered(),),
        machines=(machine(),),
    )
    assert not of(decide(lost), Send)
    idle = replace(lost, machines=(machine(empty_seconds=31.0),))
    (send,) = of(decide(idle), Send)
    assert send.batch.kind == RESEND
    assert send.batch.chunks == (lost.open_chunks[0].chunk,)


@pytest.mark.parametrize("change", [{"sent_age": 59.0}, {"held": True}])
def test_a_young_or_held_chunk_is_not_lost(change: dict[str, Any]) -> None:
    plan = decide(
        seen(
            fresh=(),
            counts=Counts(10, 0, 1, 0, 9, 0),
            open_chunks=(open_chunk(**{"sent_age": 61.0, **change}),),
            launches=(answered(),),
            machines=(machine(empty_seconds=31.0),),
        )
    )
    assert not of(plan, Send)


# --- machines, losses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reported", "interrupted", "cause"),
    [
        ("terminated", "running", False, "lost"),
        ("terminated", "running", True, "interrupted"),
        ("running", "ended", True, "interrupted"),
        ("missing", "running", False, "lost"),
    ],
)
def test_a_machine_that_ended_with_work_in_hand_is_a_loss(
    state: str, reported: str, interrupted: bool, cause: str
) -> None:
    gone = machine(state=state, reported=reported, interrupted=interrupted, held=("c",))
    (loss,) = of(decide(seen(launches=(answered(),), machines=(gone,))), RecordLoss)
    assert (loss.instance, loss.cause, loss.chunks) == ("m1", cause, ("c",))


def test_a_loss_is_recorded_once() -> None:
    gone = machine(state="terminated", held=("c",), loss_recorded=True)
    assert not of(decide(seen(launches=(answered(),), machines=(gone,))), RecordLoss)


def test_a_chunk_of_many_lost_three_times_is_closed() -> None:
    often = open_chunk(ranges=((0, 5),), losses=CHUNK_LOSSES)
    assert of(decide(seen(open_chunks=(often,))), CloseChunk)
    assert not of(decide(seen(open_chunks=(replace(often, losses=CHUNK_LOSSES - 1),))), CloseChunk)


def test_a_single_item_is_given_up_after_its_limit_of_losses() -> None:
    often = open_chunk(losses=MAX_LOSSES, item_losses=MAX_LOSSES)
    assert of(decide(seen(open_chunks=(often,))), CloseChunk)
    assert not of(decide(seen(open_chunks=(replace(often, item_losses=MAX_LOSSES - 1),))), CloseChunk)


@pytest.mark.parametrize(
    "change",
    [
        {"reported": "running", "silent": 91.0},
        {"reported": "", "silent": BOOT_SECONDS + 1},
        {"reported": "ended", "silent": ENDED_SECONDS + 1},
    ],
)
def test_machines_that_should_have_spoken_or_ended_are_ended(change: dict[str, Any]) -> None:
    plan = decide(seen(launches=(answered(),), machines=(machine(**change),)))
    assert of(plan, Terminate)[0].instances == ("m1",)


def test_a_machine_of_no_launch_is_ended() -> None:
    assert of(decide(seen(machines=(machine(launch=9),))), Terminate)[0].instances == ("m1",)


# --- stopping -----------------------------------------------------------------------------------


def stop_kind(snapshot: Snapshot) -> str | None:
    stops = of(decide(snapshot), RecordStop)
    return stops[0].stop.kind if stops else None


def test_early_stop_when_the_first_outcomes_are_all_the_same_error() -> None:
    broken = seen(outcomes=20, only_error="error: ValueError", counts=Counts(100, 80, 0, 20, 0, 0))
    assert stop_kind(broken) == "early_stop"
    assert stop_kind(replace(broken, outcomes=19)) is None
    assert stop_kind(replace(broken, only_error=None)) is None
    assert stop_kind(replace(broken, counts=Counts(100, 80, 0, 19, 1, 0))) is None
    assert stop_kind(replace(broken, policy=Policy(early_stop=None))) is None


def test_on_item_error_stop_drains() -> None:
    policy = Policy(on_item_error="stop", max_failures=1)
    failing = seen(policy=policy, counts=Counts(10, 5, 3, 0, 0, 2))
    (action,) = of(decide(failing), RecordStop)
    assert action.stop.kind == "max_failures"
    assert action.stop.drain
    assert stop_kind(replace(failing, counts=Counts(10, 5, 4, 0, 0, 1))) is None


def test_a_draining_run_waits_for_running_items_and_leases_nothing_more() -> None:
    policy = Policy(on_item_error="stop")
    failing = seen(
        policy=policy,
        counts=Counts(10, 5, 4, 0, 0, 1),
        launches=(answered(),),
        machines=(machine(held=("c",)), machine("m2")),
    )
    plan = decide(failing)
    assert not of(plan, Terminate)
    assert not of(plan, Send)
    assert of(plan, WriteControl)[0].drain
    assert of(decide(replace(failing, machines=(machine(),))), Terminate)


def test_fail_runs_every_item_to_its_end() -> None:
    assert stop_kind(seen(counts=Counts(10, 5, 0, 0, 0, 5))) is None


def test_max_runtime_names_what_the_launches_wait_for() -> None:
    refused = LaunchView(
        LaunchRecord(1, slots=(2,)), LaunchOutcome(refusals=(NoCapacity("no m5 left"),)), 9.0
    )
    late = seen(run_age=100.0, policy=Policy(max_runtime=99.0), launches=(refused,))
    (action,) = of(decide(late), RecordStop)
    assert action.stop.kind == "max_runtime"
    assert "no m5 left" in action.stop.message


def test_a_spent_budget_stops_without_retry() -> None:
    (action,) = of(decide(seen(budget_usd=1.0, spent_usd=1.0)), RecordStop)
    assert (action.stop.kind, action.stop.retryable) == ("budget", False)


@pytest.mark.parametrize(
    ("refusal", "stops"),
    [
        (AccessDenied("may not", remedy="allow ec2:CreateFleet"), True),
        (QuotaExceeded("quota 0", below_one_machine=True), True),
        (QuotaExceeded("quota 8"), False),
        (NoCapacity("none"), False),
    ],
)
def test_only_refusals_that_waiting_cannot_cure_stop(refusal: Any, stops: bool) -> None:
    view = LaunchView(LaunchRecord(1, slots=(2,)), LaunchOutcome(refusals=(refusal,)), 9.0)
    assert (stop_kind(seen(launches=(view,))) == "refused") is stops


def test_machines_that_ended_without_any_report_point_to_the_way_to_the_store() -> None:
    silent = tuple(machine(f"m{n}", state="terminated", reported="", reason="it ended") for n in range(3))
    (action,) = of(decide(seen(launches=(answered(),), machines=silent)), RecordStop)
    assert "a way to the store" in action.stop.message
    assert "the console of m2" in action.stop.message


def test_three_boot_failures_in_a_row_stop_with_the_boot_log() -> None:
    dead = tuple(
        machine(f"m{n}", state="terminated", reported="ended", boot_log="no such interpreter")
        for n in range(3)
    )
    (action,) = of(decide(seen(launches=(answered(),), machines=dead)), RecordStop)
    assert action.stop.kind == "boot"
    assert action.stop.message.endswith("no such interpreter")


def test_a_reclaim_during_boot_is_no_boot_failure() -> None:
    taken = tuple(machine(f"m{n}", state="terminated", reported="", interrupted=True) for n in range(3))
    assert stop_kind(seen(launches=(answered(),), machines=taken)) is None


# --- the end ------------------------------------------------------------------------------------

DONE = Counts(10, 0, 0, 0, 9, 1)


def test_the_end_closes_the_launch_log_and_ends_the_machines() -> None:
    plan = decide(seen(counts=DONE, launches=(answered(),), machines=(machine(),), next_launch=2))
    assert of(plan, CloseLaunches)[0].record.number == 2
    assert of(plan, Terminate)[0].instances == ("m1",)
    assert not plan.over


def test_it_is_over_only_once_all_are_seen_gone() -> None:
    closing = LaunchView(LaunchRecord(2, closed=True), None, age=1.0)
    ending = seen(counts=DONE, launches=(answered(), closing), closed=True)
    assert decide(replace(ending, machines=(machine(state="terminated"),))).over
    assert not decide(replace(ending, machines=(machine(),))).over
    assert not decide(replace(ending, machines=(machine(state="missing", due=False),))).over


def test_an_unanswered_launch_is_waited_out_at_the_end() -> None:
    closing = LaunchView(LaunchRecord(2, closed=True), None, age=1.0)
    pending = LaunchView(LaunchRecord(1, slots=(2,)), None, age=1.0)
    ending = seen(counts=DONE, launches=(pending, closing), closed=True)
    assert not decide(ending).over
    assert decide(replace(ending, launches=(replace(pending, asked_age=PLAN_SECONDS + 1), closing))).over


def test_answered_launches_are_waited_for_until_their_machines_must_be_visible() -> None:
    closing = LaunchView(LaunchRecord(2, closed=True), None, age=1.0)
    ending = seen(
        counts=DONE, launches=(answered(answer_age=5.0), closing), closed=True, visibility_bound=10.0
    )
    assert not decide(ending).over
    assert decide(replace(ending, visibility_bound=4.0)).over


def test_machines_that_cannot_be_seen_gone_end_the_wait_by_name() -> None:
    closing = LaunchView(LaunchRecord(2, closed=True), None, age=GONE_SECONDS + 1)
    plan = decide(seen(counts=DONE, launches=(answered(), closing), closed=True, machines=(machine(),)))
    assert plan.over
    assert plan.stuck == ("m1",)


def test_a_cancelled_run_sends_and_launches_nothing() -> None:
    plan = decide(seen(cancelled="mark failed", machines=(machine(),), launches=(answered(),)))
    assert not of(plan, Send)
    assert not of(plan, Launch)
    assert of(plan, Terminate)


def test_no_items_is_over_without_a_machine() -> None:
    empty = seen(counts=Counts(0, 0, 0, 0, 0, 0), fresh=(), unsent={})
    plan = decide(empty)
    assert not of(plan, Launch)
    closing = LaunchView(LaunchRecord(1, closed=True), None, age=0.0)
    assert decide(replace(empty, closed=True, launches=(closing,))).over


def test_the_same_snapshot_gives_the_same_plan() -> None:
    assert decide(seen()) == decide(seen())


def test_long_jobs_are_looked_at_more_rarely() -> None:
    busy = seen(
        run_age=3600.0,
        counts=Counts(10_000, 9_000, 1000, 0, 0, 0),
        pace=Pace(100, 10.0, 1.0, 1000.0),
        machines=(machine(held=("c",)),),
        launches=(answered(),),
    )
    assert decide(busy).pause == busy.policy.poll_interval
    assert decide(replace(busy, run_age=5.0)).pause == busy.tick_seconds


@pytest.mark.parametrize(
    ("quiet", "pause"),
    [(0.0, 1.0), (10.0, 1.0), (100.0, 5.0), (1000.0, 15.0)],
    ids=lambda value: f"{value:g}",
)
def test_where_nothing_changes_looks_become_rare(quiet: float, pause: float) -> None:
    waiting = seen(
        run_age=1000.0,
        concurrency=1,
        counts=Counts(1, 0, 1, 0, 0, 0),
        fresh=(),
        unsent={},
        quiet=quiet,
        launches=(answered(slots=(1,)),),
    )
    at_work = replace(waiting, machines=(machine(slots=1, held=("c",)),))
    assert decide(at_work).pause == pause


@pytest.mark.parametrize(("quiet", "pause"), [(0.0, 1.0), (10.0, 1.0), (100.0, 10.0), (500.0, 15.0)])
def test_a_machine_that_takes_long_to_boot_is_looked_for_ever_more_rarely(quiet: float, pause: float) -> None:
    booting = machine(reported="", silent=quiet)
    young = seen(run_age=quiet, quiet=quiet, launches=(answered(),), machines=(booting,))
    assert decide(young).pause == pause


def test_a_machine_that_was_asked_for_just_now_is_looked_for_soon() -> None:
    counts, pace = Counts(10_000, 9_000, 1000, 0, 0, 0), Pace(100, 10.0, 1.0, 1000.0)
    replaced = seen(run_age=3600.0, counts=counts, pace=pace, launches=(answered(),))
    fleet = (machine("m1", held=("c",)), machine("m2", reported=""))
    assert decide(replace(replaced, machines=fleet, quiet=1.0)).pause == 2.0
    assert decide(replace(replaced, machines=fleet[:1], quiet=1.0)).pause == replaced.policy.poll_interval
