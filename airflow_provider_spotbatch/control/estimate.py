"""What a job's machines will cost, before any is started. Pure functions of the snapshot and its offers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.budget import least_usd
from airflow_provider_spotbatch.control.offers import choose_machines, in_words
from airflow_provider_spotbatch.control.snapshot import Counts, Machine, Snapshot
from airflow_provider_spotbatch.control.wording import duration, some
from airflow_provider_spotbatch.job.launches import PENDING
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, Policy

BOOT_SECONDS = 90.0
"""From a machine's launch to its first item: EC2 and cloud-init take about a minute, the archives the rest.
Paid for, and part of every estimate."""


@dataclass(frozen=True)
class Estimate:
    """``machines``: offers with how many machines of each; money in US dollars, per hour for all of them:
    expected, at most, and on demand (None where that price is not known).

    ``seconds`` and ``usd`` of the whole job are None where nobody said how long an item takes.
    """

    machines: tuple[tuple[Offer, int], ...]
    items: int
    slots: int
    usd_per_hour: float
    most_usd_per_hour: float
    on_demand_usd_per_hour: float | None
    seconds: float | None = None
    usd: float | None = None


def snapshot_of(
    offers: tuple[Offer, ...],
    policy: Policy,
    concurrency: int,
    items: int,
    *,
    max_instances: int | None = None,
    max_usd_per_hour: float | None = None,
) -> Snapshot:
    """A job that has not begun, as the control loop will see it."""
    return Snapshot(
        now=0.0,
        run=1,
        run_age=0.0,
        policy=policy,
        concurrency=concurrency,
        counts=Counts(items, items, 0, 0, 0, 0),
        offers={0: offers},
        max_instances=max_instances,
        max_usd_per_hour=max_usd_per_hour,
        budget_usd=policy.budget_usd,
        unsent={0: items},
    )


def estimate(seen: Snapshot, item_seconds: float | None = None) -> Estimate:
    """The machines that the control loop would ask for if every launch were granted, and their cost.

    ``item_seconds``: what one item takes on one slot.
    """
    items = seen.counts.open
    fleet = _fleet(seen, min(seen.concurrency, items))
    slots = sum(offer.slots * count for offer, count in fleet)
    usd_per_hour = math.fsum((offer.expected_usd_per_hour or offer.usd_per_hour) * n for offer, n in fleet)
    known = all(offer.on_demand_usd_per_hour for offer, _ in fleet)
    seconds = usd = None
    if item_seconds is not None and slots:
        boot = BOOT_SECONDS if usd_per_hour else 0.0  # where nothing is paid nothing boots
        seconds = boot + math.ceil(items / min(slots, seen.concurrency)) * item_seconds
        usd = usd_per_hour * seconds / 3600
    return Estimate(
        machines=tuple(fleet),
        items=items,
        slots=min(slots, seen.concurrency),
        usd_per_hour=usd_per_hour,
        most_usd_per_hour=math.fsum(offer.usd_per_hour * n for offer, n in fleet),
        on_demand_usd_per_hour=math.fsum(offer.on_demand_usd_per_hour * n for offer, n in fleet)
        if known
        else None,
        seconds=seconds,
        usd=usd,
    )


def _fleet(seen: Snapshot, slots: int) -> list[tuple[Offer, int]]:
    """The launches that the loop would make one after the other."""
    offers = {offer.name: offer for offer in seen.offers[0]}
    counts: Counter[str] = Counter()
    machines: tuple[Machine, ...] = ()
    missing, promised = slots, seen.spent_usd
    while missing > 0:
        choice = choose_machines(replace(seen, machines=machines, spent_usd=promised), 0, missing)
        if choice is None:
            break
        offer, asked = choice
        promised += len(asked) * least_usd(offer.usd_per_hour)
        counts[offer.name] += len(asked)
        machines += tuple(Machine("", 1, 0, each, PENDING, usd_per_hour=offer.usd_per_hour) for each in asked)
        missing -= sum(asked)
    return [(offers[name], count) for name, count in counts.items()]


def forbidden_by(seen: Snapshot) -> str:
    """Which limit allows not even one machine, in words; "" where none does so."""
    least = min((offer.usd_per_hour for offer in seen.offers[0]), default=0.0)
    if seen.max_usd_per_hour is not None and least > seen.max_usd_per_hour:
        return (
            f"max_usd_per_hour of the connection (${seen.max_usd_per_hour:g}) allows no machine: the "
            f"cheapest may cost ${least:.4f} an hour"
        )
    if seen.budget_usd is not None and least_usd(least) > seen.budget_usd:
        return (
            f"the budget of ${seen.budget_usd:g} pays for no machine: a minute of the cheapest may cost "
            f"${least_usd(least):.4f}"
        )
    return ""


def price_line(expected: Estimate, budget_usd: float | None = None) -> str:
    """What is about to be paid, in one line; "" where nothing is."""
    if not expected.usd_per_hour:
        return ""
    machines = ", ".join(
        f"{some(n, 'machine')} of {some(offer.slots, 'slot')} ({in_words(offer)})"
        for offer, n in expected.machines
    )
    parts = [f"{some(expected.slots, 'slot')} on {machines}", f"about ${expected.usd_per_hour:.4f} an hour"]
    if expected.most_usd_per_hour > expected.usd_per_hour:
        parts[-1] += f", ${expected.most_usd_per_hour:.4f} at most"
    estimated = " (estimated)" if any(offer.estimated for offer, _ in expected.machines) else ""
    if any(offer.estimated and offer.purchase == ON_DEMAND for offer, _ in expected.machines):
        parts[-1] += estimated
    if expected.on_demand_usd_per_hour and any(offer.purchase == SPOT for offer, _ in expected.machines):
        parts.append(f"${expected.on_demand_usd_per_hour:.4f} on demand{estimated}")
    if budget_usd is not None:
        parts.append(
            f"the budget of ${budget_usd:g} lasts {duration(3600 * budget_usd / expected.usd_per_hour)}"
        )
    return " · ".join(parts)
