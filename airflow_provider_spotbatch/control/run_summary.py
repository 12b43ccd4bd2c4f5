"""How a run stands, in a few small reads: for lists, and as the first lines of everything else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import Generation, Run, launch_entry
from airflow_provider_spotbatch.job.launches import LaunchOutcome
from airflow_provider_spotbatch.job.run_outcome import CANCELLED, Outcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, unverified_body
from airflow_provider_spotbatch.job.spec import Spec

RUNNING = "running"
UNFINISHED = "unfinished"

SILENT_SECONDS = 180.0
"""A run that no controller has written to for so long (and for four of its pauses) is told as unfinished,
not as running: longer than a triggerer takes to be replaced."""


@dataclass(frozen=True)
class RunDocuments:
    """What is fixed of a run, and how to read the rest of it."""

    run: Run
    spec: Spec
    record: RunRecord
    signer: Signer


@dataclass(frozen=True)
class Progress:
    """What the run's controller wrote last. ``at``: seconds since the epoch by its clock."""

    at: float
    ok: int
    failed: int
    waiting: int
    sent: int
    retrying: int
    spent_usd: float
    causes: dict[str, int]


@dataclass(frozen=True)
class RunSummary:
    """``state``: running, succeeded, failed, cancelled (also while its machines end) or unfinished: it
    has no outcome and nobody drives it. Times in seconds since the epoch: ``ended`` None without an outcome,
    ``last_seen``, when a controller last wrote, None with one. ``cost_usd`` None where nothing is paid;
    ``machines``: how many it was given in all.
    """

    run: Run
    identity: dict[str, Any]
    state: str
    items: int
    ok: int
    failed: int
    causes: dict[str, int] = field(default_factory=dict)
    started: float = 0.0
    ended: float | None = None
    last_seen: float | None = None
    machines: int = 0
    cost_usd: float | None = None
    message: str = ""

    @property
    def done(self) -> int:
        return self.ok + self.failed

    def duration(self, now: float) -> float:
        """Seconds from its start to its end; without one to ``now``, or to its last sign of life."""
        until = now if self.state == RUNNING else self.last_seen or now
        return max(0.0, (self.ended or until) - self.started) if self.started else 0.0

    def to_json(self, now: float) -> dict[str, Any]:
        """For programs: times in seconds since the epoch."""
        own = {name: value for name, value in self.__dict__.items() if name not in ("run", "identity")}
        run = self.run
        return {
            "job": run.generation.job,
            "generation": run.generation.number,
            "run": run.number,
            **{f"airflow_{name}": value for name, value in self.identity.items()},
            **own,
            "duration": round(self.duration(now), 3),
        }


async def read_documents(store: Store, keyring: Keyring, run: Run) -> RunDocuments:
    """The run's specification and record. Raises SpotBatchError where they are not there."""
    spec, signer = await read_specification(store, keyring, run.generation)
    data = await store.read(run.run)
    if data is None:
        raise SpotBatchError(f"run {run.tag} is not in {store.uri}: it was cleaned up, or never begun")
    with reading(run.run):
        record = RunRecord.from_bytes(signer, run.number, data)
    if record.closed:
        raise SpotBatchError(
            f"generation {run.generation.number} of job {run.generation.job} is being removed"
        )
    return RunDocuments(run, spec, record, signer)


async def read_specification(store: Store, keyring: Keyring, generation: Generation) -> tuple[Spec, Signer]:
    """A generation's specification, and the signer of all that belongs to it."""
    data = await store.read(generation.spec)
    if data is None:
        raise SpotBatchError(f"{generation.spec} is not in {store.uri}: it was cleaned up, or never written")
    with reading(generation.spec):
        signer = keyring.signer(generation, unverified_body(data)["key_id"])
        return Spec.from_bytes(signer, data), signer


async def read_summary(store: Store, documents: RunDocuments, now: float) -> RunSummary:
    """How the run stands. ``now``: seconds since the epoch."""
    run = documents.run
    outcome, progress, cancelled, machines = await asyncio.gather(
        read_outcome(store, documents),
        read_progress(store, run),
        store.exists(run.cancel),
        _machines(store, run),
    )
    return summarize(documents, outcome, progress, cancelled=cancelled, machines=machines, now=now)


def summarize(
    documents: RunDocuments,
    outcome: Outcome | None,
    progress: Progress | None,
    *,
    cancelled: bool,
    machines: int,
    now: float,
) -> RunSummary:
    """The summary of what was read. ``now`` tells a run that is driven from one that was forgotten."""
    spec, record = documents.spec, documents.record
    if outcome is not None:
        return RunSummary(
            run=documents.run,
            identity=spec.identity,
            state=outcome.state,
            items=outcome.items,
            ok=outcome.ok,
            failed=outcome.failed,
            causes=outcome.causes,
            started=outcome.started,
            ended=outcome.ended,
            machines=machines,
            cost_usd=outcome.cost_usd,
            message=outcome.message,
        )
    alive = max(record.created, progress.at if progress else 0.0)
    silent = now - alive > max(SILENT_SECONDS, 4 * record.policy.poll_interval)
    causes = progress.causes if progress else {}
    return RunSummary(
        run=documents.run,
        identity=spec.identity,
        state=CANCELLED if cancelled else UNFINISHED if silent else RUNNING,
        items=spec.items.count,
        ok=progress.ok if progress else 0,
        failed=progress.failed if progress else 0,
        causes={cause: count for cause, count in causes.items() if count},
        started=record.created,
        last_seen=alive,
        machines=machines,
        cost_usd=(progress.spent_usd if progress else 0.0) or None,
    )


async def read_outcome(store: Store, documents: RunDocuments) -> Outcome | None:
    """How the run ended, or None before that."""
    run = documents.run
    data = await store.read(run.outcome)
    with reading(run.outcome):
        return None if data is None else Outcome.from_bytes(documents.signer, run.number, data)


async def read_progress(store: Store, run: Run) -> Progress | None:
    """The last account that a controller gave of the run, None before the first."""
    data = await store.read(run.progress)
    if data is None:
        return None
    with reading(run.progress):
        stored = json.loads(data)
        return Progress(**{name: stored[name] for name in Progress.__dataclass_fields__})


async def _machines(store: Store, run: Run) -> int:
    with reading(run.launches):
        entries = await store.list_objects(run.launches)
        answers = [entry.name for entry in entries if launch_entry(entry.name)[1] == "result.json"]
        stored = await asyncio.gather(*(store.read(name) for name in answers))
        return sum(len(LaunchOutcome.from_bytes(data).instances) for data in stored if data is not None)
