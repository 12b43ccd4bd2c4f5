"""What ends a machine when nothing else is left: no controller, no Airflow, not even who launched it.

Each machine is a real one of the local backend, with the real agent and an item in hand. It is launched
by a process that is killed at once; then only the store, the queue and the machine itself are there.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends import local_machine
from airflow_provider_spotbatch.backends.local import LocalBackend, LocalMachine, machine_folder
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.launches import TERMINATED, Instance, LaunchRecord
from tests.support.jobs import RUN, Job, eventually, function_job, processes_with

FOR_EVER = 600.0

LAUNCH = """
import asyncio, os, pickle, signal, sys
settings, run, boot, record = pickle.load(sys.stdin.buffer)
from airflow_provider_spotbatch.backends.local import LocalBackend
outcome = asyncio.run(LocalBackend(settings).fleet(run, boot).launch(record))
print(outcome.instances[0].id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Orphan:
    """A machine whose launcher is dead. ``job``: what it works on."""

    job: Job
    id: str

    @property
    def fleet(self) -> Any:
        return _backend(self.job).fleet(RUN, self.job.boot)

    @property
    def processes(self) -> list[int]:
        return list(processes_with(f"{local_machine.MARK}={machine_folder(str(self.job.root), self.id)}"))

    @property
    def agent(self) -> int:
        """The one child of the machine's system."""
        identity = json.loads(Path(machine_folder(str(self.job.root), self.id), "pid").read_text())
        _, (system, _) = identity["processes"]
        return int(Path(f"/proc/{system}/task/{system}/children").read_text().split()[0])

    @property
    def items(self) -> list[str]:
        """Those that were begun."""
        notes = self.job.root / "notes"
        return notes.read_text().split() if notes.exists() else []

    async def until_at_work(self) -> None:
        async def begun() -> bool:
            return bool(self.items)

        await eventually(begun, "the start of the item")

    async def until_gone(self) -> Instance:
        """The machine as it ended by itself; nobody looks at it before its processes are gone."""

        async def gone() -> bool:
            return not self.processes

        async def ended() -> bool:  # a process that dies has lost its environment before its locks
            return [instance.state for instance in await self.fleet.describe()] == [TERMINATED]

        await eventually(gone, "the end of the machine")
        await eventually(ended, "the machine's lock")
        [instance] = await self.fleet.describe()
        return instance


def _backend(job: Job) -> LocalBackend:
    return LocalBackend(Settings("tests", "local", b"key", options={"path": str(job.root)}))


RECORD = LaunchRecord(1, slots=(1,), token="t")

Launch = Callable[..., Coroutine[Any, Any, Orphan]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Submit a job of one item that takes ``seconds``, and start its machine."""
    made: list[Orphan] = []

    async def start(*, seconds: float = FOR_EVER, items: int = 1, **boot: Any) -> Orphan:
        notes = str(tmp_path / "notes")

        def work(item: int) -> int:
            with open(notes, "a") as file:
                file.write(f"{item}\n")
            time.sleep(seconds)
            return item

        job = function_job(tmp_path, work, range(items), **{"idle_timeout": FOR_EVER, **boot})
        await job.submit(None if items else [])
        orphan = Orphan(job, await asyncio.to_thread(_launched_by_the_dead, job))
        made.append(orphan)
        return orphan

    yield start
    for orphan in made:
        asyncio.run(orphan.fleet.terminate([orphan.id]))


def _launched_by_the_dead(job: Job) -> str:
    settings = Settings("tests", "local", b"key", options={"path": str(job.root)})
    launcher = subprocess.run(
        [sys.executable, "-c", LAUNCH],
        input=pickle.dumps((settings, RUN, job.boot, RECORD)),
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60,
    )
    assert launcher.returncode == -signal.SIGKILL
    return launcher.stdout.decode().strip()


def test_a_machine_without_work_ends_after_idle_timeout(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(items=0, idle_timeout=1.0)
        assert (await machine.until_gone()).reason == "the agent ended"
        assert machine.items == []

    asyncio.run(scenario())


def test_a_machine_that_no_controller_watches_ends_with_its_work(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(orphan_after=3.0)
        await machine.until_at_work()
        await machine.until_gone()
        assert "no controller was seen" in (await machine.job.report(machine.id)).reason

    asyncio.run(scenario())


def test_a_machine_that_is_watched_outlives_orphan_after(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(orphan_after=3.0, seconds=6.0, idle_timeout=1.0)
        for beat in range(2, 1000):
            if not machine.processes:
                break
            await machine.job.tell(Control(beat=beat, report_every=0.2))
            await asyncio.sleep(0.2)  # the controller's rhythm
        await machine.until_gone()
        assert "nothing to do" in (await machine.job.report(machine.id)).reason
        assert len(await machine.job.outcomes()) == 1

    asyncio.run(scenario())


def test_a_machine_ends_when_what_it_may_spend_is_spent(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch()
        await machine.until_at_work()
        await machine.job.tell(Control(beat=2, report_every=0.2, spend_for=1.0))
        await machine.until_gone()
        assert "budget is spent" in (await machine.job.report(machine.id)).reason

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["cancel", "outcome", "loss"])
def test_a_machine_ends_when_its_run_is_over_or_it_was_given_up(launch: Launch, name: str) -> None:
    async def scenario() -> None:
        machine = await launch()
        await machine.until_at_work()
        written = RUN.loss(machine.id) if name == "loss" else getattr(RUN, name)
        await machine.job.store.write(written, b"{}")
        await machine.until_gone()
        assert (await machine.job.report(machine.id)).held != (), "the item did not end by itself"

    asyncio.run(scenario())


def test_a_machine_whose_queue_is_gone_finishes_its_item_and_ends(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(seconds=2.0)
        await machine.until_at_work()
        await LocalMachine(machine.job.boot).queue(RUN, 0).delete()
        await machine.until_gone()
        assert "its queue is gone" in (await machine.job.report(machine.id)).reason
        assert len(await machine.job.outcomes()) == 1

    asyncio.run(scenario())


def test_the_machines_timer_ends_it_though_its_agent_stands_still(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(lifetime=4.0)
        await machine.until_at_work()
        os.kill(machine.agent, signal.SIGSTOP)
        end = await machine.until_gone()
        assert (end.reason, end.interrupted) == ("its lifetime of 4 s was over", False)

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_of_the_agent_ends_the_machine_and_its_workers(
    launch: Launch, number: signal.Signals
) -> None:
    async def scenario() -> None:
        machine = await launch()
        await machine.until_at_work()
        workers = len(machine.processes)
        assert workers >= 4, "frame, system, agent and worker"
        os.kill(machine.agent, number)
        end = await machine.until_gone()
        assert end.reason.startswith(f"the agent ended with signal {int(number)}")

    asyncio.run(scenario())


def test_a_machine_that_ended_powers_off_when_it_is_booted_again(launch: Launch) -> None:
    async def scenario() -> None:
        machine = await launch(items=0, idle_timeout=1.0)
        end = await machine.until_gone()
        folder = machine_folder(str(machine.job.root), machine.id)
        # As a second start of the same hardware: past the fleet, which would not start it.
        await asyncio.to_thread(machine.fleet._power_on, folder, machine.id, RECORD, 1)

        async def powered_off() -> bool:
            return machine.processes == []

        await eventually(powered_off, "the end of the second boot")
        assert [await machine.until_gone()] == [end]

    asyncio.run(scenario())
