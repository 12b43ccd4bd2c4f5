"""What a run may still promise its machines, and how long each may live: both caps hold with nobody
left to watch. Pure functions of the snapshot.

Every machine is promised a part of the budget when it is asked for, and its own timer ends it when that
is spent. So what all timers still allow never adds up to more than the budget.
"""

from __future__ import annotations

import math

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.snapshot import LaunchView, Snapshot

LEAST_SECONDS = 60.0
"""No machine is asked for that the budget would end sooner: EC2 bills a minute at least, and it takes about
one to boot."""


def left_usd(seen: Snapshot) -> float:
    """What is left of the budget by our reckoning; infinite without one."""
    if seen.budget_usd is None:
        return math.inf
    return max(0.0, seen.budget_usd - seen.spent_usd)


def unpromised_usd(seen: Snapshot) -> float:
    """What is left of the budget beside what the machines at work may still spend by their timers."""
    if seen.budget_usd is None:
        return math.inf
    launches = {view.record.number: view for view in seen.launches}
    promised = math.fsum(
        machine.usd_per_hour * _seconds_left(launches.get(machine.launch)) / 3600
        for machine in seen.machines
        if not machine.ended
    )
    return max(0.0, left_usd(seen) - promised)


def affordable(seen: Snapshot, offer: Offer) -> float:
    """How many machines of an offer the budget has room for; infinite where nothing limits them."""
    if seen.budget_usd is None or offer.usd_per_hour <= 0:
        return math.inf
    return math.floor(unpromised_usd(seen) / least_usd(offer.usd_per_hour) + 1e-9)


def least_usd(usd_per_hour: float) -> float:
    """What a machine must be promised at least, in dollars."""
    return usd_per_hour * LEAST_SECONDS / 3600


def lifetime_seconds(seen: Snapshot, offer: Offer, slots: tuple[int, ...], missing: int) -> float:
    """Of each machine of a launch: the job's time left, or its share of the budget over its price.

    ``slots``: of each machine of the launch, of ``missing`` that the run wants and may have: those that are
    asked for later get their share too.
    """
    time_left = max(0.0, seen.policy.max_runtime - seen.run_age)
    if seen.budget_usd is None or offer.usd_per_hour <= 0:
        return time_left
    asked = sum(slots)
    share_usd = unpromised_usd(seen) * asked / max(asked, missing) / len(slots)
    return min(time_left, max(LEAST_SECONDS, share_usd / offer.usd_per_hour * 3600))


def _seconds_left(launch: LaunchView | None) -> float:
    """Of the machines of a launch, by the record's age, as what they have spent: together that is what they
    were promised."""
    if launch is None or launch.record.lifetime_seconds is None:
        return 0.0
    return max(0.0, launch.record.lifetime_seconds - launch.age)
