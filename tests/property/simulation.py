"""Whole runs in virtual time: the real controller and the real agents over the simulated cloud.

Only worker processes are stood in for, by a script. When a story is over, :meth:`Simulation.check`
looks at everything that must hold after every run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from airflow_provider_spotbatch.agent.agent import run_agent
from airflow_provider_spotbatch.backends.memory import (
    MemoryBackend,
    MemoryCloud,
    MemoryMachine,
    SimulatedMachine,
)
from airflow_provider_spotbatch.backends.memory_clock import VirtualClock
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.drive import drive
from airflow_provider_spotbatch.control.finish import finish
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.control.submit import JobRequest, Submitted, submit
from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.chunks import Batch, Chunk
from airflow_provider_spotbatch.job.errors import StoreUnavailable
from airflow_provider_spotbatch.job.index import BLOCK_RECORDS, Place, block_span, open_block, place_at
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.outcome import FAILURE, OK, decode_head
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import ENDED, Report
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED, Outcome
from tests.property.boundaries import Befall, Boundaries, Killed, nothing
from tests.property.scripted import ItemRun, Script, ScriptedWorker

DEADLINE = 6 * 3600.0
"""Virtual seconds in which every story must be over."""

REACTION = 1.0
"""Virtual seconds between an agent's look at a result and the start of the run: a result that became
durable within them could not have been seen."""

_numbers = itertools.count()


class WatchedCloud(MemoryCloud):
    """Notes at each start how many slots are in use."""

    most_slots = 0

    def start(self, run: Run, boot: Boot, record: LaunchRecord) -> SimulatedMachine:
        machine = super().start(run, boot, record)
        in_use = sum(each.boot.slots for each in self.on() if not self._ended(each))
        self.most_slots = max(self.most_slots, in_use)
        return machine

    def _ended(self, machine: SimulatedMachine) -> bool:
        found = self.store.objects.named.get(machine.run.report(machine.id))
        return found is not None and Report.from_bytes(found[0]).state == ENDED


class Simulation:
    """One job on one simulated cloud. ``cloud``: more of what a MemoryCloud takes."""

    def __init__(
        self,
        *,
        items: int = 6,
        seed: int = 0,
        policy: Policy | None = None,
        script: Script | None = None,
        settings: dict[str, Any] | None = None,
        **cloud: Any,
    ) -> None:
        self.items = items
        self.policy = policy or Policy(concurrency=4, early_stop=None)
        self.script = script or Script()
        self.clock = VirtualClock()
        self.cloud, self.site = self._open(seed, settings or {}, cloud)
        self._latency = 0.0
        self.runs: list[ItemRun] = []
        self.said: list[str] = []
        self._mishaps = {item: list(planned) for item, planned in self.script.mishaps.items()}
        self._batches: dict[str, Batch] = {}

    def _open(self, seed: int, settings: dict[str, Any], cloud: dict[str, Any]) -> tuple[WatchedCloud, Site]:
        own = WatchedCloud(
            f"simulation-{next(_numbers)}",
            clock=self.clock,
            chance=random.Random(seed),
            on_boot=self._agent,
            **{"tick_seconds": 2.0, "boot_seconds": 5.0, **cloud},
        )
        opened = Settings("c", "memory", b"a key for tests", options={"cloud": own.name}, **settings)
        backend = MemoryBackend(opened)
        return own, Site(opened, backend, own.store, clock=self.clock.now, wall_clock=self.clock.now)

    # --- the story ---------------------------------------------------------------------------------

    def play(self, story: Coroutine[Any, Any, Any], deadline: float = DEADLINE) -> Any:
        """Tell a story to its end, within so many virtual seconds."""
        try:
            return self.clock.run(asyncio.wait_for(story, deadline))
        except asyncio.TimeoutError:
            raise AssertionError("the story did not end\n" + self.log()) from None

    async def until(self, condition: Callable[[], Any]) -> Any:
        """The first truthy answer, asked twice a virtual second."""
        while not (answer := condition()):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.5)
        return answer

    def use_faults(self, faults: Faults) -> None:
        """From now on the cloud misbehaves so."""
        self.cloud.faults = faults
        self._latency = max(self._latency, faults.latency)

    def say(self, line: str) -> None:
        self.said.append(f"{self.clock.now() - 1e9:8.1f}  {line}")

    def log(self) -> str:
        return "\n".join(self.said[-60:])

    async def submit(self, *, max_tries: int = 0, befall: Befall = nothing, **changed: Any) -> Submitted:
        """What a try of the task does first."""
        request = JobRequest(
            deployment="tests",
            dag_id="dag",
            run_id="run",
            task_id="task",
            map_index=-1,
            max_tries=max_tries,
            dag_run_started="then",
            packing=_packing(),
            items=list(range(self.items)),
            policy=changed.pop("policy", self.policy),
        )
        return await submit(Boundaries(befall).around(self.site), request, self.say)

    async def begin_run(self, **given: Any) -> Run:
        submitted = await self.submit(**given)
        assert submitted.run is not None, submitted
        return submitted.run

    async def drive(self, run: Run, befall: Befall = nothing) -> Boundaries:
        """A controller process until the run is over. Raises Killed if that befalls it."""
        boundaries = Boundaries(befall)
        controller = Controller(boundaries.around(self.site), run, self.say, random=self.cloud.random.random)
        await drive(controller, self.say)
        return boundaries

    async def drive_until_killed(self, run: Run, befall: Befall) -> bool:
        """Whether it was killed before the run was over."""
        try:
            await self.drive(run, befall)
        except Killed:
            return True
        return False

    async def finish(self, run: Run, befall: Befall = nothing) -> Outcome:
        return await finish(Boundaries(befall).around(self.site), run, self.say)

    async def finish_at_last(self, run: Run) -> Outcome:
        """As Airflow's retries would: again after a store that did not answer."""
        while True:
            try:
                return await self.finish(run)
            except StoreUnavailable as error:
                self.say(f"finishing failed: {error}")
                await asyncio.sleep(60.0)

    async def whole_job(self, *befall: Befall, pause: float = 20.0) -> Outcome:
        """Submit, drive and finish; each of ``befall`` is met by one controller, and where that is
        killed the next one comes after ``pause`` seconds."""
        run = await self.begin_run()
        for each in befall:
            if not await self.drive_until_killed(run, each):
                break
            await asyncio.sleep(pause)
        else:
            await self.drive(run)
        return await self.finish(run)

    # --- what runs on machines ---------------------------------------------------------------------

    async def _agent(self, boot: Boot, machine: SimulatedMachine) -> None:
        async def start_worker(slot: int) -> Any:
            return ScriptedWorker(self, machine)

        await run_agent(
            boot, MemoryMachine(boot), machine.store, clock=self.clock.now, start_worker=start_worker
        )

    def begin(self, item: int, attempt: int, instance: str, chunk: Chunk | None) -> ItemRun:
        durable = None
        if chunk is not None:
            stored = self.cloud.store.objects.named.get(self.generation.result(chunk.id))
            durable = stored[1].modified if stored else None
        run = ItemRun(item, attempt, instance, self.clock.now(), durable)
        self.runs.append(run)
        return run

    def next_mishap(self, item: int) -> str | None:
        planned = self._mishaps.get(item)
        return planned.pop(0) if planned else None

    def chunk_of(self, items: Sequence[int], attempt: int) -> Chunk | None:
        """The chunk, of those sent, that holds these items last: the latest of them without a result."""
        found: Chunk | None = None
        for name, (data, _) in self.cloud.store.objects.named.items():
            if "/chunks/" not in name:
                continue
            batch = self._batches.setdefault(name, Batch.from_bytes(data))
            for chunk in batch.chunks:
                if chunk.attempt == attempt and list(chunk.items())[-len(items) :] == list(items):
                    if self.generation.result(chunk.id) not in self.cloud.store.objects.named:
                        return chunk
                    found = chunk
        return found

    # --- what must hold ----------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        """The newest one."""
        names = [name for name in self.cloud.store.objects.named if name.endswith("/spec.json")]
        _, job, number, _ = max(names).split("/")
        return Generation(job, int(number))

    def stored(self, name: str) -> bytes:
        return self.cloud.store.objects.named[name][0]

    def index(self, run: Run) -> list[Place]:
        """The standing outcome of each item."""
        signer, places = self.site.signer(run.generation), []
        data = self.stored(run.index)
        for item in range(self.items):
            number, start, stop = block_span(item)
            records = open_block(signer, run.number, number, data[start:stop])
            places.append(place_at(records, item % BLOCK_RECORDS))
        return places

    def check(self, outcome: Outcome, *, complete: bool = True, retries: int | None = None) -> None:
        """Everything that must hold after every run; ``complete``: it was not stopped half-way."""
        self.check_nothing_left(outcome.of_run)
        self.check_slots()
        self.check_runs()
        self.check_outcomes(outcome, complete, self.policy.item_retries if retries is None else retries)

    def check_nothing_left(self, run: Run) -> None:
        on = [f"{machine.id} ({machine.state})" for machine in self.cloud.on()]
        assert not on, f"machines left on: {on}\n{self.log()}"
        undeleted = [name for name, messages in self.cloud.queues.items() if not messages.deleted]
        assert not undeleted, f"queues left: {undeleted}"

    def check_slots(self) -> None:
        concurrency = self.policy.concurrency
        assert concurrency is None or self.cloud.most_slots <= concurrency, (
            f"{self.cloud.most_slots} slots in use, of {concurrency}\n{self.log()}"
        )

    def check_runs(self) -> None:
        """No chunk ran again once its result was durable, but for what travels take."""
        reaction = REACTION + 4 * self._latency
        again = [run for run in self.runs if run.durable is not None and run.start - run.durable > reaction]
        assert not again, f"ran again though their result was durable: {again}\n{self.log()}"

    def check_outcomes(self, outcome: Outcome, complete: bool, retries: int) -> None:
        run = outcome.of_run
        counted: Counter[str] = Counter()
        for item, place in enumerate(self.index(run)):
            if place.cause is None or place.chunk is None:
                assert not complete, f"item {item} has no outcome\n{self.log()}"
                continue
            counted[place.cause] += 1
            expected = self.script.expected(item, retries)
            assert (place.cause, place.attempts) == expected, (
                f"item {item} ended as {place.cause} after {place.attempts} attempts, not {expected}\n"
                + self.log()
            )
            self._check_result(run, item, place)
        assert outcome.ok == counted[OK]
        assert outcome.causes == {cause: count for cause, count in counted.items() if cause != OK}
        assert outcome.items == self.items
        if complete:
            assert (outcome.state == SUCCEEDED) == (
                outcome.failed <= self.policy.failures_allowed(self.items)
            ), outcome

    def _check_result(self, run: Run, item: int, place: Place) -> None:
        """The index leads to the item's own value."""
        assert place.chunk is not None
        data = self.stored(run.generation.result(place.chunk))
        head = decode_head(self.site.signer(run.generation), place.chunk, data)
        row = head.rows[place.ordinal]
        start, stop = head.span(place.ordinal)
        value = json.loads(head.check(place.ordinal, data[start:stop]))
        assert (row.item, row.cause) == (item, place.cause)
        assert row.kind == FAILURE or value == {"item": item}


def _packing() -> Packing:
    return Packing(
        function=None,
        dotted=None,
        command=["scripted", "{item}"],
        kwargs={},
        call="item",
        environment=Environment(),
        bundle=None,
        name="scripted",
    )
