"""Which offer the next launch asks for: a snapshot in, an offer and the slots of each machine out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.decide import decide
from airflow_provider_spotbatch.control.offers import (
    REST_SECONDS,
    REST_SECONDS_MOST,
    SPOT_WAIT_SECONDS,
    choose_machines,
)
from airflow_provider_spotbatch.control.plan import Launch, RecordStop
from airflow_provider_spotbatch.control.snapshot import Counts, LaunchView, Machine, Snapshot
from airflow_provider_spotbatch.job.errors import BadRequest, NoCapacity, QuotaExceeded, Refusal, Throttled
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, SPOT_THEN_ON_DEMAND, Policy

EIGHT = Offer("spot-8", 8, usd_per_hour=0.4, types=("m6a.2xlarge", "m5a.2xlarge"))
FOUR = Offer("spot-4", 4, usd_per_hour=0.24)
ONE = Offer("spot-1", 1, usd_per_hour=0.1)
SPOTS = (EIGHT, FOUR, ONE)
DEAR = Offer("on-demand-8", 8, usd_per_hour=1.2, purchase=ON_DEMAND)

NONE_LEFT = NoCapacity("none left")


def seen(*launches: LaunchView, offers: Sequence[Offer] = SPOTS, **changes: Any) -> Snapshot:
    """A run that wants 16 slots and has none."""
    base = {
        "now": 1000.0,
        "run": 1,
        "run_age": 900.0,
        "policy": Policy(),
        "concurrency": 16,
        "counts": Counts(total=100, waiting=100, sent=0, retrying=0, ok=0, failed=0),
        "unsent": {0: 100},
        "offers": {0: tuple(offers)},
        "launches": launches,
        "next_launch": len(launches) + 1,
        "jitter": 0.5,
    }
    return Snapshot(**{**base, **changes})


def asked(
    number: int, offer: Offer, *refusals: Refusal, machines: int = 0, age: float = 1.0, memory_class: int = 0
) -> LaunchView:
    """A launch that was answered ``age`` seconds ago."""
    given = tuple(Instance(f"m{number}-{n}", number, "running", offer.slots) for n in range(machines))
    record = LaunchRecord(
        number, memory_class, (offer.slots,), purchase=offer.purchase, request={"offer": offer.name}
    )
    return LaunchView(record, LaunchOutcome(given, refusals), age=age + 1, answer_age=age)


def machines(launch: int, count: int, **changes: Any) -> list[Machine]:
    base = {"launch": launch, "memory_class": 0, "slots": 8, "state": "running", "reported": "running"}
    return [Machine(id=f"m{launch}-{n}", **{**base, **changes}) for n in range(count)]


def chosen(snapshot: Snapshot, missing: int = 16) -> tuple[str, tuple[int, ...]] | None:
    found = choose_machines(snapshot, 0, missing)
    return None if found is None else (found[0].name, found[1])


# --- full machines, then the remainder ------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "choice"),
    [
        (16, ("spot-8", (8, 8))),
        (23, ("spot-8", (8, 8))),
        (7, ("spot-4", (4,))),
        (3, ("spot-1", (1, 1, 1))),
    ],
)
def test_whole_machines_of_the_best_offer_then_the_remainder_from_smaller_ones(
    missing: int, choice: tuple[str, tuple[int, ...]]
) -> None:
    assert chosen(seen(), missing) == choice


def test_where_all_machines_are_larger_the_smallest_uses_only_the_slots_that_are_missing() -> None:
    assert chosen(seen(offers=(EIGHT, FOUR)), 3) == ("spot-4", (3,))


def test_a_record_says_what_was_asked_for_and_how_it_is_bought() -> None:
    (launch,) = [action for action in decide(seen()).actions if isinstance(action, Launch)]
    assert launch.record.offer == "spot-8"
    assert launch.record.purchase == SPOT
    assert launch.record.usd_per_hour == 0.4
    assert launch.reason == (
        "starting 2 machines with 16 slots in all (spot: m6a.2xlarge or one of 1 other types): "
        "100 items to do"
    )


# --- limits ---------------------------------------------------------------------------------------


def test_the_limit_of_machines_holds_over_all_sizes_of_memory() -> None:
    others = machines(1, 2, memory_class=1) + machines(2, 1)
    assert chosen(seen(machines=tuple(others), max_instances=4)) == ("spot-8", (8,))
    assert chosen(seen(machines=tuple(others), max_instances=3)) is None


def test_what_is_too_dear_for_the_hourly_limit_is_passed_over_for_what_is_not() -> None:
    burning = tuple(machines(1, 1, usd_per_hour=0.4))
    assert chosen(seen(machines=burning, max_usd_per_hour=1.3)) == ("spot-8", (8, 8))
    assert chosen(seen(machines=burning, max_usd_per_hour=0.7)) == ("spot-4", (4,))
    assert chosen(seen(machines=burning, max_usd_per_hour=0.6)) == ("spot-1", (1, 1))
    assert chosen(seen(machines=burning, max_usd_per_hour=0.45)) is None


def test_an_hourly_limit_below_every_machine_stops_the_job_once_nothing_is_at_work() -> None:
    burning = tuple(machines(1, 1, usd_per_hour=0.05))
    launches = (asked(1, EIGHT, machines=1),)
    (stop,) = [a for a in decide(seen(max_usd_per_hour=0.09)).actions if isinstance(a, RecordStop)]
    assert "max_usd_per_hour (0.09)" in stop.stop.message
    assert not stop.stop.retryable
    for going_on in (seen(max_usd_per_hour=0.1), seen(*launches, machines=burning, max_usd_per_hour=0.09)):
        assert not [a for a in decide(going_on).actions if isinstance(a, RecordStop)]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [NONE_LEFT, QuotaExceeded("8 vCPUs at most")])
def test_what_was_refused_rests_and_the_next_is_tried_at_once(refusal: Refusal) -> None:
    one = asked(1, EIGHT, refusal)
    assert chosen(seen(one)) == ("spot-4", (4, 4, 4, 4))
    two = asked(2, FOUR, refusal)
    assert chosen(seen(one, two)) == ("spot-1", (1,) * 16)
    assert chosen(seen(one, two, asked(3, ONE, refusal))) is None


def test_the_best_offer_is_tried_again_when_it_has_rested() -> None:
    refused = [asked(1, EIGHT, NONE_LEFT, age=REST_SECONDS + 1), asked(2, FOUR, NONE_LEFT)]
    assert chosen(seen(*refused)) == ("spot-8", (8, 8))


def test_each_refusal_in_a_row_doubles_the_rest_up_to_a_limit() -> None:
    def rest_after(refusals: int) -> float:
        row = [asked(n, ONE, NONE_LEFT, age=0.0) for n in range(1, refusals)]
        low, high = 0.0, 1000.0
        while high - low > 0.1:
            middle = (low + high) / 2
            last = asked(refusals, ONE, NONE_LEFT, age=middle)
            rests = choose_machines(seen(*row, last, offers=(ONE,)), 0, 1) is None
            low, high = (middle, high) if rests else (low, middle)
        return high

    assert [round(rest_after(n)) for n in (1, 2, 3)] == [REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS]
    assert round(rest_after(20)) == REST_SECONDS_MOST


def test_machines_that_came_end_the_row_of_refusals() -> None:
    row = [asked(n, ONE, NONE_LEFT, age=100.0) for n in range(1, 6)]
    came = asked(6, ONE, machines=1, age=50.0)
    again = asked(7, ONE, NONE_LEFT, age=REST_SECONDS + 1)
    assert chosen(seen(*row, came, again, offers=(ONE,)), 1) == ("spot-1", (1,))


def test_an_answer_in_part_is_made_up_from_the_next_offer() -> None:
    partly = asked(1, EIGHT, NONE_LEFT, machines=1)
    assert chosen(seen(partly), 8) == ("spot-4", (4, 4))


def test_who_is_throttled_leaves_all_offers_alone() -> None:
    assert chosen(seen(asked(1, EIGHT, Throttled("too many calls")))) is None
    other_class = asked(1, EIGHT, Throttled("too many calls"), memory_class=1)
    assert chosen(seen(other_class)) is None
    later = asked(1, EIGHT, Throttled("too many calls"), age=REST_SECONDS + 1)
    assert chosen(seen(later)) == ("spot-8", (8, 8))


def test_refusals_for_more_memory_do_not_hold_up_the_others() -> None:
    assert chosen(seen(asked(1, EIGHT, NONE_LEFT, memory_class=1))) == ("spot-8", (8, 8))


def test_less_than_half_a_machine_is_bought_only_where_nothing_smaller_exists_or_nothing_is_at_work() -> None:
    resting = [asked(1, FOUR, NONE_LEFT), asked(2, ONE, NONE_LEFT)]
    at_work = tuple(machines(3, 1))
    assert chosen(seen(*resting, machines=at_work), 4) == ("spot-8", (4,))
    assert chosen(seen(*resting, machines=at_work), 3) is None
    assert chosen(seen(*resting), 3) == ("spot-8", (3,))
    assert chosen(seen(offers=(EIGHT,), machines=at_work), 3) == ("spot-8", (3,))


# --- spot, then on demand -------------------------------------------------------------------------


def falling_back(*launches: LaunchView, **changes: Any) -> Snapshot:
    policy = Policy(purchase=SPOT_THEN_ON_DEMAND)
    return seen(*launches, **{"offers": (EIGHT, DEAR), "policy": policy, **changes})


def test_spot_machines_come_first() -> None:
    assert chosen(falling_back()) == ("spot-8", (8, 8))


def test_on_demand_machines_are_bought_after_a_long_wait_for_spot() -> None:
    last = asked(2, EIGHT, NONE_LEFT, age=1.0)
    assert chosen(falling_back(asked(1, EIGHT, NONE_LEFT, age=SPOT_WAIT_SECONDS - 1), last)) is None
    waited = falling_back(asked(1, EIGHT, NONE_LEFT, age=SPOT_WAIT_SECONDS), last)
    assert chosen(waited) == ("on-demand-8", (8, 8))
    (launch,) = [action for action in decide(waited).actions if isinstance(action, Launch)]
    assert launch.record.purchase == ON_DEMAND
    assert "spot machines were refused" in launch.reason


def test_after_the_wait_spot_is_still_preferred_when_its_turn_comes() -> None:
    waited = [asked(1, EIGHT, NONE_LEFT, age=SPOT_WAIT_SECONDS), asked(2, EIGHT, NONE_LEFT, age=20.0)]
    assert chosen(falling_back(*waited)) == ("spot-8", (8, 8))


@pytest.mark.parametrize(
    ("interrupted", "going_on", "choice"),
    [
        (2, 0, "spot-8"),
        (3, 0, "on-demand-8"),
        (3, 9, "on-demand-8"),
        (3, 10, "spot-8"),
        (25, 75, "on-demand-8"),
    ],
)
def test_on_demand_machines_are_preferred_once_spot_is_interrupted_too_often(
    interrupted: int, going_on: int, choice: str
) -> None:
    fleet = machines(1, interrupted, state="terminated", interrupted=True)
    fleet += machines(2, going_on)
    bought = [asked(1, EIGHT, machines=interrupted), asked(2, EIGHT, machines=going_on)]
    found = choose_machines(falling_back(*bought, machines=tuple(fleet)), 0, 16)
    assert found is not None
    assert found[0].name == choice


def test_whoever_asks_for_spot_only_never_pays_more() -> None:
    waited = [asked(1, EIGHT, NONE_LEFT, age=SPOT_WAIT_SECONDS), asked(2, EIGHT, NONE_LEFT)]
    assert chosen(seen(*waited, offers=(EIGHT,))) is None


def test_a_spot_quota_below_one_machine_leads_to_on_demand_at_once() -> None:
    refused = asked(1, EIGHT, QuotaExceeded("0 vCPUs", below_one_machine=True))
    assert chosen(falling_back(refused)) == ("on-demand-8", (8, 8))
    assert not [action for action in decide(falling_back(refused)).actions if isinstance(action, RecordStop)]


def test_a_quota_below_one_machine_stops_the_job_where_there_is_no_other_way_to_buy() -> None:
    spot = asked(1, EIGHT, QuotaExceeded("0 vCPUs", below_one_machine=True, remedy="ask for more"))
    both = asked(2, DEAR, QuotaExceeded("0 vCPUs on demand", below_one_machine=True, remedy="ask for more"))
    for snapshot in (seen(spot), falling_back(spot, both)):
        (stop,) = [action for action in decide(snapshot).actions if isinstance(action, RecordStop)]
        assert stop.stop.kind == "refused"
        assert "ask for more" in stop.stop.message


FOR_GOOD = BadRequest("no such type here")


def stops(snapshot: Snapshot) -> bool:
    return any(isinstance(action, RecordStop) for action in decide(snapshot).actions)


def test_a_launch_refused_for_good_stops_a_job_without_machines() -> None:
    assert stops(seen(asked(1, EIGHT, FOR_GOOD)))
    gone = tuple(machines(1, 1, state="terminated", reported="ended"))
    assert stops(seen(asked(1, EIGHT, machines=1), asked(2, FOUR, FOR_GOOD), machines=gone))


@pytest.mark.parametrize("refusal", [FOR_GOOD, QuotaExceeded("0 vCPUs", below_one_machine=True)])
def test_it_stops_no_job_that_has_machines_at_work(refusal: Refusal) -> None:
    launches = (asked(1, EIGHT, machines=1), asked(2, FOUR, refusal))
    assert not stops(seen(*launches, machines=tuple(machines(1, 1))))


def test_it_is_out_of_date_once_machines_were_given() -> None:
    gone = tuple(machines(2, 1, state="terminated", reported="ended"))
    assert not stops(seen(asked(1, EIGHT, FOR_GOOD), asked(2, FOUR, machines=1), machines=gone))
