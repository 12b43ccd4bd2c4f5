"""Runs as they stand in a store, written without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.index import Place, encode_index, pack_place
from airflow_provider_spotbatch.job.items import ItemTable
from airflow_provider_spotbatch.job.keys import ChunkId, Generation, Run, catalogue
from airflow_provider_spotbatch.job.outcome import FAILURE, OK, Failure, ItemOutcome, encode_result
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import EndedChunk, Report, seal_to_bytes
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, derive, key_id
from airflow_provider_spotbatch.job.spec import FUNCTION, Spec, Work, WorkerEnvironment

KEY = b"a key of the tests"


@dataclass(frozen=True)
class StoredRun:
    """One run in ``store``. Only what is written with its methods is there."""

    store: Store
    run: Run
    items: int = 10

    @property
    def signer(self) -> Signer:
        return Signer(derive(KEY, self.run.generation), self.run.generation)

    async def begin(self, dag_id: str = "dag", **record: Any) -> StoredRun:
        """Specified, in the catalogue, and begun."""
        generation = self.run.generation
        identity = {"dag_id": dag_id, "run_id": "run", "task_id": "task", "map_index": -1}
        work, items = Work(FUNCTION, "work", "0" * 64), ItemTable("submission", self.items, ())
        environment = WorkerEnvironment("3.11")
        spec = Spec(generation, work, items, environment, None, key_id(KEY), "2026-01-01", identity)
        await self.store.write(generation.spec, spec.to_bytes(self.signer))
        await self.store.write(catalogue(dag_id, generation.job), json.dumps(identity).encode())
        fields = {"policy": Policy(), "concurrency": 2, "max_tries": 0, "dag_run_started": "", **record}
        await self.store.write(self.run.run, RunRecord(run=self.run.number, **fields).to_bytes(self.signer))
        return self

    async def end(self, state: str, *, ok: int = 0, failed: int = 0) -> None:
        run = self.run
        outcome = Outcome(
            state, "", True, run.generation.job, run.generation.number, run.number, self.items, ok, failed
        )
        await self.store.write(run.outcome, outcome.to_bytes(self.signer))

    async def result(self, chunk: ChunkId, failures: dict[int, str], items: Sequence[int]) -> None:
        """A chunk's result. ``failures``: item → message of its ValueError; the others succeeded."""
        outcomes = [_outcome(item, failures.get(item)) for item in items]
        data = encode_result(self.signer, chunk, outcomes, {"instance": "machine"})
        await self.store.write(self.run.generation.result(chunk), data)

    async def index(self, places: Sequence[Place]) -> None:
        records = [pack_place(place) for place in places]
        await self.store.write(self.run.index, b"".join(encode_index(self.signer, self.run.number, records)))

    async def report(
        self, machine: str, ended: Sequence[EndedChunk], sealed: Sequence[EndedChunk] = (), **fields: Any
    ) -> None:
        if sealed:
            await self.store.write(self.run.seal(machine, 1), seal_to_bytes(tuple(sealed)))
        report = Report(machine, 1, 0, 1, 1, "running", ended=tuple(ended), sealed=bool(sealed), **fields)
        await self.store.write(self.run.report(machine), report.to_bytes())


def stored_run(
    store: Store, job: str = "job", generation: int = 1, run: int = 1, items: int = 10
) -> StoredRun:
    return StoredRun(store, Run(Generation(job, generation), run), items)


def _outcome(item: int, message: str | None) -> ItemOutcome:
    if message is None:
        return ItemOutcome(item, 1, OK, "json", b"1", 1.0, 2.0, preview_in=f"input {item}", preview_out="1")
    failure = Failure("ValueError", message, f"Traceback of item {item}", f"output of item {item}")
    return ItemOutcome(
        item, 1, "error", FAILURE, failure.to_bytes(), 1.0, 2.0, None, None, f"input {item}", failure.label
    )
