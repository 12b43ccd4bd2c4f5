"""The look: what the store and the fleet say now, taken into the ledger and made a snapshot.

A look costs a few listings, the reports that changed and one describe: it grows with the machines,
not with the items. What was read once and cannot change is not read again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from airflow_provider_spotbatch.backends.base import Fleet, Offer
from airflow_provider_spotbatch.backends.store import StoredObject
from airflow_provider_spotbatch.control.accounting import MachineTime
from airflow_provider_spotbatch.control.heads import fetch_head, read_failure
from airflow_provider_spotbatch.control.ledger import Ledger
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.control.snapshot import Counts, LaunchView, Machine, OpenChunk, Snapshot, Stop
from airflow_provider_spotbatch.control.threads import parse, work_out
from airflow_provider_spotbatch.job.chunks import Batch
from airflow_provider_spotbatch.job.errors import Throttled
from airflow_provider_spotbatch.job.keys import ChunkId, Run, launch_entry
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.outcome import (
    FAILURE,
    LOST,
    OK,
    Failure,
    ResultHead,
    Row,
)
from airflow_provider_spotbatch.job.report import EndedChunk, Report, seal_from_bytes
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spec import Spec

TOLD_FAILURES = 20
"""Failures shown in full in the task's log; the others are counted by their error."""

AT_ONCE = 32
"""Reports, or heads of results, read at the same time."""


@dataclass
class _Reported:
    """An instance's report as last read. ``since``: observer's time when its tag last changed."""

    tag: str
    since: float
    written: float
    """The same by the store's time, put into our clock's."""
    report: Report | None = None
    seals: int = 0
    settled: int = 0
    """How many of its ended chunks, counted from the last seal, need no second look."""


@dataclass(frozen=True)
class ToldFailure:
    """One failed attempt, for the log."""

    item: int
    attempt: int
    cause: str
    label: str
    failure: Failure | None


@dataclass
class Observer:
    """Sees one run. ``random``: in [0, 1)."""

    site: Site
    run: Run
    spec: Spec
    record: RunRecord
    fleet: Fleet
    offers: dict[int, tuple[Offer, ...]]
    random: Callable[[], float]
    store_ahead: float
    """What the clock showed, less the store's time at the same moment."""
    spent_before: float = 0.0
    """Dollars that earlier runs cost."""
    most_memory_class: int = 0
    """The largest memory that there are machines for, as doublings of what an item asks for."""
    spent_told: float = 0.0
    """Dollars reckoned before this observer began: earlier runs, and this run by an earlier process."""
    ledger: Ledger = field(init=False)
    failures: deque[ToldFailure] = field(init=False, default_factory=deque)
    """Failed attempts not yet told."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(
            self.spec.items.count, self.record.policy, most_memory_class=self.most_memory_class
        )
        self._signer: Signer = self.site.signer(self.run.generation)
        self._last_batch: str | None = None
        self._batches = 0
        self._launch_seen: dict[int, tuple[LaunchRecord, float]] = {}
        self._askings: dict[int, tuple[int, float]] = {}
        self._answers: dict[int, tuple[LaunchOutcome, float]] = {}
        self._reports: dict[str, _Reported] = {}
        self._losses: dict[str, tuple[str, ...]] = {}
        self._described: dict[str, Instance] = {}
        self._known_since: dict[str, float] = {}
        self._described_at: float | None = None
        """When the last describe that was answered began; nothing is concluded from not having looked."""
        self._spent: dict[str, float] = {}
        self._untold: float | None = None
        self._last_look: float | None = None
        self._standing: tuple[object, ...] = ()
        self._changed_at = self.site.clock()
        self._error_labels: set[str] = set()
        self._told = 0
        self._stop: Stop | None = None
        self.control_at: float | None = None
        self.age_at_start = max(0.0, self.site.wall_clock() - self.record.created)
        self._began = self.site.clock()

    async def look(self) -> Snapshot:
        """Read what changed, and picture the run."""
        store, run = self.site.store, self.run
        began = self.site.clock()
        (cancel, stop), described, launches, batches, reports, losses = await asyncio.gather(
            asyncio.gather(store.read(run.cancel), store.read(run.stop)),
            self._describe(),
            store.list_objects(run.launches),
            store.list_objects(run.batches, after=self._last_batch),
            store.list_objects(run.agents),
            store.list_objects(run.losses),
        )
        now = self.site.clock()
        await self._take_launches(launches, now)
        await self._take_batches(batches, now)
        await self._take_reports(reports, now)
        await self._take_losses(losses)
        if described is not None:
            self._described = {instance.id: instance for instance in described}
            self._described_at = began
        if stop is not None and self._stop is None:
            self._stop = Stop(**json.loads(stop)["stop"])
        cancelled = json.loads(cancel)["reason"] if cancel is not None else None
        entries = self.ledger.open_count + self.record.concurrency
        return await work_out(entries, lambda: self._picture(now, cancelled, described is not None))

    async def _describe(self) -> list[Instance] | None:
        try:
            return await self.fleet.describe()
        except Throttled:
            return None  # what was seen last still stands

    # --- launches ------------------------------------------------------------------------------

    async def _take_launches(self, found: list[StoredObject], now: float) -> None:
        for entry in found:
            number, kind = launch_entry(entry.name)
            at = self._at(entry, now)
            if kind.startswith("again-"):
                self._askings[number] = int(kind[len("again-") :].split(".")[0]), at
                continue
            known = self._answers if kind == "result.json" else self._launch_seen
            if number in known:
                continue
            data = await self.site.store.read(entry.name)
            if data is None:
                continue
            if kind == "result.json":
                self._answers[number] = LaunchOutcome.from_bytes(data), at
            else:
                self._launch_seen[number] = LaunchRecord.from_bytes(data), at

    def _at(self, entry: StoredObject, now: float) -> float:
        """When the object was written, by our clock."""
        return min(now, entry.modified + self.store_ahead)

    # --- batches, reports, losses -----------------------------------------------------------------

    async def _take_batches(self, found: list[StoredObject], now: float) -> None:
        for entry in found:
            data = await self.site.store.read(entry.name)
            if data is None:
                continue
            await self.take_batch(await parse(Batch.from_bytes, data), self._at(entry, now))

    async def take_batch(self, batch: Batch, at: float) -> None:
        """A batch is in the store: read there, or written just now, at this time of our clock."""
        await work_out(len(batch.chunks), lambda: self.ledger.sent(batch, at))
        self._batches = batch.number
        self._last_batch = self.run.batch(batch.number)

    async def _take_reports(self, found: list[StoredObject], now: float) -> None:
        changed: list[tuple[str, StoredObject]] = []
        for entry in found:
            if not entry.name.endswith(".json"):
                continue
            instance = entry.name.rsplit("/", 1)[1][: -len(".json")]
            known = self._reports.get(instance)
            if known is None or known.tag != entry.tag:
                changed.append((instance, entry))
        for start in range(0, len(changed), AT_ONCE):
            some = changed[start : start + AT_ONCE]
            bodies = await asyncio.gather(*(self.site.store.read(entry.name) for _, entry in some))
            for (instance, entry), data in zip(some, bodies, strict=True):
                if data is not None:
                    await self._take_report(instance, entry, await parse(Report.from_bytes, data), now)

    async def _take_report(self, instance: str, entry: StoredObject, report: Report, now: float) -> None:
        known = self._reports.setdefault(instance, _Reported("", now, now))
        known.since, known.written, known.report = now, self._at(entry, now), report
        settled = known.settled if known.seals == report.sealed else 0
        news = report.ended[settled:]
        await self._take_ended(news, now)
        while known.seals < report.sealed:
            seal = await self.site.store.read(self.run.seal(instance, known.seals + 1))
            if seal is None:
                break
            await self._take_ended(await parse(seal_from_bytes, seal), now)
            known.seals += 1
        known.settled = settled + sum(1 for _ in takewhile(self._is_settled, news))
        known.tag = entry.tag  # only now: a report that was taken in part is read again

    def _is_settled(self, ended: EndedChunk) -> bool:
        """Whether nothing is left to be taken of a chunk that an agent tells as ended."""
        chunk = ChunkId.parse(ended.chunk)
        return self.ledger.knows(chunk) and not self.ledger.is_open(chunk)

    async def _take_ended(self, ended: tuple[EndedChunk, ...], now: float) -> None:
        """Chunks said to have ended: the results of those with failures, or found done, are read."""
        to_read: list[EndedChunk] = []
        for chunk in ended:
            if not self.ledger.is_open(ChunkId.parse(chunk.chunk)):
                continue
            if chunk.failed or chunk.found:
                to_read.append(chunk)
            else:
                self.ledger.ended_well(chunk)
        for start in range(0, len(to_read), AT_ONCE):
            some = to_read[start : start + AT_ONCE]
            heads = await asyncio.gather(*(self.head(ChunkId.parse(chunk.chunk)) for chunk in some))
            for chunk, head in zip(some, heads, strict=True):
                if head is not None:
                    await self.take_head(head, now, None if chunk.found else chunk)

    async def head(self, chunk: ChunkId) -> ResultHead | None:
        """The head of a chunk's result, or None if it has none (yet)."""
        return await fetch_head(self.site.store, self._signer, self.run.generation, chunk)

    async def take_head(self, head: ResultHead, now: float, ended: EndedChunk | None = None) -> None:
        """A result that was read: into the ledger, its failures to the log."""
        if not self.ledger.is_open(head.chunk):
            return
        in_full = [
            ordinal for ordinal, row in enumerate(head.rows) if row.kind == FAILURE and _to_tell(head, row)
        ]
        in_full = in_full[: max(0, TOLD_FAILURES - self._told)]
        failures = {
            ordinal: await read_failure(self.site.store, self.run.generation, head, ordinal)
            for ordinal in in_full
        }
        if not self.ledger.is_open(head.chunk):
            return
        self._told += len(failures)
        labels = head.details["preview_out"]
        for ordinal, row in enumerate(head.rows):
            if row.cause == OK:
                self._error_labels.add("")
                continue
            label = str(labels[ordinal]) or row.cause
            self._error_labels.add(f"{row.cause}: {label.split(':')[0]}" if row.cause == "error" else "")
            if _to_tell(head, row):
                told = ToldFailure(row.item, row.attempt, row.cause, label, failures.get(ordinal))
                self.failures.append(told)
        self.ledger.ended_read(ended, head, now)

    async def _take_losses(self, found: list[StoredObject]) -> None:
        for entry in found:
            instance = entry.name.rsplit("/", 1)[1][: -len(".json")]
            if instance in self._losses:
                continue
            data = await self.site.store.read(entry.name)
            if data is None:
                continue
            chunks = tuple(json.loads(data)["chunks"])
            self._losses[instance] = chunks
            for chunk in chunks:
                self.ledger.lost(ChunkId.parse(chunk))

    # --- the picture ---------------------------------------------------------------------------

    def _picture(self, now: float, cancelled: str | None, fleet_seen: bool) -> Snapshot:
        machines = self._machines(now)
        self._reckon(machines, now)
        ledger, settings = self.ledger, self.site.settings
        held = {chunk for machine in machines if not machine.ended for chunk in machine.held}
        counts = ledger.counts
        return Snapshot(
            now=now,
            run=self.run.number,
            run_age=self.age_at_start + now - self._began,
            policy=self.record.policy,
            concurrency=self.record.concurrency,
            counts=counts,
            fresh=ledger.fresh(counts.waiting),
            due=ledger.due(now),
            next_due=ledger.next_due(now),
            open_chunks=tuple(
                OpenChunk(chunk, now - at, str(chunk.id) in held, losses, item_losses)
                for chunk, at, losses, item_losses in ledger.open_chunks()
            ),
            machines=machines,
            fleet_seen=fleet_seen,
            launches=tuple(self._launches(now)),
            closed=any(record.closed for record, _ in self._launch_seen.values()),
            pace=ledger.pace,
            offers=self.offers,
            max_instances=settings.max_instances,
            max_usd_per_hour=settings.max_usd_per_hour,
            budget_usd=self.record.policy.budget_usd,
            spent_usd=self.spent_usd,
            outcomes=ledger.outcomes,
            only_error=self._only_error(),
            cancelled=cancelled,
            stop=self._stop,
            next_batch=self._batches + 1,
            next_launch=max(self._launch_seen, default=0) + 1,
            item_bytes=sum(part.size for part in self.spec.items.parts) / max(1, self.spec.items.count),
            unsent=ledger.unsent(),
            lease=self.site.backend.lease,
            visibility_bound=self.fleet.visibility_bound,
            tick_seconds=self.site.backend.tick_seconds,
            jitter=self.random(),
            control_age=None if self.control_at is None else now - self.control_at,
            quiet=self._quiet(now, machines, counts),
        )

    def _quiet(self, now: float, machines: tuple[Machine, ...], counts: Counts) -> float:
        """Seconds since news came: that agents still report what they did is none."""
        states = tuple((machine.id, machine.state, machine.reported) for machine in machines)
        standing = (counts, states, self._batches, len(self._launch_seen), len(self._answers), self._stop)
        if standing != self._standing:
            self._standing, self._changed_at = standing, now
        return now - self._changed_at

    def _only_error(self) -> str | None:
        if len(self._error_labels) == 1:
            return next(iter(self._error_labels)) or None
        return None

    def _launches(self, now: float) -> list[LaunchView]:
        views: list[LaunchView] = []
        for number, (record, at) in sorted(self._launch_seen.items()):
            outcome, answered = self._answers.get(number, (None, now))
            asked, asked_at = self._askings.get(number, (1, at))
            views.append(LaunchView(record, outcome, now - at, now - answered, asked, now - asked_at))
        return views

    def _machines(self, now: float) -> tuple[Machine, ...]:
        asked = {
            instance.id: (instance, since)
            for outcome, since in self._answers.values()
            for instance in outcome.instances
        }
        ids = sorted(asked.keys() | self._described.keys())
        for name in ids:
            self._known_since.setdefault(name, now)
        return tuple(self._machine(name, asked.get(name), now) for name in ids)

    def _machine(self, name: str, asked: tuple[Instance, float] | None, now: float) -> Machine:
        described = self._described.get(name)
        known = described or (asked[0] if asked else None)
        assert known is not None
        known_since = self._known_since[name]
        answered = asked[1] if asked else known_since
        reported = self._reports.get(name)
        report = reported.report if reported else None
        record = self._launch_seen.get(known.launch)
        bound = self.fleet.visibility_bound
        due = self._described_at is not None and self._described_at - known_since > bound
        return Machine(
            id=name,
            launch=known.launch,
            memory_class=record[0].memory_class if record else 0,
            slots=known.slots,
            state=described.state if described else "missing",
            reported=report.state if report else "",
            reason=(report.reason if report else "") or known.reason,
            silent=now - (reported.since if reported else answered),
            held=report.held if report else (),
            empty_seconds=report.empty_seconds if report else None,
            interrupted=(described.interrupted if described else False)
            or (report.interrupted if report else False),
            due=due,
            loss_recorded=name in self._losses,
            boot_log=report.boot_log if report else "",
            usd_per_hour=(asked[0] if asked else known).usd_per_hour,
        )

    def _reckon(self, machines: tuple[Machine, ...], now: float) -> None:
        """Add what the machines cost since the last look, price at launch × time; and what they cost
        while nobody looked, as far as the store's times tell."""
        passed = now - self._last_look if self._last_look is not None else 0.0
        self._last_look = now
        for machine in machines:
            watched = self._spent.get(machine.id, 0.0)
            if not machine.gone:
                watched += machine.usd_per_hour * passed / 3600
            so_far = machine.usd_per_hour * self._seconds_on(machine, now) / 3600
            self._spent[machine.id] = max(watched, so_far)
        if self._untold is None:
            self._untold = max(0.0, self.spent_told - self.spent_usd)

    def machine_times(self) -> list[MachineTime]:
        """What each machine of the run cost so far, and how it spent that time."""
        asked = (instance for outcome, _ in self._answers.values() for instance in outcome.instances)
        known = {**self._described, **{instance.id: instance for instance in asked}}
        return [self._machine_time(known[name], usd) for name, usd in self._spent.items() if name in known]

    def _machine_time(self, machine: Instance, usd: float) -> MachineTime:
        reported = self._reports.get(machine.id)
        launched = self._launch_seen.get(machine.launch)
        if reported is None or reported.report is None or launched is None:
            return MachineTime(machine.slots, usd, machine.usd_per_hour, machine.on_demand_usd_per_hour)
        report = reported.report
        return MachineTime(
            machine.slots,
            usd,
            machine.usd_per_hour,
            machine.on_demand_usd_per_hour,
            reported_seconds=max(0.0, reported.written - launched[1]),
            up_seconds=report.up_seconds,
            worked_seconds=report.worked_seconds,
            broken_seconds=report.broken_seconds,
        )

    def _seconds_on(self, machine: Machine, now: float) -> float:
        """From the launch to now, or to its agent's last report; 0 where it ended without any."""
        record = self._launch_seen.get(machine.launch)
        if record is None:
            return 0.0
        reported = self._reports.get(machine.id)
        end = now if not machine.gone else reported.written if reported else record[1]
        return max(0.0, end - record[1])

    @property
    def spent_usd(self) -> float:
        return self.spent_before + sum(self._spent.values()) + (self._untold or 0.0)


def _to_tell(head: ResultHead, row: Row) -> bool:
    """Whether it is news: that the items of a lost chunk travel singly was told when it was closed."""
    return row.cause != LOST or len(head) == 1
