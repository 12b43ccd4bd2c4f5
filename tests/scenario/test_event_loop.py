"""Two hundred triggers in one event loop, each with a run whose one item is queued: none holds the loop.

What must not happen on the loop's thread is looked for in the calls it makes, not in times, which tell
of the machine as much as of the program. ``make bench`` has the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, Resources
from airflow_provider_spotbatch.backends import local
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.control.submit import submit
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.triggers import SpotMapTrigger
from tests.support.jobs import eventually
from tests.support.runs import CONN_ID, Site, job_request, site_in

TRIGGERS = 200

BLOCKING = {
    *(("posix", name) for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "fsync")),
    *(("posix", name) for name in ("mkdir", "rename", "link", "unlink", "fork", "waitpid", "posix_spawn")),
    *(("_io", name) for name in ("open", "open_code")),
    ("io", "open"),
    ("time", "sleep"),
    ("fcntl", "flock"),
    ("_posixsubprocess", "fork_exec"),
    ("_socket", "getaddrinfo"),
}
"""Functions in C that wait for a disk, a process, a server or the time. Imports end in some of them."""


class LoopThread:
    """What the thread of an event loop calls while it is watched."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.all_calls = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call":
            return
        self.all_calls += 1
        owner = getattr(function, "__self__", None)
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
        name = getattr(function, "__name__", "")
        if (module, name) in BLOCKING or type(owner).__module__ == "sqlite3":
            self.calls[f"{module}.{name} for {_caller(frame)}"] += 1


def _caller(frame: FrameType | None) -> str:
    """Where a call comes from; for an import, where the module is imported."""
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return "nobody" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A local backend whose machines run no agent: they only are there."""
    monkeypatch.setattr(local, "agent_command", lambda: ["sleep", "600"])
    site = site_in(tmp_path / "root", monkeypatch, instances=1)
    yield site
    asyncio.run(_end_all())
    assert site.processes == []


async def _end_all() -> None:
    backend = open_site(SpotBatchHook(CONN_ID).get_settings()).backend
    await backend.terminate([machine.instance.id for machine in await backend.machines()])


async def submit_runs(count: int) -> list[Run]:
    site = open_site(SpotBatchHook(CONN_ID).get_settings())
    request = job_request(abs, [0], concurrency=1, resources=Resources(cpus=0.1, memory_gb=0.1))
    runs = []
    for number in range(count):
        packing = Packing(
            function=None,
            dotted=None,
            command=["true"],
            kwargs={},
            call="item",
            environment=Environment(),
            bundle=None,
            name="true",
        )
        each = replace(request, task_id=f"task-{number}", packing=packing)
        submitted = await submit(site, each, lambda line: None)
        assert submitted.run is not None
        runs.append(submitted.run)
    return runs


def trigger_of(run: Run) -> SpotMapTrigger:
    return SpotMapTrigger(CONN_ID, run.generation.job, run.generation.number, run.number)


async def drain(trigger: SpotMapTrigger) -> None:
    async for event in trigger.run():
        raise AssertionError(f"its run cannot be over: {event.payload}")


@pytest.mark.timeout(180)
def test_no_trigger_waits_on_the_loops_thread(site: Site) -> None:
    # What a triggerer has loaded before it runs any trigger.
    importlib.import_module("airflow.jobs.triggerer_job_runner")
    thread = LoopThread()

    async def scenario() -> None:
        runs = await submit_runs(TRIGGERS)
        store = open_site(SpotBatchHook(CONN_ID).get_settings()).store
        with thread.watched():
            triggers = [asyncio.create_task(drain(trigger_of(run))) for run in runs]

            async def all_at_work() -> bool:
                for task in triggers:
                    if task.done():
                        task.result()
                return all([await store.exists(run.launch_result(1)) for run in runs])

            await eventually(all_at_work, "the launch of every run")
            await asyncio.sleep(3.0)  # some ticks of each
            while not all(task.done() for task in triggers):
                # Time and again, as a triggerer does: before Python 3.12 wait_for may swallow a cancel.
                for task in triggers:
                    task.cancel()
                await asyncio.wait(triggers, timeout=1.0)

    asyncio.run(scenario())
    assert thread.all_calls > 1000, "nothing was watched"
    assert thread.calls == Counter()


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    thread = LoopThread()
    database = sqlite3.connect(":memory:")
    with thread.watched():
        time.sleep(0)
        (tmp_path / "file").write_text("x")
        (tmp_path / "file").stat()
        database.execute("SELECT 1")
        with contextlib.suppress(ImportError):
            importlib.import_module("there_is_no_such_module")
    database.close()
    seen = {call.split(" ")[0] for call in thread.calls}
    assert seen >= {"time.sleep", "posix.stat", f"{open.__module__}.open"}, seen
    assert any(call.startswith(("sqlite3.", ".execute")) for call in thread.calls)
