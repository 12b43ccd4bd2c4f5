"""What a job will cost: the machines that the control loop would ask for, their price and the job's."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.estimate import (
    BOOT_SECONDS,
    Estimate,
    estimate,
    forbidden_by,
    price_line,
    snapshot_of,
)
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT_THEN_ON_DEMAND, Policy

EIGHT = Offer(
    "spot-8",
    8,
    usd_per_hour=0.4,
    expected_usd_per_hour=0.32,
    on_demand_usd_per_hour=1.0,
    types=("m6a.2xlarge", "m5a.2xlarge"),
)
TWO = Offer("spot-2", 2, usd_per_hour=0.12, expected_usd_per_hour=0.1, on_demand_usd_per_hour=0.25)
DEAR = Offer("on-demand-8", 8, usd_per_hour=1.0, purchase=ON_DEMAND)


def of(
    *offers: Offer,
    concurrency: int = 16,
    items: int = 1000,
    policy: Policy | None = None,
    item_seconds: float | None = None,
    **limits: Any,
) -> Estimate:
    seen = snapshot_of(offers or (EIGHT, TWO), policy or Policy(), concurrency, items, **limits)
    return estimate(seen, item_seconds)


def fleet(expected: Estimate) -> dict[str, int]:
    return {offer.name: count for offer, count in expected.machines}


def test_whole_machines_of_the_best_offer_and_the_remainder_from_a_smaller_one() -> None:
    expected = of(concurrency=20)
    assert fleet(expected) == {"spot-8": 2, "spot-2": 2}
    assert expected.slots == 20
    assert expected.usd_per_hour == pytest.approx(2 * 0.32 + 2 * 0.1)
    assert expected.most_usd_per_hour == pytest.approx(2 * 0.4 + 2 * 0.12)
    assert expected.on_demand_usd_per_hour == pytest.approx(2 * 1.0 + 2 * 0.25)


@pytest.mark.parametrize(
    ("policy", "limits", "told"),
    [
        (Policy(), {"max_usd_per_hour": 0.1}, r"max_usd_per_hour .*\(\$0.1\) allows no machine: .* \$0.1200"),
        (Policy(budget_usd=0.0001), {}, r"the budget of \$0.0001 pays for no machine: .* \$0.0020"),
    ],
)
def test_a_limit_that_allows_no_machine_is_named(policy: Policy, limits: dict[str, Any], told: str) -> None:
    seen = snapshot_of((EIGHT, TWO), policy, 16, 1000, **limits)
    assert estimate(seen).machines == ()
    assert re.match(told, forbidden_by(seen))


def test_limits_that_allow_a_machine_are_not_told() -> None:
    seen = snapshot_of((EIGHT, TWO), Policy(budget_usd=0.002), 16, 1000, max_usd_per_hour=0.12)
    assert fleet(estimate(seen)) == {"spot-2": 1}
    assert forbidden_by(seen) == ""


def test_a_job_of_few_items_gets_few_machines() -> None:
    assert fleet(of(items=2)) == {"spot-2": 1}


def test_limits_of_the_connection_hold() -> None:
    assert fleet(of(concurrency=64, max_instances=3)) == {"spot-8": 3}
    assert fleet(of(concurrency=64, max_usd_per_hour=0.85)) == {"spot-8": 2}


def test_a_small_budget_gives_no_more_machines_than_it_pays_for() -> None:
    seen = snapshot_of((EIGHT,), Policy(), 64, 1000)
    assert fleet(estimate(replace(seen, budget_usd=2.5 * 0.4 / 60))) == {"spot-8": 2}


def test_spot_comes_first_where_both_are_allowed() -> None:
    both = of(EIGHT, DEAR, policy=Policy(purchase=SPOT_THEN_ON_DEMAND))
    assert fleet(both) == {"spot-8": 2}


def test_an_unknown_price_on_demand_is_none() -> None:
    assert of(Offer("spot-8", 8, usd_per_hour=0.4)).on_demand_usd_per_hour is None


def test_the_whole_job_takes_its_boot_and_its_rounds_of_items() -> None:
    expected = of(items=1000, concurrency=16, item_seconds=36.0)
    assert expected.seconds == BOOT_SECONDS + 63 * 36.0
    assert expected.usd == pytest.approx(expected.usd_per_hour * expected.seconds / 3600)


def test_without_the_time_of_an_item_only_the_hour_is_told() -> None:
    assert (of().seconds, of().usd) == (None, None)


def test_the_line_before_the_launch_names_machines_prices_and_how_long_the_budget_lasts() -> None:
    assert price_line(of(concurrency=16), 1.28) == (
        "16 slots on 2 machines of 8 slots (spot: m6a.2xlarge or one of 1 other types) · "
        "about $0.6400 an hour, $0.8000 at most · $2.0000 on demand · the budget of $1.28 lasts 2.0 h"
    )


def test_machines_that_cost_nothing_have_no_line() -> None:
    assert price_line(of(Offer("local", 4))) == ""


@pytest.mark.parametrize(
    ("offers", "words"),
    [
        ((replace(EIGHT, estimated=True),), "$2.0000 on demand (estimated)"),
        ((replace(DEAR, estimated=True),), "about $2.0000 an hour (estimated)"),
    ],
)
def test_prices_that_the_cloud_did_not_tell_are_said_to_be_estimated(
    offers: tuple[Offer, ...], words: str
) -> None:
    told = price_line(of(*offers, policy=Policy(purchase=offers[0].purchase)))
    assert words in told
    assert told.count("(estimated)") == 1
    assert "estimated" not in price_line(of())
