"""How long each machine of a launch may live: a snapshot in, the seconds of the launch record out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.decide import decide
from airflow_provider_spotbatch.control.plan import Launch, RecordStop
from airflow_provider_spotbatch.control.snapshot import Counts, LaunchView, Machine, Snapshot
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy

HOUR = 3600.0

FOUR = Offer("spot-4", 4, usd_per_hour=0.5)
TWO = Offer("spot-2", 2, usd_per_hour=0.25)
FREE = Offer("local", 4)


def seen(*launches: LaunchView, offers: tuple[Offer, ...] = (FOUR,), **changes: Any) -> Snapshot:
    """A run of an hour that wants 16 slots: four machines of half a dollar an hour."""
    return Snapshot(
        **{
            "now": 1000.0,
            "run": 1,
            "run_age": HOUR,
            "policy": Policy(max_runtime=24 * HOUR),
            "concurrency": 16,
            "counts": Counts(total=100, waiting=100, sent=0, retrying=0, ok=0, failed=0),
            "unsent": {0: 100},
            "offers": {0: offers},
            "launches": launches,
            "next_launch": len(launches) + 1,
            **changes,
        }
    )


def launched(number: int, machines: int, lifetime: float | None, age: float) -> LaunchView:
    given = tuple(Instance(f"m{number}-{n}", number, "running", 4, 0.5) for n in range(machines))
    record = LaunchRecord(number, slots=(4,) * machines, lifetime_seconds=lifetime)
    return LaunchView(record, LaunchOutcome(given), age=age, answer_age=age)


def machines(launch: int, count: int, **changes: Any) -> tuple[Machine, ...]:
    running = {"memory_class": 0, "slots": 4, "state": "running", "reported": "running", "usd_per_hour": 0.5}
    return tuple(Machine(f"m{launch}-{n}", launch, **{**running, **changes}) for n in range(count))


def record(snapshot: Snapshot) -> LaunchRecord | None:
    return next((action.record for action in decide(snapshot).actions if isinstance(action, Launch)), None)


def lifetime(snapshot: Snapshot) -> float:
    made = record(snapshot)
    assert made is not None, decide(snapshot).actions
    assert made.lifetime_seconds is not None
    return made.lifetime_seconds


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({}, 23),
        ({"run_age": 23.5 * HOUR}, 0.5),
        ({"budget_usd": 10.0}, 5),
        ({"budget_usd": 10.0, "spent_usd": 8.0}, 1),
        ({"budget_usd": 100.0}, 23),
        ({"budget_usd": 10.0, "offers": (FREE,)}, 23),
    ],
    ids=["no budget", "nearly over", "a budget", "partly spent", "a large budget", "free machines"],
)
def test_a_machine_may_live_as_long_as_the_job_or_its_share_of_the_budget(
    changes: dict[str, Any], hours: float
) -> None:
    assert lifetime(seen(**changes)) == pytest.approx(hours * HOUR)


def test_machines_that_are_asked_for_later_get_their_share_too() -> None:
    """18 slots are four machines, and then one of half the size and price."""
    assert lifetime(seen(offers=(FOUR, TWO), concurrency=18, budget_usd=9.0)) == pytest.approx(4 * HOUR)
    later = seen(
        launched(1, 4, 4 * HOUR, age=0.0),
        offers=(FOUR, TWO),
        concurrency=18,
        machines=machines(1, 4),
        budget_usd=9.0,
    )
    assert record(later).slots == (2,)  # type: ignore[union-attr]
    assert lifetime(later) == pytest.approx(4 * HOUR)


def test_what_limits_forbid_gets_no_share() -> None:
    assert lifetime(seen(budget_usd=10.0, max_instances=2)) == pytest.approx(10 * HOUR)


def test_a_replacement_gets_what_the_lost_machine_left() -> None:
    """Four hours for each of four machines; one is lost after an hour, with two dollars spent by all."""
    gone = machines(1, 1, state="terminated")
    three = tuple(replace(each, id=f"m1-{n}") for n, each in enumerate(machines(1, 3), start=1))
    after_an_hour = seen(
        launched(1, 4, 4 * HOUR, age=HOUR), machines=gone + three, budget_usd=8.0, spent_usd=2.0
    )
    assert record(after_an_hour).slots == (4,)  # type: ignore[union-attr]
    assert lifetime(after_an_hour) == pytest.approx(3 * HOUR)


def test_nothing_is_launched_from_what_others_were_promised() -> None:
    working = machines(1, 3)
    promised = seen(launched(1, 3, 4 * HOUR, age=HOUR), machines=working, budget_usd=6.0, spent_usd=1.5)
    assert record(promised) is None
    assert not any(isinstance(action, RecordStop) for action in decide(promised).actions)


def test_a_small_budget_gives_fewer_machines_that_live_long_enough_to_boot() -> None:
    made = record(seen(budget_usd=2.5 * 0.5 / 60))
    assert made is not None
    assert made.slots == (4, 4)
    assert made.lifetime_seconds == pytest.approx(75)


def test_what_pays_for_no_machine_ends_the_job() -> None:
    stopped = decide(seen(budget_usd=3.0, spent_usd=2.995)).actions[0]
    assert isinstance(stopped, RecordStop)
    assert stopped.stop.kind == "budget"
    assert not stopped.stop.retryable
    assert "what is left pays for no machine's boot" in stopped.stop.message


def test_what_pays_for_no_machine_at_all_is_not_called_spent() -> None:
    stopped = decide(seen(budget_usd=0.0001)).actions[0]
    assert isinstance(stopped, RecordStop)
    assert stopped.stop.message.startswith("the budget of $0.0001 pays for no machine: a minute of the")


def test_it_does_not_end_while_a_machine_may_still_do_the_rest() -> None:
    last = seen(
        launched(1, 1, HOUR, age=0.999 * HOUR), machines=machines(1, 1), budget_usd=0.5, spent_usd=0.4995
    )
    assert not any(isinstance(action, RecordStop) for action in decide(last).actions)


def test_machines_of_records_that_pinned_no_lifetime_are_promised_nothing() -> None:
    old = seen(launched(1, 2, None, age=HOUR), machines=machines(1, 2), budget_usd=5.0, spent_usd=1.0)
    assert lifetime(old) == pytest.approx(4 * HOUR)
