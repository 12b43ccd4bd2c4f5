"""A storm: machines are killed at random, one every second, while a job runs on six of them.

``SPOTBATCH_STORM=full`` runs it in full length: 2,000 items, a minute of storm.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import MapResult, Resources
from airflow_provider_spotbatch.backends import local_machine
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.outcome import OK, decode_head
from tests.support.jobs import processes_with
from tests.support.runs import CONN_ID, Site, drive, site_in

FULL = os.environ.get("SPOTBATCH_STORM") == "full"
ITEMS, STORM_SECONDS = (2000, 60.0) if FULL else (700, 20.0)
MACHINES = 6
ITEM_SECONDS = 0.1

SLACK = 1.0
"""Seconds between an agent's look at a chunk's result and the first note of its run, at most."""

REPLACED_SECONDS = 5.0
"""Median time from a kill to the start of the next machine: half a second on an idle machine."""


def noting(notes: str) -> Callable[[int], str]:
    """A function that leaves a line for each run of an item, before it does anything else."""

    def work(item: int) -> str:
        import os
        import time
        import uuid

        token = uuid.uuid4().hex
        with open(notes, "a") as file:
            file.write(f"{item} {token} {os.environ['SPOTBATCH_INSTANCE']} {time.time()}\n")
        time.sleep(ITEM_SECONDS)
        return token

    return work


@dataclass(frozen=True)
class Note:
    """One run of an item. ``at``: when it began, seconds since the epoch."""

    item: int
    token: str
    instance: str
    at: float


def read_notes(path: Path) -> list[Note]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [Note(int(item), token, instance, float(at)) for item, token, instance, at in lines]


@dataclass(frozen=True)
class Success:
    """A stored success of an item. ``durable``: when its object was written."""

    instance: str
    durable: float


async def successes(run: Run) -> dict[int, list[Success]]:
    """All stored successes of each item, in whatever chunk."""
    site = open_site(SpotBatchHook(CONN_ID).get_settings())
    signer, found = site.signer(run.generation), dict[int, list[Success]]()
    for entry in await site.store.list_objects(run.generation.results):
        data = await site.store.read(entry.name)
        assert data is not None
        head = decode_head(signer, ChunkId.parse(entry.name.rsplit("/", 1)[1]), data)
        for row in head.rows:
            if row.cause == OK:
                success = Success(head.details["machine"]["instance"], entry.modified)
                found.setdefault(row.item, []).append(success)
    return found


def victims(folder: Path, chance: random.Random) -> list[int]:
    """Some processes of a machine: one of the two that are it, its agent, or all at once."""
    own = [pid for pid, _ in json.loads((folder / "pid").read_text())["processes"]]
    every = list(processes_with(f"{local_machine.MARK}={local_machine.mark(str(folder))}"))
    agents = [pid for pid in every if pid not in own]
    return chance.choice([own[:1], own[1:], agents[:1], every])


def storm(site: Site, job: Future[Any], chance: random.Random) -> list[float]:
    """Kill a machine every second, at most for STORM_SECONDS; when, in seconds since the epoch."""
    kills: list[float] = []
    ends = time.monotonic() + STORM_SECONDS
    while time.monotonic() < ends and not job.done():
        on = [folder for folder in site.machines if local_machine.is_on(str(folder))]
        if on:
            for pid in victims(chance.choice(on), chance):
                kill(pid)
            kills.append(time.time())
        time.sleep(1.0)  # the rhythm of the storm, not a wait for anything
    return kills


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def seconds_until_replaced(site: Site, kills: list[float]) -> list[float]:
    """For each kill, how long until the next machine was on."""
    starts = sorted((folder / "pid").stat().st_mtime for folder in site.machines)[MACHINES:]
    return [start - kill for kill, start in zip(kills, starts, strict=False)]


@pytest.mark.timeout(300)
def test_a_job_survives_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_in(tmp_path / "root", monkeypatch, instances=MACHINES)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    worker = site.submit(
        noting(str(tmp_path / "notes")),
        range(ITEMS),
        item_retries=0,
        concurrency=MACHINES,
        resources=Resources(cpus=0.1, memory_gb=0.1),
    )
    run = worker.run
    assert run is not None
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(drive, worker)
        kills = storm(site, job, random.Random(seed))
        outcome = job.result()
    print("\n".join(site.said))

    assert (outcome.state, outcome.ok, outcome.failed) == ("succeeded", ITEMS, 0), outcome.message
    assert site.processes == []
    assert len(kills) > STORM_SECONDS / 4, "the job was over before the storm was one"

    notes = read_notes(tmp_path / "notes")
    stored = asyncio.run(successes(run))
    assert Counter({item: len(found) for item, found in stored.items()}) == Counter(range(ITEMS))
    again = [note for note in notes if note.at > stored[note.item][0].durable + SLACK]
    assert again == [], "ran again though the result was durable"

    ran = {note.token: note for note in notes}
    for item, token in enumerate(MapResult.of(outcome, CONN_ID, worker.store_uri)):
        assert (ran[token].item, ran[token].instance) == (item, stored[item][0].instance)

    took, replaced = outcome.ended - outcome.started, seconds_until_replaced(site, kills)
    print(f"{len(kills)} kills in {took:.0f} s, {len(notes)} runs of {ITEMS} items")
    print(f"the next machine was on after {statistics.median(replaced):.2f} s, at most {max(replaced):.2f} s")
    assert statistics.median(replaced) < REPLACED_SECONDS
