"""Which run is meant: jobs by a part of their id, their newest generation and run unless another is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import CATALOGUE, Generation, Run, job_prefix

CANDIDATES = 10
"""Jobs that are named where a part of an id fits several."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A job of the catalogue. ``begun``: when its last run was, in seconds since the epoch by the store."""

    name: str
    begun: float

    @property
    def job(self) -> str:
        return self.name.rsplit("/", 1)[1]


async def catalogue_entries(store: Store, prefix: str = CATALOGUE) -> list[CatalogueEntry]:
    """The jobs below a prefix of the catalogue, those that were begun last first. One listing."""
    entries = await store.list_objects(prefix)
    entries.sort(key=lambda entry: entry.modified, reverse=True)
    return [CatalogueEntry(entry.name, entry.modified) for entry in entries]


async def read_identity(store: Store, entry: CatalogueEntry) -> dict[str, Any]:
    """dag_id, run_id, task_id and map_index of a job; empty where its entry is gone, or cannot be read: the
    job itself may be all right."""
    data = await store.read(entry.name)
    try:
        return {} if data is None else dict(json.loads(data))
    except (ValueError, TypeError):
        return {}


async def find_run(store: Store, text: str, generation: int | None = None, run: int | None = None) -> Run:
    """The run of the job whose id is ``text``, or of the only one whose id has ``text`` in it.

    Raises InvalidInput where there is none, or more than one.
    """
    job = await find_job(store, text)
    if generation is None and run is None:
        latest = await latest_run(store, job)
        if latest is None or not latest.number:
            raise InvalidInput(f"no run of job {job} has begun yet: look again in a moment")
        return latest
    number = _chosen(
        f"job {job}", "generation", generation, await _numbers(store, job_prefix(job), "spec.json")
    )
    of = Generation(job, number)
    numbers = await _numbers(store, of.runs, "run.json")
    return Run(of, _chosen(f"generation {number} of job {job}", "run", run, numbers))


async def find_job(store: Store, text: str) -> str:
    """The id of the job that ``text`` names. Raises InvalidInput where it names none, or more than one."""
    entries = await catalogue_entries(store)
    found = [entry for entry in entries if text in entry.job]
    if any(entry.job == text for entry in found):
        return text
    if len(found) == 1:
        return found[0].job
    if found:
        raise InvalidInput(await _ambiguous(store, text, found))
    if not entries:
        raise InvalidInput(f"there are no jobs in {store.uri}")
    raise InvalidInput(f"no job in {store.uri} has {text!r} in its id: `spotbatch jobs --all` lists them")


async def latest_run(store: Store, job: str) -> Run | None:
    """The last run of the job's last generation that was specified; its number is 0 where none was begun.
    None: the job was never specified."""
    numbers = await _numbers(store, job_prefix(job), "spec.json")
    if not numbers:
        return None
    generation = Generation(job, numbers[-1])
    runs = await _numbers(store, generation.runs, "run.json")
    return Run(generation, runs[-1] if runs else 0)


async def _numbers(store: Store, prefix: str, proof: str) -> list[int]:
    """The numbered folders below ``prefix`` that hold the object ``proof``, ascending."""
    return [
        number
        for number, folder in await numbered_folders(store, prefix)
        if await store.exists(f"{folder}/{proof}")
    ]


async def numbered_folders(store: Store, prefix: str) -> list[tuple[int, str]]:
    """Number and name of the generations of a job, or the runs of a generation, ascending; what else lies
    there is left out."""
    folders = await store.list_folders(prefix)
    return [(int(name), folder) for folder in folders if (name := folder.rsplit("/", 1)[1]).isdecimal()]


def _chosen(of: str, what: str, asked: int | None, there: list[int]) -> int:
    if asked is None and there:
        return there[-1]
    if asked is not None and asked in there:
        return asked
    known = ", ".join(map(str, there)) or "none"
    raise InvalidInput(f"{of} has no {what} {'yet' if asked is None else asked}; there are: {known}")


async def _ambiguous(store: Store, text: str, found: list[CatalogueEntry]) -> str:
    lines = [f"{text!r} is part of {len(found)} job ids: write more of it"]
    for entry in found[:CANDIDATES]:
        identity = await read_identity(store, entry)
        where = " ".join(str(identity.get(name, "?")) for name in ("dag_id", "task_id", "run_id"))
        index = identity.get("map_index", -1)
        lines.append(f"  {entry.job}  ({where}{f' [{index}]' if index >= 0 else ''})")
    if len(found) > CANDIDATES:
        lines.append(f"  … and {len(found) - CANDIDATES} more")
    return "\n".join(lines)
