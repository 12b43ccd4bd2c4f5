"""A job as an agent finds it: a store with spec, items, blobs and run.json, a queue, a machine's folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle

from airflow_provider_spotbatch.agent.agent import run_agent
from airflow_provider_spotbatch.backends.local import LocalMachine
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.chunks import Chunk, to_message
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.items import ItemTable, PartBuilder, pack
from airflow_provider_spotbatch.job.keys import ChunkId, Generation, Run, blob
from airflow_provider_spotbatch.job.outcome import Failure, ItemOutcome, decode_head
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import EndedChunk, Report, seal_from_bytes
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, derive
from airflow_provider_spotbatch.job.spec import COMMAND, DOTTED, FUNCTION, Spec, Work, WorkerEnvironment

PATIENCE = 30.0
"""Seconds that a test waits for what must come soon: only a broken agent needs them."""

GENERATION = Generation("agents-0123456789abcdef", 1)
RUN = Run(GENERATION, 1)
KEY = derive(b"a key for tests", GENERATION)
SIGNER = Signer(KEY, GENERATION)


async def eventually(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The first truthy answer of ``condition``; fails after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := await condition():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what} did not come within {PATIENCE:.0f} s")


@dataclass
class Job:
    """One run of one generation below ``root``. Make it with :func:`function_job` and the like."""

    root: Path
    work: Work
    boot: Boot
    blobs: dict[str, bytes] = field(default_factory=dict)
    environment: WorkerEnvironment = field(default_factory=lambda: WorkerEnvironment(python=""))
    policy: Policy = field(default_factory=Policy)
    items: list[Any] = field(default_factory=list)
    packed: list[tuple[str, bytes]] | None = None
    """Items encoded already, instead of ``items``."""

    def __post_init__(self) -> None:
        self.store: Store = open_store(self.boot.store)

    def add_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return name

    async def submit(self, chunks: Sequence[Chunk] | None = None) -> None:
        """Write everything, and send the chunks (by default one with all items)."""
        for name, data in self.blobs.items():
            await self.store.write(blob(name), data)
        packed = self.packed or [codec.encode(item, cloudpickle.dumps) for item in self.items]
        builder = PartBuilder(0)
        for index, (kind, payload) in enumerate(packed):
            builder.add(pack(SIGNER, index, kind, payload))
        table = ItemTable("first", len(packed), (builder.part,))
        await self.store.write(GENERATION.item_part("first", 0), bytes(builder.data))
        await self.store.write(GENERATION.item_offsets("first", 0), builder.packed_offsets)
        spec = Spec(
            GENERATION, self.work, table, self.environment, None, "key", "2026-01-01T00:00:00+00:00", {}
        )
        await self.store.write(GENERATION.spec, spec.to_bytes(SIGNER))
        record = RunRecord(1, self.policy, self.boot.slots, 0, "")
        await self.store.write(RUN.run, record.to_bytes(SIGNER))
        await self.tell(Control(beat=1, report_every=0.2))
        await self.send([chunk(0, (0, len(packed)))] if chunks is None else chunks)

    async def send(self, chunks: Sequence[Chunk]) -> None:
        await LocalMachine(self.boot).queue(RUN, 0).send([to_message(each) for each in chunks])

    async def tell(self, control: Control) -> None:
        await self.store.write(RUN.control, control.to_bytes())

    async def run_agent(self, instance: str = "i-1") -> None:
        """One agent in this process, until it ends."""
        boot = self.boot_of(instance)
        await run_agent(boot, LocalMachine(boot), self.store)

    def boot_of(self, instance: str) -> Boot:
        return replace(self.boot, instance=instance, folder=str(self.root / "machines" / instance / "disk"))

    def start_agent(self, instance: str = "i-1", **environment: str) -> subprocess.Popen[bytes]:
        """One agent as a process of its own."""
        boot = self.boot_of(instance)
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_spotbatch.agent"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert process.stdin is not None
        process.stdin.write(boot.to_text().encode())
        process.stdin.close()
        process.stdin = None
        return process

    async def outcomes(self, of: ChunkId | None = None) -> list[ItemOutcome]:
        """The stored outcomes of a chunk (by default the first), signature and digests checked."""
        of = of or ChunkId(1, 1, 0)
        data = await self.store.read(GENERATION.result(of))
        assert data is not None, f"chunk {of} has no result"
        head = decode_head(SIGNER, of, data)
        found = []
        for ordinal, row in enumerate(head.rows):
            start, stop = head.span(ordinal)
            columns = {
                name: head.details[name][ordinal]
                for name in ("start", "end", "peak_mb", "cpu_seconds", "preview_in", "preview_out")
            }
            value = head.check(ordinal, data[start:stop])
            found.append(ItemOutcome(row.item, row.attempt, row.cause, row.kind, value, **columns))
        return found

    async def report(self, instance: str = "i-1") -> Report:
        data = await self.store.read(RUN.report(instance))
        assert data is not None, f"{instance} wrote no report"
        return Report.from_bytes(data)

    async def ended(self, instance: str = "i-1") -> list[EndedChunk]:
        """All chunks that an instance told as ended, in seals and report."""
        report = await self.report(instance)
        found: list[EndedChunk] = []
        for number in range(1, report.sealed + 1):
            seal = await self.store.read(RUN.seal(instance, number))
            assert seal is not None
            found += seal_from_bytes(seal)
        return found + list(report.ended)

    async def logs(self, instance: str = "i-1") -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for entry in await self.store.list_objects(GENERATION.logs(instance)):
            data = await self.store.read(entry.name)
            assert data is not None
            lines += [json.loads(line) for line in data.splitlines()]
        return lines

    async def queue_is_empty(self) -> bool:
        """Whether every message was acked: none is ready, and none becomes ready when leases lapse."""
        with sqlite3.connect(self.root / "queue.sqlite") as database:
            found = database.execute("SELECT COUNT(*) FROM messages").fetchone()[0]
        database.close()
        return bool(found == 0)


def chunk(number: int, *ranges: tuple[int, int], attempt: int = 1) -> Chunk:
    return Chunk(ChunkId(1, 1, number), ranges, attempt)


def function_job(root: Path, function: Any, items: Sequence[Any], **options: Any) -> Job:
    """``options``: ``kwargs``, ``modules``, ``call``; what a Job has; and what a Boot has."""
    body = {"function": function, "kwargs": options.pop("kwargs", {}), "modules": options.pop("modules", {})}
    return _job(
        root, FUNCTION, getattr(function, "__qualname__", ""), cloudpickle.dumps(body), items, options
    )


def dotted_job(root: Path, name: str, items: Sequence[Any], **options: Any) -> Job:
    body = {"kwargs": options.pop("kwargs", {}), "modules": options.pop("modules", {})}
    return _job(root, DOTTED, name, cloudpickle.dumps(body), items, options)


def command_job(root: Path, command: list[str], items: Sequence[Any], **options: Any) -> Job:
    body = json.dumps({"command": command, "kwargs": {}}).encode()
    return _job(root, COMMAND, command[0], body, items, options)


def _job(root: Path, kind: str, name: str, body: bytes, items: Sequence[Any], options: dict[str, Any]) -> Job:
    digest = hashlib.sha256(body).hexdigest()
    work = Work(kind, name, digest, options.pop("call", "item"))
    parts = {key: options.pop(key) for key in ("environment", "policy", "blobs") if key in options}
    boot = Boot(
        backend="local",
        store=f"file://{root}/store",
        job=GENERATION.job,
        generation=GENERATION.number,
        run=RUN.number,
        key=KEY.hex(),
        **{
            "python": sys.executable,
            "idle_timeout": 0.2,
            "lease": 5.0,
            "backend_options": {"path": str(root)},
            **options,
        },
    )
    job = Job(root, work, boot, items=list(items), **parts)
    job.blobs[digest] = body
    return job


def outcomes_of(job: Job) -> list[ItemOutcome]:
    """Submit the job as one chunk, run one agent on it until it ends; the stored outcomes."""

    async def scenario() -> list[ItemOutcome]:
        await job.submit()
        await job.run_agent()
        return await job.outcomes()

    return asyncio.run(scenario())


def failure_of(outcome: ItemOutcome) -> Failure:
    assert outcome.kind == "failure", f"item {outcome.item} did not fail"
    return Failure.from_bytes(outcome.value)


def value_of(outcome: ItemOutcome) -> Any:
    assert outcome.cause == "ok", f"item {outcome.item} failed: {outcome.value.decode()}"
    return codec.decode(outcome.kind, outcome.value, lambda module, name: (module, name))


def processes_with(text: str) -> Iterator[int]:
    """Processes of this machine whose command line or environment holds ``text``."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if text.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                    yield int(folder.name)
            except OSError:
                continue
