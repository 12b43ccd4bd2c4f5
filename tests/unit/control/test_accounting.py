"""What the money went for: machines and their times in, the parts of the cost out."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.control.accounting import (
    MachineTime,
    spending_line,
    spending_of,
    usd_per_thousand,
)
from airflow_provider_spotbatch.job.spending import Spending

HOUR = MachineTime(
    slots=4,
    usd=0.36,
    usd_per_hour=0.36,
    on_demand_usd_per_hour=1.0,
    reported_seconds=3600.0,
    up_seconds=3000.0,
    worked_seconds=4 * 2000.0,
    broken_seconds=4 * 250.0,
)
"""A machine of four slots that was paid for an hour: $0.0001 a second."""


def test_an_hour_is_told_by_what_it_was_spent_on() -> None:
    spending = spending_of([HOUR])
    assert asdict(spending) == pytest.approx(
        {
            "boot_usd": 0.06,
            "work_usd": 0.20,
            "lost_usd": 0.025,
            "idle_usd": 0.075,
            "priced_usd": 0.36,
            "on_demand_usd": 1.0,
        }
    )
    assert spending.saving == pytest.approx(0.64)


def test_a_machine_that_never_reported_only_booted() -> None:
    spending = spending_of([MachineTime(slots=2, usd=0.05, usd_per_hour=0.3)])
    assert (spending.boot_usd, spending.total_usd) == (0.05, 0.05)


def test_a_machine_whose_agent_never_came_up_only_booted() -> None:
    failed = replace(HOUR, usd=0.01, reported_seconds=100.0, up_seconds=0.0)
    assert spending_of([failed]).boot_usd == 0.01


def test_where_the_price_on_demand_is_unknown_no_saving_is_claimed() -> None:
    spending = spending_of([replace(HOUR, on_demand_usd_per_hour=0.0)])
    assert spending.saving is None
    mixed = spending + spending_of([HOUR])
    assert mixed.saving == pytest.approx(0.64)


def test_machines_that_cost_nothing_have_no_account() -> None:
    assert spending_of([replace(HOUR, usd=0.0, usd_per_hour=0.0)]) == Spending()


seconds = st.floats(0, 1e6)
machines = st.builds(
    MachineTime,
    slots=st.integers(1, 64),
    usd=st.floats(0, 1000),
    usd_per_hour=st.floats(0, 50),
    on_demand_usd_per_hour=st.floats(0, 50),
    reported_seconds=st.none() | seconds,
    up_seconds=seconds,
    worked_seconds=seconds,
    broken_seconds=seconds,
)


@given(st.lists(machines, max_size=5))
def test_the_parts_add_up_to_the_cost_and_none_is_below_zero(given_machines: list[MachineTime]) -> None:
    spending = spending_of(given_machines)
    assert all(part >= 0 for part in asdict(spending).values())
    paid = sum(machine.usd for machine in given_machines if machine.usd_per_hour > 0)
    assert spending.total_usd == pytest.approx(paid)


def test_the_line_tells_apart_what_is_of_all_runs_and_what_of_the_last() -> None:
    line = spending_line(0.72, 1800, spending_of([HOUR]), resumed=True)
    cost, _, saving, shares = line.split(" · ")
    assert cost == "cost $0.7200 in all runs"
    assert saving.startswith("this run about 64 % less than on demand")
    assert shares.startswith("paid time of this run: ")


def test_the_line_tells_cost_saving_and_shares() -> None:
    line = spending_line(0.36, 1800, spending_of([HOUR]))
    assert line == (
        "cost $0.3600 · $0.2000 per 1,000 items · about 64 % less than on demand ($1.0000) · "
        "paid time: 56 % work, 7 % lost to interruptions, 17 % boot, 21 % idle"
    )


def test_the_line_of_a_job_without_results_tells_its_cost_alone() -> None:
    assert spending_line(0.5, 0, None) == "cost $0.5000"


def test_dearer_than_on_demand_is_told_as_such() -> None:
    dear = spending_of([replace(HOUR, on_demand_usd_per_hour=0.18)])
    assert "about 100 % more than on demand" in spending_line(0.36, 1, dear)


def test_a_spending_is_read_as_it_was_written() -> None:
    spending = spending_of([HOUR])
    assert Spending.from_json(spending.to_json()).total_usd == pytest.approx(spending.total_usd, abs=1e-5)


def test_no_items_cost_nothing_per_thousand() -> None:
    assert usd_per_thousand(1.0, 0) == 0.0
    assert usd_per_thousand(1.0, 500) == 2.0
