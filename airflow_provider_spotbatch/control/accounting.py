"""What the money went for: pure sums over machines, their prices and what their agents told of their time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_spotbatch.job.spending import Spending


@dataclass(frozen=True)
class MachineTime:
    """One machine of a run. ``usd``: what it cost so far; prices per hour, ``on_demand_usd_per_hour`` 0 where
    it is not known; ``reported_seconds``: from its launch to its agent's last report, None before the first.

    By that report: ``up_seconds`` since the agent could take work; ``worked_seconds`` and ``broken_seconds``
    of its slots, summed, with chunks that ran to their end, and with those that were broken off.
    """

    slots: int
    usd: float
    usd_per_hour: float
    on_demand_usd_per_hour: float = 0.0
    reported_seconds: float | None = None
    up_seconds: float = 0.0
    worked_seconds: float = 0.0
    broken_seconds: float = 0.0


def spending_of(machines: Iterable[MachineTime]) -> Spending:
    """The parts of what the machines cost: they add up to it."""
    return sum(map(_spending, machines), Spending())


def _spending(machine: MachineTime) -> Spending:
    """Each part is cut to what is left of the machine's cost: clocks and reports are never quite right."""
    if machine.usd <= 0 or machine.usd_per_hour <= 0:
        return Spending()
    per_second = machine.usd_per_hour / 3600
    left = machine.usd
    booted = machine.reported_seconds is not None and machine.up_seconds > 0
    boot = left if not booted else min(left, per_second * max(0.0, _boot_seconds(machine)))
    left -= boot
    work = min(left, per_second / machine.slots * machine.worked_seconds)
    left -= work
    lost = min(left, per_second / machine.slots * machine.broken_seconds)
    on_demand = machine.usd * machine.on_demand_usd_per_hour / machine.usd_per_hour
    return Spending(
        work_usd=work,
        lost_usd=lost,
        boot_usd=boot,
        idle_usd=left - lost,
        priced_usd=machine.usd if on_demand else 0.0,
        on_demand_usd=on_demand,
    )


def _boot_seconds(machine: MachineTime) -> float:
    return (machine.reported_seconds or 0.0) - machine.up_seconds


def usd_per_thousand(usd: float, items: int) -> float:
    """Dollars per 1,000 items that have a result."""
    return 1000 * usd / items if items else 0.0


def spending_line(cost_usd: float, ok: int, spending: Spending | None, *, resumed: bool = False) -> str:
    """The account of a job in one line. ``cost_usd``: of all its runs; ``ok``: its items with a result;
    ``spending``: of the last run, which is told apart where it ``resumed`` what others paid for."""
    parts = [f"cost ${cost_usd:.4f}" + (" in all runs" if resumed else "")]
    if ok:
        parts.append(f"${usd_per_thousand(cost_usd, ok):.4f} per 1,000 items")
    if spending is not None and spending.saving is not None:
        less = f"{100 * abs(spending.saving):.0f} % {'less' if spending.saving >= 0 else 'more'}"
        saved = f"about {less} than on demand (${spending.on_demand_usd:.4f})"
        parts.append(f"this run {saved}" if resumed else saved)
    if spending is not None and spending.total_usd > 0:
        shares = (
            ("work", spending.work_usd),
            ("lost to interruptions", spending.lost_usd),
            ("boot", spending.boot_usd),
            ("idle", spending.idle_usd),
        )
        parts.append(
            f"paid time{' of this run' if resumed else ''}: "
            + ", ".join(f"{100 * usd / spending.total_usd:.0f} % {what}" for what, usd in shares)
        )
    return " · ".join(parts)
