"""How a run stands in detail, look after look: items, machines, what is awaited and why.

Everything comes from the store, so it works from anywhere and disturbs nobody. What the controller wrote
last is the truth; what machines have reported since then is added to it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.history import reasons_from_bytes
from airflow_provider_spotbatch.control.narrate import awaited
from airflow_provider_spotbatch.control.run_summary import (
    RUNNING,
    UNFINISHED,
    Progress,
    RunDocuments,
    RunSummary,
    read_outcome,
    read_progress,
    summarize,
)
from airflow_provider_spotbatch.control.snapshot import Counts, Machine
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keys import Run, launch_entry
from airflow_provider_spotbatch.job.launches import RUNNING as THERE
from airflow_provider_spotbatch.job.launches import TERMINATED, Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import SHOWN_ITEMS, Report
from airflow_provider_spotbatch.job.run_outcome import Outcome

AT_ONCE = 32
"""Reports read at the same time."""

SHOWN_REASONS = 5

HISTORY_OBJECTS = 3
"""The newest ticks of the history that reasons are taken from: a tick may have had none."""

RATE_SECONDS = 30.0
"""Span over which the rate is measured while a run is watched."""

RATE_SECONDS_LEAST = 3.0
"""Below it a rate says little: the mean since the run's start is told instead."""


@dataclass(frozen=True)
class MachineStatus:
    """A machine as its launch and its own reports tell of it. ``state``: booting, running, draining,
    ended, lost or interrupted."""

    machine: Machine
    state: str
    report: Report | None

    @property
    def running(self) -> int:
        """Items that run there at the moment."""
        if self.report is None or self.machine.ended:
            return 0
        named = len(self.report.running)
        return named if named < SHOWN_ITEMS else max(named, min(self.machine.slots, len(self.report.held)))

    def to_json(self) -> dict[str, Any]:
        report = self.report
        return {
            "id": self.machine.id,
            "state": self.state,
            "slots": self.machine.slots,
            "memory_class": self.machine.memory_class,
            "usd_per_hour": self.machine.usd_per_hour,
            "reason": self.machine.reason,
            "running": self.running,
            "ok": report.items_ok if report else 0,
            "failed": report.items_failed if report else 0,
            "items": [item.__dict__ for item in report.running] if report and self.running else [],
        }


@dataclass(frozen=True)
class Reason:
    """Something the controller did. ``at``: the minute it was done in, seconds since the epoch."""

    at: float
    text: str


@dataclass(frozen=True)
class Status:
    """One picture of a run. ``rate``: items per second, None while nothing ended; ``awaited``: what
    keeps open items from running; ``stopping``: why the run was stopped or cancelled, if it was.
    """

    summary: RunSummary
    policy: Policy
    concurrency: int
    counts: Counts
    machines: tuple[MachineStatus, ...]
    rate: float | None
    awaited: str
    stopping: str
    reasons: tuple[Reason, ...]

    @property
    def live(self) -> bool:
        """Whether more is to be expected of it."""
        return self.summary.state in (RUNNING, UNFINISHED)

    @property
    def running(self) -> int:
        return sum(machine.running for machine in self.machines)

    @property
    def seconds_left(self) -> float | None:
        return self.counts.open / self.rate if self.rate and self.live else None

    def to_json(self, now: float) -> dict[str, Any]:
        return {
            **self.summary.to_json(now),
            "concurrency": self.concurrency,
            "running": self.running,
            "retrying": self.counts.retrying,
            "open": self.counts.open,
            "rate": self.rate,
            "seconds_left": self.seconds_left,
            "budget_usd": self.policy.budget_usd,
            "max_runtime": self.policy.max_runtime,
            "awaited": self.awaited,
            "stopping": self.stopping,
            "machine_list": [machine.to_json() for machine in self.machines],
            "reasons": [reason.__dict__ for reason in self.reasons],
        }


@dataclass
class _Launches:
    records: dict[int, LaunchRecord] = field(default_factory=dict)
    answers: dict[int, LaunchOutcome] = field(default_factory=dict)


class Watcher:
    """Looks at one run again and again; what cannot change is read once."""

    def __init__(self, store: Store, documents: RunDocuments) -> None:
        self._store = store
        self._documents = documents
        self._run: Run = documents.run
        self._launches = _Launches()
        self._reports: dict[str, tuple[str, Report]] = {}
        self._losses: dict[str, str] = {}
        self._reasons: dict[str, list[Reason]] = {}
        self._carried: int | None = None
        self._looks: list[tuple[float, int]] = []

    async def look(self, now: float) -> Status:
        """The run as it stands. ``now``: seconds since the epoch."""
        outcome, progress, cancelled, stopped = await asyncio.gather(
            read_outcome(self._store, self._documents),
            read_progress(self._store, self._run),
            self._store.read(self._run.cancel),
            self._store.read(self._run.stop),
        )
        if outcome is None and not await self._store.exists(self._run.run):
            job = self._run.generation.job
            raise SpotBatchError(f"job {job} was removed from {self._store.uri} meanwhile")
        await asyncio.gather(
            self._read_launches(),
            self._read_reports(),
            self._read_losses(),
            self._read_history(),
            self._read_carried(),
        )
        over = outcome is not None
        machines = tuple(self._machines(over))
        summary = summarize(
            self._documents,
            outcome,
            progress,
            cancelled=cancelled is not None,
            machines=len(machines),
            now=now,
        )
        counts = self._counts(summary, progress, machines)
        summary = replace(summary, ok=counts.ok)
        answers = self._launches.answers
        last_launch = answers[max(answers)] if answers else None
        seen = [status.machine for status in machines]
        reasons = [reason for name in sorted(self._reasons) for reason in self._reasons[name]]
        return Status(
            summary=summary,
            policy=self._documents.record.policy,
            concurrency=self._documents.record.concurrency,
            counts=counts,
            machines=machines,
            rate=self._rate(summary, now),
            awaited="" if over else awaited(counts, seen, last_launch, None),
            stopping="" if over else _stopping(self._run, cancelled, stopped),
            reasons=tuple(reasons[-SHOWN_REASONS:]),
        )

    # --- reading ---------------------------------------------------------------------------------

    async def _read_launches(self) -> None:
        known = self._launches
        for entry in await self._store.list_objects(self._run.launches):
            with reading(entry.name):
                number, kind = launch_entry(entry.name)
                if kind == "json" and number not in known.records:
                    data = await self._store.read(entry.name)
                    if data is not None:
                        known.records[number] = LaunchRecord.from_bytes(data)
                elif kind == "result.json" and number not in known.answers:
                    data = await self._store.read(entry.name)
                    if data is not None:
                        known.answers[number] = LaunchOutcome.from_bytes(data)

    async def _read_reports(self) -> None:
        entries = await self._store.list_objects(self._run.agents)
        changed = [
            (entry.name.rsplit("/", 1)[1][: -len(".json")], entry)
            for entry in entries
            if entry.name.endswith(".json")
        ]
        changed = [
            (machine, entry)
            for machine, entry in changed
            if machine not in self._reports or self._reports[machine][0] != entry.tag
        ]
        for start in range(0, len(changed), AT_ONCE):
            some = changed[start : start + AT_ONCE]
            stored = await asyncio.gather(*(self._store.read(entry.name) for _, entry in some))
            for (machine, entry), data in zip(some, stored, strict=True):
                if data is not None:
                    with reading(entry.name):
                        self._reports[machine] = entry.tag, Report.from_bytes(data)

    async def _read_losses(self) -> None:
        for entry in await self._store.list_objects(self._run.losses):
            machine = entry.name.rsplit("/", 1)[1][: -len(".json")]
            if machine not in self._losses:
                data = await self._store.read(entry.name)
                if data is not None:
                    with reading(entry.name):
                        self._losses[machine] = str(json.loads(data)["cause"])

    async def _read_history(self) -> None:
        entries = (await self._store.list_objects(self._run.histories))[-HISTORY_OBJECTS:]
        for entry in entries:
            key = f"{entry.name} {entry.tag}"
            if key in self._reasons:
                continue
            data = await self._store.read(entry.name)
            if data is not None:
                with reading(entry.name):
                    minute = int(entry.name.rsplit("/", 1)[1].partition(".")[0])
                    texts = await asyncio.to_thread(reasons_from_bytes, data)
                    self._reasons[key] = [Reason(minute * 60.0, text) for text in texts]

    async def _read_carried(self) -> None:
        """Items that earlier runs finished."""
        previous = self._documents.record.previous
        if self._carried is not None:
            return
        self._carried = 0
        if previous is not None:
            name = Run(self._run.generation, previous).outcome
            data = await self._store.read(name)
            if data is not None:
                with reading(name):
                    self._carried = Outcome.from_bytes(self._documents.signer, previous, data).ok

    # --- the picture -----------------------------------------------------------------------------

    def _machines(self, over: bool) -> list[MachineStatus]:
        given = {
            instance.id: instance
            for answer in self._launches.answers.values()
            for instance in answer.instances
        }
        found = [self._machine(name, given.get(name), over) for name in sorted(given.keys() | self._reports)]
        return sorted(found, key=lambda status: status.machine.ended)

    def _machine(self, name: str, instance: Instance | None, over: bool) -> MachineStatus:
        report = self._reports[name][1] if name in self._reports else None
        loss = self._losses.get(name)
        launch = instance.launch if instance else report.launch if report else 0
        record = self._launches.records.get(launch)
        machine = Machine(
            id=name,
            launch=launch,
            memory_class=record.memory_class if record else 0,
            slots=instance.slots if instance else report.slots if report else 0,
            state=TERMINATED if over or loss is not None else THERE,
            reported=report.state if report else "",
            reason=report.reason if report else "",
            held=report.held if report else (),
            interrupted=report.interrupted if report else False,
            boot_log=report.boot_log if report else "",
            usd_per_hour=instance.usd_per_hour if instance else 0.0,
        )
        state = loss or ("ended" if machine.ended else machine.reported or "booting")
        return MachineStatus(machine, state, report)

    def _counts(
        self, summary: RunSummary, progress: Progress | None, machines: tuple[MachineStatus, ...]
    ) -> Counts:
        ok, failed = summary.ok, summary.failed
        retrying = progress.retrying if progress else 0
        if summary.ended is None:
            reported = sum(status.report.items_ok for status in machines if status.report is not None)
            ok = max(ok, min(summary.items - failed, (self._carried or 0) + reported))
        left = summary.items - ok - failed
        retrying = min(retrying, left) if summary.ended is None else 0
        sent = min(left - retrying, sum(status.running for status in machines))
        return Counts(summary.items, left - retrying - sent, sent, retrying, ok, failed)

    def _rate(self, summary: RunSummary, now: float) -> float | None:
        done = summary.done - (self._carried or 0)
        self._looks.append((now, done))
        self._looks = [look for look in self._looks if now - look[0] <= RATE_SECONDS]
        since, before = self._looks[0]
        if summary.ended is None and now - since >= RATE_SECONDS_LEAST:
            return (done - before) / (now - since) or None
        seconds = summary.duration(now)
        return done / seconds if done > 0 and seconds > 0 else None


def _stopping(run: Run, cancelled: bytes | None, stopped: bytes | None) -> str:
    if stopped is not None:
        with reading(run.stop):
            return str(json.loads(stopped)["stop"]["message"])
    with reading(run.cancel):
        return "" if cancelled is None else f"cancelled: {json.loads(cancelled)['reason']}"
