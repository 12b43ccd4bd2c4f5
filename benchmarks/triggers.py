"""Many deferred tasks in one event loop, as in a triggerer: how long they hold it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_provider_spotbatch.backends import local
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.control.submit import submit
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.triggers import SpotMapTrigger
from benchmarks import work
from benchmarks.job import job_request

SMALL = Resources(cpus=0.1, memory_gb=0.1)


class Held:
    """``longest``: seconds of one callback, garbage collections apart; ``collection``: seconds of the
    longest of those, which grows with all that Airflow has loaded; ``share``: of a core, by the loop's
    thread."""

    longest = 0.0
    collection = 0.0
    share = 0.0


async def hold(settings: Settings, triggers: int, seconds: float) -> Held:
    """Run so many triggers, each with one queued item and a machine that never reports, for a while."""
    local.agent_command = lambda: ["sleep", "600"]
    runs = await _submit(settings, triggers)
    site = open_site(settings)
    tasks = [asyncio.create_task(_drain(run)) for run in runs]
    try:
        while not all([await site.store.exists(run.launch_result(1)) for run in runs]):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        with _watched() as held:
            await asyncio.sleep(seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await site.backend.terminate([machine.instance.id for machine in await site.backend.machines()])
    return held


async def _submit(settings: Settings, count: int) -> list[Run]:
    request = job_request(work.nothing, [0], Policy(concurrency=1, resources=SMALL))
    runs = []
    for number in range(count):
        submitted = await submit(open_site(settings), replace(request, task_id=f"t{number}"), str)
        assert submitted.run is not None
        runs.append(submitted.run)
    return runs


async def _drain(run: Run) -> None:
    generation = run.generation
    async for event in SpotMapTrigger("bench", generation.job, generation.number, run.number).run():
        raise SystemExit(f"a trigger ended: {event.payload}")


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

    handle._run = timed
    gc.callbacks.append(collects)
    began, used = time.perf_counter(), time.thread_time()
    try:
        yield held
    finally:
        held.share = (time.thread_time() - used) / (time.perf_counter() - began)
        handle._run = run
        gc.callbacks.remove(collects)
