"""Many deferred tasks in one event loop, as in a triggerer: their share of a core, how long they hold it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from airflow_provider_spotbatch.backends import local
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.site import Site, open_site, read_run
from airflow_provider_spotbatch.control.submit import submit
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.launches import LaunchOutcome
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import RUNNING, EndedChunk, Report
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.triggers import SpotMapTrigger
from benchmarks import work
from benchmarks.job import job_request, silent

SMALL = Resources(cpus=0.1, memory_gb=0.1)
ITEMS = 1000
ITEM_SECONDS = 60.0
AGE = 600.0
"""Seconds since the jobs at work began."""

REPORT_EVERY = 1.0
"""Seconds between two reports of a fleet of one machine."""

SETTLING = 30.0
"""Seconds from the last launch on that are not measured: 200 tasks that start at once are no steady state."""

MEASURED = 20.0


class Held:
    """``longest``: seconds of one callback, garbage collections apart; ``collection``: seconds of the
    longest of those, which grows with all that Airflow has loaded; ``loop`` and ``process``: share of a
    core, by the loop's thread and by the whole process."""

    longest = 0.0
    collection = 0.0
    loop = 0.0
    process = 0.0


async def hold(settings: Settings, triggers: int, *, at_work: bool) -> Held:
    """Run so many triggers for a while, each of a job with one machine. ``at_work``: the jobs began
    AGE seconds ago and have items of a minute, and their machines report; else the machines boot."""
    local.agent_command = lambda: ["sleep", "600"]
    site = open_site(settings)
    runs = await _submit(site, triggers, age=AGE if at_work else 0.0)
    tasks = [asyncio.create_task(_drain(run)) for run in runs]
    agents = get_context("spawn").Process(target=_report, args=(settings, runs))
    try:
        while not all([await site.store.exists(run.launch_result(1)) for run in runs]):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        if at_work:
            agents.start()
        await asyncio.sleep(SETTLING)
        with _watched() as held:
            await asyncio.sleep(MEASURED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if agents.pid is not None:
            agents.terminate()
            await asyncio.to_thread(agents.join)
        await site.backend.terminate([machine.instance.id for machine in await site.backend.machines()])
    return held


async def _submit(site: Site, count: int, age: float) -> list[Run]:
    request = job_request(work.nothing, range(ITEMS), Policy(concurrency=1, resources=SMALL))
    runs = []
    for number in range(count):
        submitted = await submit(site, replace(request, task_id=f"t{number}"), silent)
        assert submitted.run is not None
        await _began(site, submitted.run, age)
        runs.append(submitted.run)
    return runs


async def _began(site: Site, run: Run, age: float) -> None:
    """Make it a run that began so many seconds ago."""
    record = await read_run(site, run)
    assert record is not None
    older = replace(record, created=record.created - age)
    await site.store.write(run.run, older.to_bytes(site.signer(run.generation)))


async def _drain(run: Run) -> None:
    generation = run.generation
    async for event in SpotMapTrigger("bench", generation.job, generation.number, run.number).run():
        raise SystemExit(f"a trigger ended: {event.payload}")


def _report(settings: Settings, runs: list[Run]) -> None:
    """A process that writes the reports of all machines: one item is done, the next one runs."""
    asyncio.run(_keep_reporting(open_site(settings), runs))


async def _keep_reporting(site: Site, runs: list[Run]) -> None:
    reports = [await _first_report(site, run) for run in runs]
    while True:
        for run, report in zip(runs, reports, strict=True):
            await site.store.write(run.report(report.instance), report.to_bytes())
            await asyncio.sleep(REPORT_EVERY / len(runs))
        reports = [replace(report, sequence=report.sequence + 1) for report in reports]


async def _first_report(site: Site, run: Run) -> Report:
    answer = await site.store.read(run.launch_result(1))
    assert answer is not None
    instance = LaunchOutcome.from_bytes(answer).instances[0].id
    done, held = (str(ChunkId(run.number, 1, number)) for number in range(2))
    ended = (EndedChunk(done, 1, 0, ITEM_SECONDS, 20),)
    return Report(instance, 1, 0, 1, 1, RUNNING, ended=ended, held=(held,))


@contextmanager
def _watched() -> Iterator[Held]:
    """Time every callback of the loop, in the loop's own thread."""
    held, handle = Held(), asyncio.events.Handle
    run = handle._run

    collected, collecting = 0.0, 0.0

    def timed(self: Any) -> None:
        began, before = time.perf_counter(), collected
        run(self)
        took = time.perf_counter() - began - (collected - before)
        held.longest = max(held.longest, took)

    def collects(phase: str, info: dict[str, int]) -> None:
        nonlocal collected, collecting  # in whatever thread: all others stand still meanwhile
        if phase == "start":
            collecting = time.perf_counter()
            return
        took = time.perf_counter() - collecting
        collected += took
        held.collection = max(held.collection, took)

    handle._run = timed  # type: ignore[method-assign]
    gc.callbacks.append(collects)
    began, in_loop, in_process = time.perf_counter(), time.thread_time(), time.process_time()
    try:
        yield held
    finally:
        passed = time.perf_counter() - began
        held.loop = (time.thread_time() - in_loop) / passed
        held.process = (time.process_time() - in_process) / passed
        handle._run = run  # type: ignore[method-assign]
        gc.callbacks.remove(collects)
