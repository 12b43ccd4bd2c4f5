"""Every kind of process of a job is killed at once, the one that drives it too; a later try finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_spotbatch import MapResult, Resources
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.outcome import OK, decode_head
from airflow_provider_spotbatch.worker import Worker
from tests.support.runs import CONN_ID, REPOSITORY, Site, drive, site_in, wait_until

ITEMS = 200
MACHINES = 3
SMALL = Resources(cpus=0.25, memory_gb=0.25)

DRIVER = """
import sys
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.worker import Worker

job, generation, number = sys.argv[1:]
run = Run(Generation(job, int(generation)), int(number))
Worker(SpotBatchHook("site").get_settings(), print, run).drive()
"""


def run_arguments(run: Run) -> list[str]:
    return [run.generation.job, str(run.generation.number), str(run.number)]


def submit_job(site: Site, calls: Path, max_tries: int = 0) -> Worker:
    notes = str(calls)

    def work(item: int) -> int:
        with open(notes, "a") as file:
            file.write(f"{item}\n")
        time.sleep(0.1)
        return item

    return site.submit(work, range(ITEMS), concurrency=MACHINES, resources=SMALL, max_tries=max_tries)


def kill_one_of_each(site: Site) -> None:
    """An agent of the first machine, a worker of the second, the two processes of the third itself."""
    agent, worker, whole = site.machines
    for pid in site.processes:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            mark = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        is_agent, is_worker = b"spotbatch.agent" in command, b"agent/worker.py" in command
        if (
            (is_agent and agent.name.encode() in mark)
            or (is_worker and worker.name.encode() in mark)
            or (not is_agent and not is_worker and whole.name.encode() in mark)
        ):
            os.kill(pid, signal.SIGKILL)


def notes(path: Path) -> Counter[int]:
    """How often each item was run."""
    return Counter(int(line) for line in path.read_text().split()) if path.exists() else Counter()


async def durable(run: Run) -> list[int]:
    """The items of all stored successes."""
    site = open_site(SpotBatchHook(CONN_ID).get_settings())
    found: list[int] = []
    for entry in await site.store.list_objects(run.generation.results):
        data = await site.store.read(entry.name)
        assert data is not None
        chunk = ChunkId.parse(entry.name.rsplit("/", 1)[1])
        head = decode_head(site.signer(run.generation), chunk, data)
        found += [row.item for row in head.rows if row.cause == OK]
    return found


def test_a_later_try_finishes_what_a_killed_driver_and_killed_machines_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_in(tmp_path / "root", monkeypatch, instances=MACHINES)
    calls = tmp_path / "calls"
    first = submit_job(site, calls)
    assert first.run is not None
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *run_arguments(first.run)], cwd=REPOSITORY)
    try:
        wait_until(lambda: len(notes(calls)) > ITEMS // 3, "a third of the items")
        kill_one_of_each(site)
    finally:
        driver.kill()
        driver.wait()
    done, before = asyncio.run(durable(first.run)), notes(calls)
    assert done
    last = submit_job(site, calls, max_tries=1)
    outcome = drive(last)
    assert (outcome.state, outcome.run, outcome.ok) == ("succeeded", 2, ITEMS), outcome.message
    assert MapResult.of(outcome, CONN_ID, last.store_uri).to_list() == list(range(ITEMS))
    assert sorted(asyncio.run(durable(first.run))) == list(range(ITEMS)), "one success of each item"
    after = notes(calls)
    assert {item: after[item] for item in done} == {item: before[item] for item in done}
    assert site.processes == []
