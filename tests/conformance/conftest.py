"""The backends that the suites run on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.local import LocalBackend
from airflow_provider_spotbatch.backends.memory import MemoryBackend, MemoryCloud, SimulatedMachine
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.boot import Boot
from tests.cloud.cloudbox.needs import missing_needs
from tests.conformance.aws import box_place, moto_place
from tests.conformance.place import Place, in_ci, missing

BACKENDS = ("memory", "local", "aws")


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "aws":
        yield from _aws(request, request.getfixturevalue("monkeypatch"), tmp_path.name)
    else:
        yield from {"memory": _memory, "local": _local}[request.param](tmp_path)


def _aws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Place]:
    """The box, which fails in CI where it cannot run; at home without root and the like, moto alone."""
    if missing_needs() and not in_ci():
        yield moto_place(request.getfixturevalue("moto"), monkeypatch, name)
    else:
        yield from box_place(request.getfixturevalue("running_box"), monkeypatch, name)


def _memory(tmp_path: Path) -> Iterator[Place]:
    async def idle(boot: Boot, machine: SimulatedMachine) -> None:
        await asyncio.Event().wait()

    async def brief(boot: Boot, machine: SimulatedMachine) -> None:
        return None

    cloud = MemoryCloud(f"conformance {tmp_path.name}", boot_seconds=0.05, end_seconds=0.05)
    yield Place(
        MemoryBackend(Settings("memory", "memory", b"k" * 32, options={"cloud": cloud.name})),
        idle_agents=lambda: setattr(cloud, "on_boot", idle),
        brief_agents=lambda: setattr(cloud, "on_boot", brief),
        interrupt=cloud.reclaim,
        advise=cloud.advise,
    )


def _local(tmp_path: Path) -> Iterator[Place]:
    if sys.platform != "linux":
        missing("Linux")
    backend = LocalBackend(Settings("local", "local", b"k" * 32, options={"path": str(tmp_path)}))

    def agents(program: str) -> None:
        backend.agent_command = [sys.executable, "-S", "-c", program]

    place = Place(
        backend,
        idle_agents=lambda: agents("import time; time.sleep(60)"),
        brief_agents=lambda: agents("pass"),
        interrupt=lambda instance: (tmp_path / "machines" / instance / "interrupt").touch(),
        advise=lambda instance: (tmp_path / "machines" / instance / "leave").touch(),
    )
    yield place
    asyncio.run(_end(place))


async def _end(place: Place) -> None:
    await place.fleet.terminate([machine.id for machine in await place.fleet.describe()])
