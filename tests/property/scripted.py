"""What stands in for worker processes: items that end as a script says, and a record of every run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_spotbatch.agent.worker_process import Death, RunningNow
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.outcome import ERROR, FAILURE, OK, Failure

if TYPE_CHECKING:
    from airflow_provider_spotbatch.agent.chunk_input import ItemInput
    from airflow_provider_spotbatch.backends.memory import SimulatedMachine
    from tests.property.simulation import Simulation

NOTICE, GONE, FROZEN = "notice", "gone", "frozen"
"""What may befall the machine in the middle of an item: taken back with or without notice, or frozen."""

FOREVER = 1e9


@dataclass(frozen=True)
class Script:
    """``failures[item][k]``: how attempt k + 1 of the item ends where it does not succeed;
    ``mishaps[item][k]``: what befalls the machine in the k-th run of the item, whichever attempt;
    ``fails_frozen``: items that fail as their machine freezes, so that it can tell only when it wakes;
    ``seconds``: how long each item runs, in turn; ``frozen_seconds``: how long a machine is frozen."""

    failures: dict[int, list[str]] = field(default_factory=dict)
    mishaps: dict[int, list[str]] = field(default_factory=dict)
    fails_frozen: frozenset[int] = frozenset()
    seconds: Sequence[float] = (3.0,)
    frozen_seconds: float = 200.0

    def ends_as(self, item: int, attempt: int) -> str:
        planned = self.failures.get(item, [])
        return planned[attempt - 1] if attempt <= len(planned) else OK

    def expected(self, item: int, item_retries: int) -> tuple[str, int]:
        """The standing outcome of the item, and the attempts that it took."""
        for attempt in range(1, item_retries + 2):
            if (cause := self.ends_as(item, attempt)) == OK:
                break
        return cause, attempt


@dataclass
class ItemRun:
    """One run of one item on one machine. ``done``: it came to its scripted end."""

    item: int
    attempt: int
    instance: str
    start: float
    durable: float | None
    """Since when its chunk had a durable result as the chunk began; None: it had none, or began before."""
    end: float | None = None
    done: bool = False


class Tail:
    def tail(self, item: int | None) -> str:
        return ""


class ScriptedWorker:
    """Runs items as a :class:`WorkerProcess` does, in virtual time."""

    load_failure = None

    def __init__(self, simulation: Simulation, machine: SimulatedMachine) -> None:
        self.output = Tail()
        self.alive = True
        self.running: RunningNow | None = None
        """Only the item that it died in: limits are sampled of real processes."""
        self._simulation = simulation
        self._machine = machine

    def interrupt(self) -> None:
        return None

    async def end(self) -> None:
        self.alive = False

    async def run(
        self, items: Sequence[ItemInput], attempt: int, on_result: Callable[[dict[str, Any], bytes], None]
    ) -> Death | None:
        chunk = self._simulation.chunk_of([item.index for item in items], attempt)
        if chunk is not None and chunk.count != len(items):
            chunk = None  # the rest of a chunk in which a worker died: it began before
        for item in items:
            death = await self._run_item(item, attempt, chunk, on_result)
            if death is not None:
                return death
            chunk = None
        return None

    async def _run_item(
        self,
        item: ItemInput,
        attempt: int,
        chunk: Chunk | None,
        on_result: Callable[[dict[str, Any], bytes], None],
    ) -> Death | None:
        simulation, clock = self._simulation, self._simulation.clock
        run = simulation.begin(item.index, attempt, self._machine.id, chunk)
        try:
            mishap = simulation.next_mishap(item.index)
            seconds = simulation.script.seconds[item.index % len(simulation.script.seconds)]
            await asyncio.sleep(seconds / 2)
            await self._suffer(mishap)
            fails_frozen = mishap == FROZEN and item.index in simulation.script.fails_frozen
            if not fails_frozen:
                await self._machine.gate()
                await asyncio.sleep(seconds / 2)
                await self._machine.gate()
            run.done = True
        finally:
            run.end = clock.now()
        cause = simulation.script.ends_as(item.index, attempt)
        if fails_frozen:
            cause = ERROR
        if cause not in (OK, ERROR):
            self.alive = False
            self.running = RunningNow(item.index, run.end - run.start)
            return Death(cause, f"scripted {cause}", item.index)
        on_result(*_result(item.index, attempt, cause, run))
        return None

    async def _suffer(self, mishap: str | None) -> None:
        cloud, instance = self._machine.cloud, self._machine.id
        if mishap == NOTICE:
            cloud.reclaim(instance)
        elif mishap == GONE:
            cloud.reclaim(instance, notice=False)
        elif mishap == FROZEN:
            cloud.freeze(instance)
            asyncio.get_running_loop().call_later(
                self._simulation.script.frozen_seconds, lambda: cloud.thaw(instance)
            )
        if mishap in (NOTICE, GONE):
            await asyncio.sleep(FOREVER)


def _result(item: int, attempt: int, cause: str, run: ItemRun) -> tuple[dict[str, Any], bytes]:
    if cause == OK:
        kind, body = "json", json.dumps({"item": item}).encode()
    else:
        failure = Failure("ScriptedError", f"attempt {attempt} of item {item}").__dict__
        kind, body = FAILURE, json.dumps({k: v for k, v in failure.items() if k != "output_tail"}).encode()
    header = {
        "item": item,
        "cause": cause,
        "kind": kind,
        "start": run.start,
        "end": run.end,
        "peak": None,
        "cpu": None,
        "in": str(item),
        "out": "",
    }
    return header, body
