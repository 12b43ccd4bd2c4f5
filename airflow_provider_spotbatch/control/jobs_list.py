"""The jobs of a store, those begun last first. Only those that are shown are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.find_run import (
    CatalogueEntry,
    catalogue_entries,
    latest_run,
    read_identity,
)
from airflow_provider_spotbatch.control.run_summary import RunSummary, read_documents, read_summary
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import CATALOGUE, catalogue_of

AT_ONCE = 16
"""Jobs that are read at the same time, each with about ten small requests."""


@dataclass(frozen=True)
class ListedJob:
    """One job. ``summary`` None: it cannot be read, and ``trouble`` says why."""

    job: str
    identity: dict[str, Any]
    summary: RunSummary | None
    trouble: str = ""


async def list_jobs(
    store: Store, keyring: Keyring, now: float, *, dag_id: str | None = None, limit: int | None = None
) -> AsyncIterator[ListedJob]:
    """The newest ``limit`` jobs (None: all), of one DAG or of all; ``now``: seconds since the epoch."""
    entries = await catalogue_entries(store, CATALOGUE if dag_id is None else catalogue_of(dag_id))
    given = 0
    for start in range(0, len(entries), AT_ONCE):
        some = entries[start : start + AT_ONCE]
        identities = await asyncio.gather(*(read_identity(store, entry) for entry in some))
        wanted = [
            (entry, identity)
            for entry, identity in zip(some, identities, strict=True)
            if dag_id is None or identity.get("dag_id") == dag_id
        ]
        if limit is not None:
            wanted = wanted[: limit - given]
        for listed in await asyncio.gather(*(_listed(store, keyring, now, *each) for each in wanted)):
            yield listed
        given += len(wanted)
        if given == limit:
            return


async def _listed(
    store: Store, keyring: Keyring, now: float, entry: CatalogueEntry, identity: dict[str, Any]
) -> ListedJob:
    try:
        run = await latest_run(store, entry.job)
        if run is None or not run.number:
            return ListedJob(entry.job, identity, None, "no run of it has begun")
        documents = await read_documents(store, keyring, run)
        return ListedJob(entry.job, identity, await read_summary(store, documents, now))
    except SpotBatchError as error:
        return ListedJob(entry.job, identity, None, f"cannot be read: {error}")
