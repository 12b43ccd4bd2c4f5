"""Sizing on recorded prices: what a job's machines cost and how it is spread over them, next to
Meadowrun's choices and to the cheapest single type under our own rules.

Meadowrun's choices are those of its release 0.2.16, whose own code was run on the same table. It keeps
no memory for system and agent, and fills as few machines as it can: the same slots, not the same promise.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_spotbatch.backends.machine_sizing import (
    SHARE,
    Extras,
    MachinePlan,
    plan_machines,
    slots_on,
)
from airflow_provider_spotbatch.job.policy import SPOT
from airflow_provider_spotbatch.job.resources import Resources
from benchmarks.recorded_prices import recorded
from benchmarks.table import Row

DISK_GB = 16_384.0
"""The largest volume of EC2's general purpose disks."""

EXTRAS = Extras(usd_per_disk_gb=0.08 / 730)
"""Of EC2's general purpose disks. What machines cost here is without them, as in the record."""

ARCHITECTURES = ("x86_64",)
"""The record holds no others."""


@dataclass(frozen=True)
class Case:
    """A job, and what Meadowrun asks for: dollars per hour, and of which machines as far as is known."""

    concurrency: int
    resources: Resources
    peer: str
    peer_usd: float


CASES = [
    Case(64, Resources(cpus=1, memory_gb=2), ", 1 machine, 100% on the largest", 0.621),
    Case(100, Resources(cpus=1, memory_gb=4), ", 1 machine, 100% on the largest", 1.3409),
    Case(1000, Resources(cpus=1, memory_gb=2), "", 10.17),
]
"""The second price is that of its one m6id.32xlarge in the table."""


MOST_ABOVE = 1.15
"""What a slot may cost at most, over the cheapest single type: the price of spreading a job."""


def sizing_on_recorded_prices() -> list[Row]:
    """Rows for ``make bench``: our price over Meadowrun's, and over that of the cheapest single type."""
    return [row for case in CASES for row in _rows(case)]


def _rows(case: Case) -> list[Row]:
    layout = fill(_plans(case), case.concurrency)
    usd = sum(_usd(plan) * machines for plan, machines in layout)
    machines = sum(count for _, count in layout)
    largest = max(plan.slots for plan, _ in layout) / case.concurrency
    types = len({name for plan, _ in layout for name in plan.types})
    single = cheapest_single_type(case)
    name = f"{case.concurrency} × ({case.resources.cpus:g} CPU, {case.resources.memory_gb:g} GB)"
    return [
        Row(
            f"machines for {name}",
            f"${usd:.3f}/h, {machines} machines of {types} types, {largest:.0%} on the largest",
            f"Meadowrun: ${case.peer_usd:.3f}/h{case.peer}",
            f"{usd / case.peer_usd:.2f}",
        ),
        Row(
            "  the same, cheapest single type under our rules",
            f"${usd:.3f}/h",
            f"${single:.3f}/h, at most {MOST_ABOVE - 1:.0%} above",
            f"{usd / single:.2f}",
            usd <= MOST_ABOVE * single and largest <= 1 / SHARE,
        ),
    ]


def _plans(case: Case) -> list[MachinePlan]:
    types, prices = recorded()
    return plan_machines(
        types,
        prices,
        case.resources,
        concurrency=case.concurrency,
        purchases=(SPOT,),
        architectures=ARCHITECTURES,
        most_disk_gb=DISK_GB,
        extras=EXTRAS,
    )


def fill(plans: list[MachinePlan], missing: int) -> list[tuple[MachinePlan, int]]:
    """How the control loop fills a job's slots where nothing is refused: plans and machines of each."""
    layout = []
    for plan in plans:
        if plan.slots <= missing:
            layout.append((plan, missing // plan.slots))
            missing %= plan.slots
    if missing:
        layout.append((min(plans, key=lambda plan: plan.slots), 1))
    return layout


def _usd(plan: MachinePlan) -> float:
    """Dollars per hour of a machine: the mean over the types that EC2 may choose."""
    mean = sum(pool.usd_per_hour for pool in plan.pools) / len(plan.pools)
    return mean - EXTRAS.usd_per_hour(plan.disk_gb)


def cheapest_single_type(case: Case) -> float:
    """Dollars per hour of the job on the best single type, no machine above a quarter of its slots."""
    types, prices = recorded()
    usual = [each for each in types if each.usual and not each.gpus]
    holding = {each.name: slots_on(each, case.resources, DISK_GB) for each in usual}
    most = case.concurrency // SHARE
    return case.concurrency * min(
        price.usd_per_hour / min(slots, most)
        for price in prices
        if price.purchase == SPOT and (slots := holding.get(price.type, 0))
    )
