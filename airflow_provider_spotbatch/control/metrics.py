"""What a run tells those who watch many: counters, gauges and timings, for whatever collects them.

A counter is told as differences: what a run had counted stands in its ``progress.json``, so the process
that drives it next goes on from there. What was counted since that was last written (10 s at most) is
counted twice where a process is killed and another takes over, and so is what two processes count that
drive one run at the same time; what happened while nobody drove is counted by whoever does next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_spotbatch.job.outcome import OK
from airflow_provider_spotbatch.job.report import DRAINING

if TYPE_CHECKING:
    from airflow_provider_spotbatch.control.snapshot import Snapshot
    from airflow_provider_spotbatch.job.launches import LaunchOutcome
    from airflow_provider_spotbatch.job.run_outcome import Outcome

PREFIX = "spotbatch"

Tags = Mapping[str, str]


class Metrics(Protocol):
    """Takes figures from an event loop: returns at once, does no I/O there and never raises.

    Names are dotted; tags have few values each.
    """

    def count(self, name: str, value: int, tags: Tags) -> None:
        """Add to a counter. ``value`` above 0."""

    def timing(self, name: str, seconds: float, tags: Tags) -> None:
        """One measured duration."""

    def gauges(self, source: str, values: Mapping[str, float], tags: Tags) -> None:
        """All gauges of one source, instead of what it had before; none withdraws it. Gauges of one name
        are summed over the sources that have the same tags."""

    def flush(self) -> None:
        """Send what is held; may block. For a process that is about to end."""


class Silent:
    """Metrics that nobody collects."""

    def count(self, name: str, value: int, tags: Tags) -> None: ...

    def timing(self, name: str, seconds: float, tags: Tags) -> None: ...

    def gauges(self, source: str, values: Mapping[str, float], tags: Tags) -> None: ...

    def flush(self) -> None: ...


SILENT = Silent()


@dataclass(frozen=True)
class Tally:
    """What was counted of a run so far: items that succeeded, those that failed by cause, what its
    generation cost, and whether any item of the run had ended."""

    ok: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    spent_usd: float = 0.0
    begun: bool = False

    @classmethod
    def of_progress(cls, stored: Mapping[str, Any] | None, carried: int, spent_before: float) -> Tally:
        """What the process before had counted, by the ``progress.json`` it left (None: there was none).

        ``carried``: items that earlier runs finished; ``spent_before``: dollars that they cost.
        """
        if stored is None:
            return cls(ok=carried, spent_usd=spent_before)
        return cls(
            stored["ok"],
            stored["causes"],
            max(spent_before, stored["spent_usd"]),
            stored["ok"] > carried or stored["failed"] > 0,
        )


def counted(before: Tally, now: Tally) -> Iterator[tuple[str, int]]:
    """The counters that grew, and by how much. An item that failed and succeeded after all was counted
    as failed: no counter goes back."""
    if now.ok > before.ok:
        yield f"items.{OK}", now.ok - before.ok
    for cause, count in sorted(now.causes.items()):
        if count > before.causes.get(cause, 0):
            yield f"items.{cause}", count - before.causes.get(cause, 0)
    cost = _microdollars(now.spent_usd) - _microdollars(before.spent_usd)
    if cost > 0:
        yield "cost_microdollars", cost


def gauges_of(seen: Snapshot) -> dict[str, float]:
    """The run as it stands: items, slots and machines by state."""
    machines = [machine for machine in seen.machines if not machine.ended]
    at_work = [machine for machine in machines if machine.booted]
    draining = sum(machine.reported == DRAINING for machine in at_work)
    busy = min(seen.counts.sent, sum(min(len(machine.held), machine.slots) for machine in at_work))
    return {
        "items.open": seen.counts.open,
        "items.retrying": seen.counts.retrying,
        "slots.total": sum(machine.slots for machine in machines),
        "slots.busy": busy,
        "machines.booting": len(machines) - len(at_work),
        "machines.running": len(at_work) - draining,
        "machines.draining": draining,
    }


class RunMetrics:
    """The metrics of one run, as one process tells them. ``told``: what was counted before."""

    def __init__(self, metrics: Metrics, source: str, tags: Tags, told: Tally) -> None:
        self._metrics = metrics
        self._source = source
        self._tags = tags
        self._told = told

    def looked(self, seen: Snapshot, causes: Mapping[str, int]) -> None:
        """What is new since the last look, and how the run stands. ``causes``: of the failed items."""
        self._grown(Tally(seen.counts.ok, dict(causes), seen.spent_usd, seen.outcomes > 0), seen.run_age)
        gauges = {f"{PREFIX}.{name}": value for name, value in gauges_of(seen).items()}
        self._metrics.gauges(self._source, gauges, self._tags)

    def ticked(self, seconds: float) -> None:
        self._count("ticks.done")
        self._metrics.timing(f"{PREFIX}.tick.duration", seconds, self._tags)

    def tick_failed(self) -> None:
        self._count("ticks.failed")

    def launched(self, outcome: LaunchOutcome) -> None:
        """A launch has its answer: counted by the one process that recorded it."""
        self._count("machines.launched", len(outcome.instances))
        for refusal in outcome.refusals:
            self._count(f"launches.refused.{refusal.kind}")

    def lost(self, cause: str) -> None:
        """A machine ended with work in hand: ``interrupted`` or ``lost``."""
        self._count(f"machines.{cause}")

    def retried(self, items: int) -> None:
        self._count("items.retried", items)

    def finished(self, outcome: Outcome) -> None:
        """The run is over: told by the one process that recorded its outcome."""
        spent = outcome.cost_usd or 0.0
        seconds = outcome.ended - outcome.started
        self._grown(Tally(outcome.ok, outcome.causes, spent, self._told.begun), seconds)
        self._count(f"jobs.{outcome.state}")
        self._metrics.timing(f"{PREFIX}.job.duration", seconds, self._tags)

    def leave(self) -> None:
        """This process drives the run no longer."""
        self._metrics.gauges(self._source, {}, self._tags)

    def _grown(self, now: Tally, age: float) -> None:
        for name, grown in counted(self._told, now):
            self._count(name, grown)
        if now.begun and not self._told.begun:
            self._metrics.timing(f"{PREFIX}.job.first_item", age, self._tags)
        self._told = now

    def _count(self, name: str, value: int = 1) -> None:
        if value:
            self._metrics.count(f"{PREFIX}.{name}", value, self._tags)


def _microdollars(usd: float) -> int:
    return round(usd * 1_000_000)
