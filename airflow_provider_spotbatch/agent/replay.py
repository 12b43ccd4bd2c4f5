"""One item, run here as a machine would run it: the same input, code and worker. Nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_provider_spotbatch.agent.checkpoints import Checkpoints
from airflow_provider_spotbatch.agent.chunk_input import ChunkInputs
from airflow_provider_spotbatch.agent.folder import Debugger, prepare
from airflow_provider_spotbatch.agent.limits import enforce
from airflow_provider_spotbatch.agent.slots import Slot
from airflow_provider_spotbatch.agent.worker_process import WorkerProcess
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.outcome import ItemOutcome
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spec import Spec

INSTANCE = "replay"
"""In place of a machine's id."""


@dataclass(frozen=True)
class ItemToReplay:
    """One item of a run, and what it gets here.

    ``folder``: an empty one, the machine's disk; ``python``: the interpreter with the job's packages;
    ``item_timeout`` in seconds, ``memory_mb`` in MB: the limits of one item.
    """

    item: int
    run: Run
    spec: Spec
    signer: Signer = field(repr=False)
    folder: Path
    python: str
    item_timeout: float | None
    memory_mb: float
    debugger: Debugger | None = None
    """The item has this process's terminal to itself, stops in pdb where it raises, and has no limits."""


def debugger(sources: str) -> Debugger:
    """``sources``: a folder that holds the DAG bundle's files, as far as they are at hand."""
    return Debugger(str(Path(__file__).with_name("debugger.py")), sources)


async def replay_item(store: Store, orders: ItemToReplay, show: Callable[[str], None]) -> ItemOutcome:
    """How the item ends here, as its first attempt. ``show`` is given each line that it prints, but for
    what goes to the debugger's terminal.

    Raises SpotBatchError for what is missing in the store, was changed there, or cannot start.
    """
    chunk = Chunk(ChunkId(orders.run.number, 0, 0), ((orders.item, orders.item + 1),))
    inputs = await ChunkInputs(store, orders.signer, orders.spec).read(chunk)
    setup = await prepare(orders.spec, store, orders.folder, orders.python, secrets={})
    setup = replace(setup, debugger=orders.debugger)
    checkpoints = CheckpointsAside(store, orders)

    async def start(number: int) -> WorkerProcess:
        return await WorkerProcess.start(
            setup, INSTANCE, number, checkpoints, lambda _item, _attempt, text: show(text)
        )

    slot = Slot(0, start)
    limits: list[asyncio.Task[None]] = []
    if orders.debugger is None:
        limits.append(asyncio.create_task(enforce([slot], orders.item_timeout, orders.memory_mb)))
    try:
        return (await slot.run(chunk, inputs))[0]
    finally:
        for task in limits:
            task.cancel()
        await slot.end()


class CheckpointsAside(Checkpoints):
    """Loads what the job's machines saved; what the replayed item saves stays in its folder."""

    def __init__(self, store: Store, orders: ItemToReplay) -> None:
        super().__init__(store, orders.run, orders.signer, INSTANCE)
        self._saved = orders.folder / "checkpoint"

    async def save(self, item: int, attempt: int, data: bytes) -> None:
        await asyncio.to_thread(self._saved.write_bytes, data)

    async def load(self, item: int) -> bytes | None:
        if await asyncio.to_thread(self._saved.exists):
            return await asyncio.to_thread(self._saved.read_bytes)
        return await super().load(item)
