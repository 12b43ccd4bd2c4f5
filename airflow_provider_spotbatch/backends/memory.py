"""A whole simulated cloud in this process: for tests of the control loop, and for simulation.

It obeys the ports' contracts, and misbehaves within them as its :class:`Faults` say. All its time
comes from a clock and all its chance from a ``random.Random``, both injected: under a
:class:`VirtualClock` the same seed gives the same story.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from airflow_provider_spotbatch.backends.base import BareMachines, Check, Offer, RunMachine
from airflow_provider_spotbatch.backends.memory_clock import Clock, RealClock
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.backends.memory_queue import MemoryQueue, Messages
from airflow_provider_spotbatch.backends.memory_store import MemoryStore, Objects
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import (
    CloudUnavailable,
    InvalidInput,
    NoCapacity,
    Refusal,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import (
    PENDING,
    RUNNING,
    TERMINATED,
    Instance,
    LaunchOutcome,
    LaunchRecord,
)
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, Policy
from airflow_provider_spotbatch.job.resources import Resources

CONCURRENCY = 64
"""Items in flight where the user does not say, as on every cloud."""

REMEMBERED_SECONDS = 3600.0
"""How long describe still shows a terminated machine, as EC2 does."""

OnBoot = Callable[[Boot, "SimulatedMachine"], Awaitable[None]]

_registry: WeakValueDictionary[str, MemoryCloud] = WeakValueDictionary()


@dataclass(eq=False)
class SimulatedMachine:
    """One machine. What runs on it reaches the cloud through ``queue``, ``store`` and ``sleep``, where
    it stops while the machine is frozen, and for good once it is off; it hears of its end by ``notice``."""

    cloud: MemoryCloud
    run: Run
    boot: Boot
    spot: bool
    usd_per_hour: float
    launched: float
    visible: float
    state: str = PENDING
    interrupted: bool = False
    reason: str = ""
    ended: float | None = None
    notice: asyncio.Event = field(default_factory=asyncio.Event)
    advice: asyncio.Event = field(default_factory=asyncio.Event)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    life: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.boot.instance

    @property
    def cost(self) -> float:
        """US dollars so far."""
        until = self.cloud.clock.now() if self.ended is None else self.ended
        return self.usd_per_hour * (until - self.launched) / 3600

    def queue(self, run: Run, memory_class: int) -> MemoryQueue:
        return MemoryQueue(self.cloud, run.queue(memory_class), self.boot.lease, self.gate)

    @property
    def store(self) -> MemoryStore:
        return MemoryStore(self.cloud, self.cloud.store.objects, self.gate)

    async def sleep(self, seconds: float) -> None:
        await self.cloud.clock.sleep(seconds)
        await self.gate()

    async def gate(self) -> None:
        await self.awake.wait()
        if self.state == TERMINATED:
            raise asyncio.CancelledError  # nothing runs on: neither a last report nor a release

    def describe(self) -> Instance:
        return Instance(
            id=self.id,
            launch=self.boot.launch,
            state=self.state,
            slots=self.boot.slots,
            usd_per_hour=self.usd_per_hour,
            interrupted=self.interrupted,
            reason=self.reason,
        )


class MemoryCloud:
    """Store, queues and machines. Set ``on_boot`` to what runs on each machine: when it returns, or
    raises, the machine is off; when the machine ends, it is cancelled.

    ``capacity``: machines at once; ``slots`` and price of the one kind of machine on offer, sold as spot and
    on demand, unless ``offers`` lists several; ``largest``: the largest item that fits; ``boot_seconds``:
    pending until then; ``end_seconds``: how long a terminated machine is still running;
    ``visibility_bound``: of the fleet; ``root``: the backend's. Times in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        faults: Faults | None = None,
        on_boot: OnBoot | None = None,
        lease: float = 30.0,
        tick_seconds: float = 1.0,
        slots: int = 2,
        usd_per_hour: float = 0.1,
        offers: Sequence[Offer] | None = None,
        largest: Resources | None = None,
        bare_machines: BareMachines | None = None,
        capacity: int = 1_000_000,
        boot_seconds: float = 0.0,
        end_seconds: float = 0.0,
        visibility_bound: float = 0.0,
        root: str | None = None,
    ) -> None:
        self.name = name
        self.root = root or os.path.join(tempfile.gettempdir(), f"spotbatch-{os.getpid()}")
        self.clock = clock or RealClock()
        self.random = chance or random.Random(0)
        self.faults = faults or Faults()
        self.on_boot = on_boot
        self.lease = lease
        self.tick_seconds = tick_seconds
        self.usd_per_hour = usd_per_hour
        self.bare_machines = bare_machines
        self.offers = offers or [
            Offer(name=purchase, slots=slots, usd_per_hour=usd_per_hour, purchase=purchase)
            for purchase in (SPOT, ON_DEMAND)
        ]
        self.largest = largest or Resources(cpus=64, memory_gb=512, gpus=8, gpu_memory_gb=80, disk_gb=1000)
        self.capacity = capacity
        self.boot_seconds = boot_seconds
        self.end_seconds = end_seconds
        self.visibility_bound = visibility_bound
        self.store = MemoryStore(self, Objects())
        self.queues: dict[str, Messages] = {}
        self.machines: dict[str, SimulatedMachine] = {}
        self._background: set[asyncio.Task[None]] = set()
        _registry[name] = self

    @staticmethod
    def named(name: str) -> MemoryCloud:
        """The cloud of this name, as long as somebody holds it. Raises InvalidInput if nobody does."""
        try:
            return _registry[name]
        except KeyError:
            raise InvalidInput(
                f"there is no simulated cloud {name!r} in this process: the memory backend is for tests, "
                "which make one with MemoryCloud(name)"
            ) from None

    def on(self) -> list[SimulatedMachine]:
        """The machines that cost money now."""
        return [machine for machine in self.machines.values() if machine.state != TERMINATED]

    def cost(self) -> float:
        """What all machines have cost so far, in US dollars."""
        return math.fsum(machine.cost for machine in self.machines.values())

    def reclaim(self, instance: str, *, notice: bool = True) -> None:
        """Take a machine back: after its grace if it is told, else at once."""
        machine = self.machines[instance]
        if not notice:
            self._end(machine, "taken back without notice", interrupted=True)
            return
        machine.notice.set()
        self._later(machine.boot.grace, lambda: self._end(machine, "taken back", interrupted=True))

    def advise(self, instance: str) -> None:
        """Tell a machine that it may soon be taken back."""
        self.machines[instance].advice.set()

    def kill(self, instance: str) -> None:
        """The machine is gone, and nobody says why."""
        self._end(self.machines[instance], "", interrupted=False)

    def freeze(self, instance: str) -> None:
        """What runs on the machine stops at its next call, until :meth:`thaw`."""
        self.machines[instance].awake.clear()

    def thaw(self, instance: str) -> None:
        self.machines[instance].awake.set()

    def happens(self, chance: str) -> bool:
        """Draw whether a fault of this name happens now."""
        probability: float = getattr(self.faults, chance)
        return probability > 0 and self.random.random() < probability

    async def travel(self) -> None:
        """One way of a call or its answer; others may run meanwhile."""
        await self.clock.sleep(self.random.uniform(0, self.faults.latency) if self.faults.latency else 0)

    def start(self, run: Run, boot: Boot, record: LaunchRecord) -> SimulatedMachine:
        """Start one machine with its boot data."""
        now = self.clock.now()
        hidden = min(self.faults.hide_fresh, self.visibility_bound)
        machine = SimulatedMachine(
            cloud=self,
            run=run,
            boot=boot,
            spot=record.purchase == SPOT,
            usd_per_hour=float(record.request.get("usd_per_hour", self.usd_per_hour)),
            launched=now,
            visible=now + (self.random.uniform(0, hidden) if hidden else 0.0),
        )
        machine.awake.set()
        self.machines[machine.id] = machine
        machine.life = asyncio.ensure_future(self._live(machine))
        return machine

    def terminate(self, instance: str) -> None:
        machine = self.machines.get(instance)
        if machine is not None and machine.state != TERMINATED:
            self._later(self.end_seconds, lambda: self._end(machine, "terminated", machine.interrupted))

    async def ask_for_machines(self) -> list[RunMachine]:
        """A call: the machines of all runs that are listed now."""
        await self.travel()
        if self.happens("throttle_describe"):
            raise Throttled("simulated fault: too many calls to describe")
        now = self.clock.now()
        listed = [
            RunMachine(machine.run.tag, machine.describe())
            for machine in self.machines.values()
            if machine.visible <= now and (machine.ended is None or now < machine.ended + REMEMBERED_SECONDS)
        ]
        await self.travel()
        return listed

    async def ask_to_terminate(self, instances: Sequence[str]) -> None:
        """A call: end these machines."""
        await self.travel()
        failed = []
        for instance in instances:
            if self.happens("fail_terminate"):
                failed.append(instance)
            else:
                self.terminate(instance)
        await self.travel()
        if failed:
            raise Throttled(f"simulated fault: these machines could not be asked to end: {', '.join(failed)}")

    async def _live(self, machine: SimulatedMachine) -> None:
        """A machine from its launch to its end."""
        self._later(machine.boot.lifetime, lambda: self._end(machine, "its lifetime was over", False))
        await self.clock.sleep(self.boot_seconds)
        if machine.spot and self.happens("die_booting"):
            self._end(machine, "taken back while booting", interrupted=True)
            return
        machine.state = RUNNING
        if machine.spot and self.faults.reclaims_per_hour:
            self._plan_reclaim(machine)
        if self.on_boot is None:
            return
        reason = "the agent ended"
        try:
            await self.on_boot(machine.boot, machine)
        except Exception as error:  # noqa: BLE001 - a crash of the agent, whatever it is, ends its machine
            reason = f"the agent ended with {type(error).__name__}: {error}"
        self._end(machine, reason, interrupted=machine.notice.is_set())

    def _plan_reclaim(self, machine: SimulatedMachine) -> None:
        def reclaim() -> None:
            if machine.state == RUNNING and self.faults.reclaims_per_hour:
                self.reclaim(machine.id, notice=not self.happens("without_notice"))

        self._later(self.random.expovariate(self.faults.reclaims_per_hour / 3600), reclaim)

    def _end(self, machine: SimulatedMachine, reason: str, interrupted: bool) -> None:
        if machine.state == TERMINATED:
            return
        machine.state = TERMINATED
        machine.reason = reason
        machine.interrupted = interrupted
        machine.ended = self.clock.now()
        machine.awake.set()
        if machine.life is not None and machine.life is not asyncio.current_task():
            machine.life.cancel()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if seconds <= 0:
            act()
            return

        async def wait() -> None:
            await self.clock.sleep(seconds)
            act()

        task = asyncio.ensure_future(wait())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class MemoryFleet:
    """See :class:`~airflow_provider_spotbatch.backends.base.Fleet`."""

    def __init__(self, cloud: MemoryCloud, run: Run, boot: Boot) -> None:
        self.visibility_bound = cloud.visibility_bound
        self._cloud = cloud
        self._run = run
        self._boot = boot

    async def launch(self, record: LaunchRecord, within: float = math.inf) -> LaunchOutcome:
        until = self._cloud.clock.now() + within
        await self._cloud.travel()
        if self._cloud.clock.now() > until:
            raise CloudUnavailable(f"launch {record.number} was not asked for: it was too late for it")
        outcome = self._launched(record) or self._start(record)
        await self._cloud.travel()
        if self._cloud.happens("lose_answer"):
            raise ConnectionError("simulated fault: the answer to a launch was lost")
        return outcome

    async def describe(self) -> list[Instance]:
        machines = await self._cloud.ask_for_machines()
        return [machine.instance for machine in machines if machine.run == self._run.tag]

    async def terminate(self, instances: Sequence[str]) -> None:
        await self._cloud.ask_to_terminate(instances)

    async def close(self) -> None:
        """Nothing but machines serves to launch here."""

    def _machines(self) -> list[SimulatedMachine]:
        return [machine for machine in self._cloud.machines.values() if machine.run == self._run]

    def _launched(self, record: LaunchRecord) -> LaunchOutcome | None:
        """The machines of an earlier call with this record, if it gave any."""
        known = tuple(m.describe() for m in self._machines() if m.boot.launch == record.number)
        return LaunchOutcome(instances=known) if known else None

    def _start(self, record: LaunchRecord) -> LaunchOutcome:
        instances: list[Instance] = []
        refusals: list[Refusal] = []
        for ordinal, slots in enumerate(record.slots):
            refusal = self._cloud.faults.refuse(record, ordinal) or self._no_capacity()
            if refusal is not None:
                refusals.append(refusal)
                continue
            run = f"{self._run.generation.job}-{self._run.generation.number}-{self._run.number}"
            instance = f"{run}-{record.number}-{ordinal}"
            boot = self._boot.for_machine(
                instance, record.number, slots, record.memory_class, "", record.lifetime_seconds
            )
            instances.append(self._cloud.start(self._run, boot, record).describe())
        return LaunchOutcome(tuple(instances), tuple(refusals))

    def _no_capacity(self) -> Refusal | None:
        if len(self._cloud.on()) < self._cloud.capacity:
            return None
        return NoCapacity("the simulated cloud has no more machines", remedy="wait")


class MemoryBackend:
    """See :class:`~airflow_provider_spotbatch.backends.base.Backend`. Its one option, ``cloud``, names
    a :class:`MemoryCloud` of this process."""

    name = "memory"

    def __init__(self, settings: Settings) -> None:
        self.cloud = MemoryCloud.named(str(settings.options.get("cloud")))
        self.lease = self.cloud.lease
        self.tick_seconds = self.cloud.tick_seconds
        self.store_uri = self.cloud.store.uri
        self.store_options: dict[str, Any] = {}
        self.root = self.cloud.root
        self._most = settings.max_instances or self.cloud.capacity

    def open_store(self) -> MemoryStore:
        return self.cloud.store

    def fleet(self, run: Run, boot: Boot) -> MemoryFleet:
        return MemoryFleet(self.cloud, run, boot)

    def queue(self, run: Run, memory_class: int) -> MemoryQueue:
        return MemoryQueue(self.cloud, run.queue(memory_class), self.lease)

    async def machines(self) -> list[RunMachine]:
        return await self.cloud.ask_for_machines()

    async def terminate(self, instances: Sequence[str]) -> None:
        await self.cloud.ask_to_terminate(instances)

    async def queues(self) -> list[str]:
        await self.cloud.travel()
        return sorted(name for name, messages in self.cloud.queues.items() if not messages.deleted)

    async def forget_ended(self) -> int:
        return 0  # the cloud forgets by itself

    async def check(self) -> list[Check]:
        await self.cloud.travel()
        return [Check("cloud", True, f"at most {self.cloud.capacity} machines")]

    async def bare_machines(self, resources: Resources) -> BareMachines | None:
        return self.cloud.bare_machines

    def default_concurrency(self, resources: Resources, items: int) -> int:
        return max(1, min(items, CONCURRENCY))

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        if self.cloud.happens("throttle_offers"):
            raise Throttled("simulated fault: too many calls to ask for offers")
        for need in ("cpus", "memory_gb", "gpus", "gpu_memory_gb", "disk_gb"):
            asked, has = getattr(resources, need), getattr(self.cloud.largest, need)
            if asked > has:
                raise InvalidInput(
                    f"one item asks for item_resources.{need}={asked:g}; the largest machine has {has:g}"
                )
        return [
            replace(offer, most=min(offer.most, self._most))
            for purchase in policy.purchases
            for offer in self.cloud.offers
            if offer.purchase == purchase
        ]

    def boot_options(self) -> dict[str, Any]:
        return {"cloud": self.cloud.name}

    def in_region(self, region: str) -> MemoryBackend:
        raise InvalidInput(f"backend {self.name} has no regions: leave {region!r} out")

    def continues_elsewhere(self) -> str | None:
        return f"process {os.getpid()}"


class MemoryMachine:
    """A simulated machine, as the agent that runs on it sees it."""

    def __init__(self, boot: Boot) -> None:
        self._machine = MemoryCloud.named(boot.backend_options["cloud"]).machines[boot.instance]

    def queue(self, run: Run, memory_class: int) -> MemoryQueue:
        return self._machine.queue(run, memory_class)

    def notices(self) -> MemoryNotices:
        return MemoryNotices(self._machine)

    async def secret(self, reference: str) -> str:
        raise InvalidInput(f"a simulated machine has no secrets: {reference} cannot be resolved")


class MemoryNotices:
    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    async def wait(self) -> str:
        await self._machine.notice.wait()
        return "the machine was told that it will be taken back"

    async def wait_for_advice(self) -> str:
        await self._machine.advice.wait()
        return "the machine was told that it may be taken back"
