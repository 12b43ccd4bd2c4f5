"""Removes jobs that were over longer ago than a connection keeps them, then blobs that nobody names.

Nothing that a run, a resumed try or a fresh submission needs is ever removed. A job goes in this order,
so that whoever comes to it half-way finds it whole, or gone: its last generation is closed (no run can
begin in it any more) and its number taken for good, its specifications go, then all else. A removal that
was broken off is ended by the next clean.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.blobs import KEPT_SECONDS, named_in
from airflow_provider_spotbatch.control.closing import close_generation, is_closed, says_closed, take_number
from airflow_provider_spotbatch.control.find_run import latest_run
from airflow_provider_spotbatch.control.retention import (
    StoredGeneration,
    StoredJob,
    StoredRun,
    may_go,
)
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.keys import (
    BLOBS,
    CATALOGUE,
    JOBS,
    OUT,
    Generation,
    Run,
    job_prefix,
    out_prefix,
    owner,
    run_of_tag,
)
from airflow_provider_spotbatch.job.launches import TERMINATED
from airflow_provider_spotbatch.job.signing import unverified_body

AT_ONCE = 16
"""Jobs looked at and removed, and specifications read, at the same time."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class OldJob:
    """A job that is to be removed. ``over``: since when nothing of it runs, seconds since the epoch."""

    job: str
    over: float
    generations: int


@dataclass(frozen=True)
class OldJobs:
    """What a clean would remove now. ``kept``: how many jobs stay; ``blobs``: names of blobs that are
    then named by no job and old enough."""

    jobs: tuple[OldJob, ...]
    kept: int
    blobs: tuple[str, ...]


@dataclass
class CleanReport:
    """What a clean did. ``objects`` and ``bytes`` include the blobs; ``kept``: jobs that stay."""

    jobs: list[str] = field(default_factory=list)
    kept: int = 0
    blobs: int = 0
    objects: int = 0
    bytes: int = 0


async def find_old_jobs(site: Site, keep: float) -> OldJobs:
    """What :func:`clean` would remove. ``keep``: seconds that a job is kept once it is over."""
    old: list[OldJob] = []
    kept = 0
    busy = await _jobs_with_machines(site)
    async for jobs in _looked_at(site.store, await _job_names(site.store)):
        for job in jobs:
            if job.generations and job.job not in busy and may_go(job, site.wall_clock(), keep):
                old.append(OldJob(job.job, job.over, len(job.generations)))
            elif job.alive:
                kept += 1
    blobs = await _unnamed_blobs(site, keep, without={each.job for each in old})
    return OldJobs(tuple(old), kept, tuple(blobs))


async def clean(site: Site, keep: float, say: Say) -> CleanReport:
    """Remove what :func:`find_old_jobs` finds. Safe to repeat, to break off, and to run twice at once.

    Raises StoreUnavailable, AccessDenied and Throttled where the store or the machines cannot be seen.
    """
    return await _Cleaning(site, keep, say).run()


class _Cleaning:
    """One clean of one connection's store."""

    def __init__(self, site: Site, keep: float, say: Say) -> None:
        self._site = site
        self._store = site.store
        self._keep = keep
        self._say = say
        self._report = CleanReport()
        self._alive: set[str] = set()

    async def run(self) -> CleanReport:
        busy = await _jobs_with_machines(self._site)
        async for jobs in _looked_at(self._store, await _job_names(self._store)):
            await asyncio.gather(*(self._take(job, busy) for job in jobs))
        await self._remove_outputs()
        await self._remove_catalogue_entries()
        await self._remove_blobs()
        self._report.kept = len(self._alive)
        return self._report

    # --- jobs ----------------------------------------------------------------------------------------

    async def _take(self, job: StoredJob, busy: set[str]) -> None:
        may = job.job not in busy and may_go(job, self._site.wall_clock(), self._keep)
        if may and await self._close(job):
            await self._remove(job)
        elif job.alive:
            self._alive.add(job.job)

    async def _close(self, job: StoredJob) -> bool:
        """See that no run can begin in the job's generations; False where one has just begun."""
        numbers = _removable(job)
        if not numbers:
            return True
        last = next(each for each in job.generations if each.number == numbers[-1])
        generation = Generation(job.job, last.number)
        if last.alive:
            run = Run(generation, last.runs[-1].number + 1 if last.runs else 1)
            now = self._site.wall_clock()
            if not await close_generation(self._store, self._site.signer(generation), run, now):
                self._say(f"job {job.job} is kept: a run of it has just begun")
                return False
        await take_number(self._store, generation)
        return True

    async def _remove(self, job: StoredJob) -> None:
        numbers = _removable(job)
        if numbers:
            self._say(f"removing job {job.job}: it was over {_days(self._site.wall_clock() - job.over)} ago")
            self._report.jobs.append(job.job)
        # Before all else, since whoever finds no specification reads nothing more and resumes nothing;
        # the closed one last, so that no earlier one ever stands as the newest.
        for number in numbers:
            spec = await self._store.find(Generation(job.job, number).spec)
            if spec is not None:
                await self._delete([spec.name], spec.size)
        for number in numbers:
            await self._purge(Generation(job.job, number).prefix)
            await self._purge(Generation(job.job, number).out)
        # Last, and it alone: another submission may have begun.
        whose = await self._store.find(owner(job.job))
        if whose is not None:
            await self._delete([whose.name], whose.size)

    # --- what is left of removed jobs ------------------------------------------------------------------

    async def _remove_outputs(self) -> None:
        """Remove what late machines wrote, or a broken-off removal left, for generations that are gone."""
        for folder in await self._store.list_folders(OUT):
            job = folder.rsplit("/", 1)[1]
            if job in self._alive:
                continue
            # In this order: what has output was specified before, so it is seen if it is alive.
            generations = await self._store.list_folders(out_prefix(job))
            if not await _is_alive(self._store, job):
                for prefix in generations:
                    await self._purge(prefix)

    async def _remove_catalogue_entries(self) -> None:
        """Remove the entries of jobs that are gone from the catalogue."""
        async for page in self._store.pages(CATALOGUE):
            for entry in page:
                job = entry.name.rsplit("/", 1)[1]
                if job in self._alive or await _is_alive(self._store, job):
                    continue
                data = await self._store.read(entry.name)
                await self._delete([entry.name], entry.size)
                if data is not None and await _is_alive(self._store, job):
                    await self._store.write(entry.name, data)  # it was submitted anew just then

    # --- blobs -----------------------------------------------------------------------------------------

    async def _remove_blobs(self) -> None:
        for name, tag in (await _unnamed_blobs(self._site, self._keep)).items():
            found = await self._store.find(name)
            if found is not None and found.tag == tag:  # else a submission has just renewed it
                await self._delete([name], found.size)
                self._report.blobs += 1

    # --- deleting --------------------------------------------------------------------------------------

    async def _purge(self, prefix: str) -> None:
        async for page in self._store.pages(prefix):
            await self._delete([entry.name for entry in page], sum(entry.size for entry in page))

    async def _delete(self, names: list[str], size: int) -> None:
        await self._store.delete(names)
        self._report.objects += len(names)
        self._report.bytes += size


# --- looking -----------------------------------------------------------------------------------------


async def _jobs_with_machines(site: Site) -> set[str]:
    """Jobs that have machines, whatever their records say."""
    return {
        run_of_tag(machine.run).generation.job
        for machine in await site.backend.machines()
        if machine.instance.state != TERMINATED
    }


async def _job_names(store: Store) -> list[str]:
    return [folder.rsplit("/", 1)[1] for folder in await store.list_folders(JOBS)]


async def _looked_at(store: Store, names: list[str]) -> AsyncIterator[list[StoredJob]]:
    for start in range(0, len(names), AT_ONCE):
        yield await asyncio.gather(*(look_at(store, name) for name in names[start : start + AT_ONCE]))


async def look_at(store: Store, job: str) -> StoredJob:
    """What the store holds of a job, as far as it tells whether the job may go. Its output is not
    listed; memory is bounded by the number of runs."""
    newest = -math.inf
    found: dict[int, _Found] = {}
    async for page in store.pages(job_prefix(job)):
        for entry in page:
            newest = max(newest, entry.modified)
            number, *rest = entry.name.split("/")[2:]
            if rest and number.isdigit():
                found.setdefault(int(number), _Found()).take(rest, entry.modified)
    generations = [
        await _generation(store, Generation(job, number), each) for number, each in sorted(found.items())
    ]
    return StoredJob(job, newest, tuple(generations))


@dataclass
class _Found:
    """Objects of one generation. ``runs``: number → name in the run's folder → when it was written."""

    specified: bool = False
    runs: dict[int, dict[str, float]] = field(default_factory=dict)

    def take(self, path: list[str], modified: float) -> None:
        if path == ["spec.json"]:
            self.specified = True
        elif len(path) == 3 and path[0] == "runs" and path[1].isdigit():
            self.runs.setdefault(int(path[1]), {})[path[2]] = modified


async def _generation(store: Store, generation: Generation, found: _Found) -> StoredGeneration:
    runs = [
        await _run(store, Run(generation, number), written)
        for number, written in sorted(found.runs.items())
        if "run.json" in written
    ]
    return StoredGeneration(generation.number, found.specified, tuple(runs))


async def _run(store: Store, run: Run, written: dict[str, float]) -> StoredRun:
    began = written["run.json"]
    ended = written.get("outcome.json", written.get("cancel.json"))
    if ended is not None:
        return StoredRun(run.number, began, ended)
    record = await store.read(run.run)
    if record is None:  # removed just now
        return StoredRun(run.number, began)
    if says_closed(record):
        return StoredRun(run.number, began, closed=True)
    return StoredRun(run.number, began, max_runtime=_max_runtime(record))


def _max_runtime(record: bytes) -> float:
    """Of a run whichever key signed; infinite where a newer release wrote it in another form."""
    try:
        return float(unverified_body(record)["policy"]["max_runtime"])
    except (ValueError, KeyError, TypeError):
        return math.inf


async def _is_alive(store: Store, job: str) -> bool:
    """Whether a generation of the job is specified and not closed."""
    latest = await latest_run(store, job)
    return latest is not None and not (latest.number and await is_closed(store, latest))


async def _unnamed_blobs(site: Site, keep: float, without: Iterable[str] = ()) -> dict[str, str]:
    """Blobs that are old enough and that no job but ``without`` names: name → tag."""
    oldest = site.wall_clock() - max(keep, KEPT_SECONDS)
    old: dict[str, str] = {}
    async for page in site.store.pages(BLOBS):
        old.update({entry.name: entry.tag for entry in page if entry.modified < oldest})
    if not old:
        return {}
    skipped = set(without)
    # Read after the blobs were listed: a specification that comes later has looked at its blobs within
    # the last day, so that none of them is as old as these.
    names = [name for name in await _job_names(site.store) if name not in skipped]
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        for named in await asyncio.gather(*(_named_by(site.store, name) for name in some)):
            for sha256 in named:
                old.pop(f"{BLOBS}/{sha256}", None)
    return old


async def _named_by(store: Store, job: str) -> set[str]:
    named: set[str] = set()
    for folder in await store.list_folders(job_prefix(job)):
        runs = await store.list_folders(f"{folder}/runs")
        for name in (f"{folder}/spec.json", *(f"{run}/run.json" for run in runs)):
            data = await store.read(name)
            if data is not None:
                named |= named_in(data)
    return named


def _removable(job: StoredJob) -> list[int]:
    """Numbers of the generations that are removed with the job, in order: not the items that a dead
    submission left, which are the sweep's business."""
    return [each.number for each in job.generations if each.specified or each.runs]


def _days(seconds: float) -> str:
    days = seconds / (24 * 3600)
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.1f} hours"
