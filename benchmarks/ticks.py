"""Ticks of a large run: a real controller over the simulated cloud, and reports as a real fleet writes them.

Nothing runs on the machines: the fleet's reports are made from the messages in the queue, each chunk
ended after its items' time. Time stands still but where the fleet passes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.memory import MemoryBackend, MemoryCloud
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.control.submit import submit
from airflow_provider_spotbatch.job.chunks import from_message
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import (
    RUNNING,
    SEAL_AFTER,
    EndedChunk,
    Report,
    RunningItem,
    seal_to_bytes,
)
from benchmarks import work
from benchmarks.job import job_request, silent
from benchmarks.memory import measured

MACHINES = 100
SLOTS = 50
ITEM_SECONDS = 5.0
BETWEEN = 15.0
"""Seconds from one tick to the next: the default ``poll_interval``."""

TICKS = 40
"""Ten minutes, from the first machine on."""


class Standing:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = 1e9

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.get_running_loop().create_future()  # nobody passes this time
        await asyncio.sleep(0)


@dataclass
class Ticks:
    """CPU seconds of each tick, and the peak of memory in MB, that of the simulated cloud included."""

    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0


@dataclass
class Agent:
    """One machine: its slots' chunks with their ends, and what it has told."""

    instance: str
    launch: int
    slots: list[tuple[float, str, int]] = field(default_factory=list)
    ended: list[EndedChunk] = field(default_factory=list)
    sequence: int = 0
    sealed: int = 0
    items: int = 0


class Fleet:
    """All machines of the run: takes messages, ends chunks when their time is over, writes reports."""

    def __init__(self, cloud: MemoryCloud, run: Run) -> None:
        self._cloud = cloud
        self._run = run
        self._taken = 0
        self._waiting: deque[tuple[str, int]] = deque()
        self._agents: list[Agent] = []

    async def live_to(self, now: float) -> None:
        self._agents = self._agents or [
            Agent(machine.id, machine.boot.launch) for machine in self._cloud.machines.values()
        ]
        self._take_messages()
        for agent in self._agents:
            self._work(agent, now)
            await self._report(agent)

    def _take_messages(self) -> None:
        messages = self._cloud.queues[self._run.queue(0)]
        while self._taken < messages.sent:
            self._taken += 1
            chunk = from_message(messages.numbered.pop(self._taken).body)
            self._waiting.append((str(chunk.id), chunk.count))

    def _work(self, agent: Agent, now: float) -> None:
        free = [self._cloud.clock.now()] * (SLOTS - len(agent.slots))
        for slot in [slot for slot in agent.slots if slot[0] <= now]:
            agent.slots.remove(slot)
            free.append(slot[0])
            self._end(agent, slot)
        while free and self._waiting:
            chunk, items = self._waiting.popleft()
            slot = free.pop() + items * ITEM_SECONDS, chunk, items
            if slot[0] > now:
                agent.slots.append(slot)
            else:
                free.append(slot[0])
                self._end(agent, slot)

    def _end(self, agent: Agent, slot: tuple[float, str, int]) -> None:
        _, chunk, items = slot
        agent.ended.append(EndedChunk(chunk, items, 0, items * ITEM_SECONDS, items * 20))
        agent.items += items

    async def _report(self, agent: Agent) -> None:
        store = self._cloud.store
        if len(agent.ended) > SEAL_AFTER:
            agent.sealed += 1
            name = self._run.seal(agent.instance, agent.sealed)
            await store.write(name, seal_to_bytes(tuple(agent.ended)))
            agent.ended.clear()
        agent.sequence += 1
        report = Report(
            agent.instance,
            agent.launch,
            0,
            SLOTS,
            agent.sequence,
            RUNNING,
            ended=tuple(agent.ended),
            sealed=agent.sealed,
            held=tuple(chunk for _, chunk, _ in agent.slots),
            running=tuple(RunningItem(1, 1, chunk, 1.0) for _, chunk, _ in agent.slots),
            items_ok=agent.items,
            item_seconds=agent.items * ITEM_SECONDS,
        )
        await store.write(self._run.report(agent.instance), report.to_bytes())


async def tick_for(items: int) -> Ticks:
    """Measure the ticks of a run of so many items, from the first: its machines are asked for in it."""
    clock = Standing()
    cloud = MemoryCloud("bench", clock=clock, slots=SLOTS, capacity=MACHINES)
    settings = Settings("bench", "memory", b"a key of the benchmark", options={"cloud": cloud.name})
    site = Site(settings, MemoryBackend(settings), cloud.store, clock=clock.now, wall_clock=clock.now)
    policy = Policy(concurrency=MACHINES * SLOTS, early_stop=None)
    submitted = await submit(site, job_request(work.nothing, range(items), policy), silent)
    assert submitted.run is not None
    fleet = Fleet(cloud, submitted.run)
    controller = Controller(site, submitted.run, silent)
    ticks = Ticks()
    with measured() as block:
        for _ in range(TICKS):
            with _timed() as seconds:
                await controller.tick()
            clock.at += BETWEEN
            await fleet.live_to(clock.at)
            ticks.seconds.append(seconds[0])
    ticks.peak_mb = block.peak_mb
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # the machines' lives
    return ticks


@contextmanager
def _timed() -> Iterator[list[float]]:
    seconds: list[float] = []
    began = time.process_time()
    yield seconds
    seconds.append(time.process_time() - began)
