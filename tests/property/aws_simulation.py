"""Whole runs on the aws backend in virtual time: EC2, SQS and S3 are moto's, the machines' agents run here.

What moto's EC2 launches is a machine of the simulated cloud, with the same life: an agent that boots, works
by the script, and ends with its machine or ends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.agent.agent import run_agent
from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.queue import queue_prefix
from airflow_provider_spotbatch.backends.base import Lease, Offer, Queue
from airflow_provider_spotbatch.backends.memory import SimulatedMachine
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store, StoredObject
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from tests.cloud.cloudbox.moto import Moto
from tests.property.outside_clock import OutsideClock
from tests.property.scripted import ScriptedWorker
from tests.property.simulation import Simulation, WatchedCloud
from tests.support.aws import REGION

EMPTY_SECONDS = 2.0
"""Between two looks of an agent into an empty queue: SQS's own long poll takes real time."""

LATENCY = 2.0
"""Virtual seconds that a call may take, which are real ones, on a busy machine."""

_numbers = itertools.count()


async def _open_gate() -> None:
    return None


@dataclass
class Mirror:
    """What was written, as the checks of a simulation look at it: name → bytes and entry."""

    named: dict[str, tuple[bytes, StoredObject]] = field(default_factory=dict)


class MirroredStore(Store):
    """A bucket whose objects are as old as the clock says. ``gate``: of the machine that asks."""

    def __init__(
        self,
        store: Store,
        clock: OutsideClock,
        objects: Mirror,
        gate: Callable[[], Awaitable[None]] = _open_gate,
    ) -> None:
        super().__init__(store.uri, store.inner)
        self.objects = objects
        self._clock = clock
        self._gate = gate

    def of_machine(self, gate: Callable[[], Awaitable[None]]) -> MirroredStore:
        return MirroredStore(self, self._clock, self.objects, gate)

    async def create(self, name: str, data: bytes) -> bool:
        created = await super().create(name, data)
        if created:
            self._keep(name, data)
        return created

    async def write(self, name: str, data: bytes) -> None:
        await super().write(name, data)
        self._keep(name, data)

    async def upload(self, name: str, path: Path) -> None:
        await super().upload(name, path)
        self._keep(name, await asyncio.to_thread(path.read_bytes))

    async def find(self, name: str) -> StoredObject | None:
        found = await super().find(name)
        return found and self._in_its_time(found)

    async def list_objects(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        return [self._in_its_time(entry) for entry in await super().list_objects(prefix, after)]

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        async for page in super().pages(prefix):
            yield [self._in_its_time(entry) for entry in page]

    async def take_all(self) -> None:
        """Make the mirror what the bucket is: a cancelled write may have been carried out."""
        for entry in await super().list_objects(""):
            known = self.objects.named.get(entry.name)
            if known is None or entry.tag != f'"{hashlib.md5(known[0]).hexdigest()}"':
                data = await self.read(entry.name)
                assert data is not None
                self._keep(entry.name, data)

    async def _ask(self, *given: Any, **named: Any) -> Any:
        await self._gate()
        with self._clock.outside():
            answer = await super()._ask(*given, **named)
        await self._gate()
        return answer

    def _keep(self, name: str, data: bytes) -> None:
        known = self.objects.named.get(name)
        if known is None or known[0] != data:
            self.objects.named[name] = (data, StoredObject(name, len(data), "", self._clock.now()))

    def _in_its_time(self, entry: StoredObject) -> StoredObject:
        known = self.objects.named.get(entry.name)
        return replace(entry, modified=self._clock.now() if known is None else known[1].modified)


class QueueHere:
    """A queue of SQS whose waits are virtual. ``gate``: of the machine that asks."""

    def __init__(
        self, queue: Queue, clock: OutsideClock, gate: Callable[[], Awaitable[None]] = _open_gate
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._gate = gate

    async def send(self, bodies: Sequence[str]) -> None:
        await self._ask(lambda: self._queue.send(bodies))

    async def receive(self, most: int, wait: float) -> list[Lease]:
        until = self._clock.now() + wait
        while True:
            leases: list[Lease] = await self._ask(lambda: self._queue.receive(most, 0))
            left = until - self._clock.now()
            if leases or left <= 0:
                return leases
            await asyncio.sleep(min(EMPTY_SECONDS, left))

    async def extend(self, lease: Lease) -> None:
        await self._ask(lambda: self._queue.extend(lease))

    async def release(self, lease: Lease) -> None:
        await self._ask(lambda: self._queue.release(lease))

    async def ack(self, lease: Lease) -> None:
        await self._ask(lambda: self._queue.ack(lease))

    async def delete(self) -> None:
        await self._ask(self._queue.delete)

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._gate()
        with self._clock.outside():
            answer = await call()
        await self._gate()
        return answer


class FleetHere:
    """A fleet of EC2, and the agents of its machines."""

    def __init__(self, backend: AwsHere, run: Run, boot: Boot) -> None:
        self._fleet = AwsBackend.fleet(backend, run, boot)
        self._cloud = backend.cloud
        self._run = run
        self._boot = boot
        self.visibility_bound = self._fleet.visibility_bound

    async def launch(self, record: LaunchRecord, within: float = math.inf) -> LaunchOutcome:
        outcome = await self._fleet.launch(record, within)
        for machine in outcome.instances:
            if machine.id not in self._cloud.machines:
                boot = self._boot.for_machine(
                    machine.id, record.number, machine.slots, record.memory_class, "", record.lifetime_seconds
                )
                self._cloud.start(self._run, boot, record)
        return outcome

    async def describe(self) -> list[Instance]:
        return await self._fleet.describe()

    async def terminate(self, instances: Sequence[str]) -> None:
        await self._fleet.terminate(instances)
        for instance in instances:
            self._cloud.terminate(instance)

    async def close(self) -> None:
        await self._fleet.close()


class AwsHere(AwsBackend):
    """The aws backend with agents in this process: machines need nothing sent, and are of one kind."""

    tick_seconds = 2.0

    def __init__(
        self, settings: Settings, clock: OutsideClock, cloud: WatchedCloud, request: dict[str, Any]
    ) -> None:
        super().__init__(settings)
        self.clock = clock
        self.cloud = cloud
        self._request = request

    def open_store(self) -> MirroredStore:
        return self.cloud.store

    def fleet(self, run: Run, boot: Boot) -> FleetHere:
        return FleetHere(self, run, boot)

    def queue(
        self, run: Run, memory_class: int, gate: Callable[[], Awaitable[None]] = _open_gate
    ) -> QueueHere:
        return QueueHere(super().queue(run, memory_class), self.clock, gate)

    async def terminate(self, instances: Sequence[str]) -> None:
        await super().terminate(instances)
        for instance in instances:
            self.cloud.terminate(instance)

    async def bare_machines(self, resources: Resources) -> None:
        return None

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        return [Offer("spot-2", 2, 0.05, request=self._request, types=("m5.large",))]


class MachineHere:
    """What an agent opens on its machine: nobody tells it anything."""

    def __init__(self, backend: AwsHere, machine: SimulatedMachine) -> None:
        self._backend = backend
        self._machine = machine

    def queue(self, run: Run, memory_class: int) -> QueueHere:
        return self._backend.queue(run, memory_class, self._machine.gate)

    def notices(self) -> MachineHere:
        return self

    async def wait(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    wait_for_advice = wait

    async def secret(self, reference: str) -> str:
        raise AssertionError("no item asks for secrets")


class AwsSimulation(Simulation):
    """One job in a place of its own in moto. ``account``: settings whose store that place is below;
    ``request``: what a launch record holds for EC2."""

    def __init__(self, moto: Moto, account: Settings, request: dict[str, Any], **rest: Any) -> None:
        self._moto = moto
        self._account = account
        self._request = request
        super().__init__(**rest)
        self._latency = LATENCY

    def _open(self, seed: int, settings: dict[str, Any], cloud: dict[str, Any]) -> tuple[WatchedCloud, Site]:
        self.clock = clock = OutsideClock()
        number = next(_numbers)
        opened = replace(
            self._account, conn_id=f"aws-{number}", store=f"{self._account.store}/{number}", **settings
        )
        own = WatchedCloud(
            opened.conn_id,
            clock=clock,
            chance=random.Random(seed),
            on_boot=self._agent,
            **{"boot_seconds": 5.0, **cloud},
        )
        self.backend = backend = AwsHere(opened, clock, own, self._request)
        own.store = MirroredStore(AwsBackend.open_store(backend), clock, Mirror())
        return own, Site(opened, backend, own.store, clock=clock.now, wall_clock=clock.now)

    def play(self, *given: Any) -> Any:
        outcome = super().play(*given)
        self.clock.run(self.cloud.store.take_all())
        return outcome

    async def _agent(self, boot: Boot, machine: SimulatedMachine) -> None:
        async def start_worker(slot: int) -> Any:
            return ScriptedWorker(self, machine)

        store = self.cloud.store.of_machine(machine.gate)
        try:
            await run_agent(
                boot,
                MachineHere(self.backend, machine),
                store,
                clock=self.clock.now,
                start_worker=start_worker,
            )
        finally:
            self._moto.client("ec2", REGION).terminate_instances(InstanceIds=[machine.id])

    def check_nothing_left(self, run: Run) -> None:
        ec2 = self._moto.client("ec2", REGION)
        ours = [{"Name": f"tag:{STORE_TAG}", "Values": [self.backend.store_uri]}]
        on = [
            f"{machine['InstanceId']} ({machine['State']['Name']})"
            for reservation in ec2.describe_instances(Filters=ours)["Reservations"]
            for machine in reservation["Instances"]
            if machine["State"]["Name"] != "terminated"
        ]
        assert not on, f"machines left on: {on}\n{self.log()}"
        templates = ec2.describe_launch_templates(Filters=ours)["LaunchTemplates"]
        assert not templates, f"launch templates left: {templates}\n{self.log()}"
        prefix = queue_prefix(self.backend.store_uri)
        queues = self._moto.client("sqs", REGION).list_queues(QueueNamePrefix=prefix).get("QueueUrls", [])
        assert not queues, f"queues left: {queues}\n{self.log()}"
