"""What the conformance suites ask of each backend's own set-up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_spotbatch.backends import open_machine
from airflow_provider_spotbatch.backends.base import Backend, Fleet, Machine, Queue
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import Instance, LaunchRecord

PATIENCE = 20.0
"""Seconds that a test waits for what must come soon: only a broken backend needs them."""


ONE_TOKEN = "one launch per token"
LIVE_MACHINES = "machines that run"
ONE_DELIVERY = "one delivery of each message"
MANY_MESSAGES = "speed with many messages"
"""What an emulator may lack: see :meth:`Place.needs`."""


@dataclass
class Place:
    """A backend, one run on it, and what only its own set-up can do.

    Agents that ``fleet`` starts do nothing until they are ended; those of ``brief_fleet`` end at
    once. ``interrupt`` has the platform take a machine back, ``advise`` advise to leave it. After ``enter``
    this process hears what that machine hears. ``orders`` is what boot data, and ``request`` what a launch
    record of the backend holds of its own. ``coarser`` names what an emulator
    does more coarsely than the cloud it stands for, and how: tests that rest on it say so, and are skipped
    there.
    """

    backend: Backend
    idle_agents: Callable[[], None]
    brief_agents: Callable[[], None]
    interrupt: Callable[[str], None]
    advise: Callable[[str], None]
    enter: Callable[[str], None] = lambda instance: None
    orders: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    coarser: dict[str, str] = field(default_factory=dict)

    run = Run(Generation("conformance-0123456789abcdef", 1), 1)

    @property
    def boot(self) -> Boot:
        generation = self.run.generation
        return Boot(
            backend=self.backend.name,
            store=self.backend.store_uri,
            job=generation.job,
            generation=generation.number,
            run=self.run.number,
            key="00" * 32,
            grace=0.3,
            backend_options=self.backend.boot_options(),
            store_options=self.backend.store_options,
            **self.orders,
        )

    @property
    def fleet(self) -> Fleet:
        self.idle_agents()
        return self.backend.fleet(self.run, self.boot)

    @property
    def brief_fleet(self) -> Fleet:
        self.brief_agents()
        return self.backend.fleet(self.run, self.boot)

    def record(self, number: int = 1, machines: int = 2) -> LaunchRecord:
        """A launch record of machines that hold three items each."""
        return LaunchRecord(
            number=number, slots=(3,) * machines, token=f"token-{number}", request=self.request
        )

    def machine(self, launched: Instance) -> Machine:
        """What an agent opens on that machine."""
        self.enter(launched.id)
        return open_machine(self.boot.for_machine(launched.id, launched.launch, launched.slots, 0, ""))

    def needs(self, what: str) -> None:
        """Skip the test where the emulator is too coarse for it."""
        if what in self.coarser:
            pytest.skip(f"needs {what}: {self.coarser[what]}")

    def queue(self, *, lease: float | None = None) -> Queue:
        if lease is not None:
            self.backend.lease = lease
        return self.backend.queue(self.run, 0)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


async def described(fleet: Fleet, instance: str) -> Instance:
    """The machine, as soon as the fleet shows it."""
    found: list[Instance] = []

    async def shown() -> bool:
        found[:] = [machine for machine in await fleet.describe() if machine.id == instance]
        return bool(found)

    await until(shown)
    return found[0]


async def until_state(fleet: Fleet, instance: str, state: str) -> Instance:
    async def reached() -> bool:
        return (await described(fleet, instance)).state == state

    await until(reached)
    return await described(fleet, instance)


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


def missing(service: str) -> None:
    """A service that a backend's tests need is not there: a failure in CI, a skip at home."""
    if in_ci():
        pytest.fail(f"{service} is missing")
    pytest.skip(f"{service} is missing")
