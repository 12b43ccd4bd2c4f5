"""What is stored for machines that come with nothing of ours. No index is asked: wheels are made here."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import BareMachines
from airflow_provider_spotbatch.backends.memory import MemoryBackend, MemoryCloud
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.bare_machines import store_agent, store_packages
from airflow_provider_spotbatch.control.blobs import FRESH_SECONDS, keep_blob
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.environment.packing import Packed
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import blob
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.spec import Work, WorkerEnvironment
from tests.unit.environment.test_machine_archives import wheel

ALL = Resources()


class World:
    """A cloud of bare machines of both architectures."""

    def __init__(self, root: Path, bare: BareMachines | None) -> None:
        self.cloud = MemoryCloud("bare", root=str(root), bare_machines=bare)
        settings = Settings("c", "memory", b"k", options={"cloud": "bare"})
        backend = MemoryBackend(settings)
        self.site = Site(settings, backend, backend.open_store())
        self.said: list[str] = []

    def packages(self, resources: Resources = ALL, **environment: Any) -> WorkerEnvironment:
        packed = Packed(
            work=Work("function", "f", "0" * 64),
            environment=WorkerEnvironment(**{"python": CURRENT_PYTHON, **environment}),
            blobs={},
            fingerprint=None,
            unstable=(),
            notes=(),
        )
        return asyncio.run(store_packages(self.site, packed, resources, self.said.append))

    def stored(self) -> set[str]:
        return set(self.cloud.store.objects.named)


@pytest.fixture
def world(tmp_path: Path) -> World:
    pythons = {"x86_64": CURRENT_PYTHON, "arm64": CURRENT_PYTHON}
    return World(tmp_path / "root", BareMachines(pythons, distributions=()))


def test_machines_that_share_this_interpreter_are_sent_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "root", None)
    assert world.packages(packages=("x",)).archives == {}
    assert asyncio.run(store_agent(world.site, WorkerEnvironment("3.9"), ALL, world.said.append)) == {}
    assert world.stored() == set()


def test_packages_are_stored_for_each_architecture(world: World, tmp_path: Path) -> None:
    environment = world.packages(packages=(wheel(tmp_path),))
    assert set(environment.archives) == {"x86_64", "arm64"}
    assert world.stored() == {blob(sha256) for sha256 in environment.archives.values()}


def test_an_architecture_without_a_wheel_is_left_out_and_told(world: World, tmp_path: Path) -> None:
    given = wheel(tmp_path, "py3-none-manylinux_2_17_aarch64")
    assert set(world.packages(packages=(given,)).archives) == {"arm64"}
    assert any(line.startswith("no machines of x86_64: environment.packages") for line in world.said)


def test_packages_for_no_architecture_that_was_asked_for_are_an_error(world: World, tmp_path: Path) -> None:
    given = wheel(tmp_path, "py3-none-manylinux_2_17_aarch64")
    with pytest.raises(InvalidInput, match="could not be installed for x86_64 machines"):
        world.packages(Resources(architectures=("x86_64",)), packages=(given,))
    assert world.stored() == set()


def test_the_setup_script_is_a_blob_of_its_own(world: World) -> None:
    environment = world.packages(setup="echo made ready")
    name = hashlib.sha256(b"echo made ready").hexdigest()
    assert environment.setup_blob == name
    assert world.cloud.store.objects.named[blob(name)][0] == b"echo made ready"


def test_a_python_that_no_agent_runs_on_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match=r"need 3\.10 or newer"):
        world.packages(python="3.9")


def test_a_resumed_job_cannot_go_to_machines_its_environment_was_not_made_for(world: World) -> None:
    environment = WorkerEnvironment(CURRENT_PYTHON, archives={"x86_64": "a" * 64})
    only_arm = Resources(architectures=("arm64",))
    with pytest.raises(InvalidInput, match="made for x86_64: ask for these, or say reuse='never'"):
        asyncio.run(store_agent(world.site, environment, only_arm, world.said.append))


@pytest.mark.parametrize(("age", "writes"), [(0.0, 1), (FRESH_SECONDS + 1, 2)])
def test_a_blob_is_written_again_only_when_it_is_old(world: World, age: float, writes: int) -> None:
    name = "f" * 64
    write = partial(world.site.store.write, blob(name), b"data")
    store = world.site.store
    asyncio.run(keep_blob(store, name, world.site.wall_clock(), write))
    later = world.cloud.store.objects.named[blob(name)][1].modified + age
    asyncio.run(keep_blob(store, name, later, write))
    assert world.cloud.store.objects.writes == writes
