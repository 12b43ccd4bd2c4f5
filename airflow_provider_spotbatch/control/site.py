"""Where a connection leads: its settings, backend and store, opened together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_spotbatch.backends import open_backend
from airflow_provider_spotbatch.backends.base import Backend
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.environment.packages import local_interpreter
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, derive, key_id, unverified_body
from airflow_provider_spotbatch.job.spec import Spec


@dataclass(frozen=True)
class Site:
    """One place to run jobs, and the time there: ``clock`` in monotonic seconds, ``wall_clock`` in
    seconds since the epoch."""

    settings: Settings
    backend: Backend
    store: Store
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def generation_key(self, generation: Generation) -> bytes:
        """The key that the generation's machines receive."""
        return derive(self.settings.key, generation)

    def signer(self, generation: Generation) -> Signer:
        return Signer(self.generation_key(generation), generation)


def open_site(settings: Settings) -> Site:
    """Open what the connection names. Does no network I/O, but imports the store's library."""
    backend = open_backend(settings)
    return Site(settings, backend, backend.open_store())


async def read_spec(site: Site, generation: Generation) -> Spec | None:
    """The specification of a generation, or None if there is none.

    Raises SignatureMismatch where another key signed it: never silently taken for a new job.
    """
    data = await site.store.read(generation.spec)
    if data is None:
        return None
    with reading(generation.spec):
        signed_with = unverified_body(data)["key_id"]
    if signed_with != key_id(site.settings.key):
        raise SignatureMismatch(
            f"job {generation.job} was begun with another key ({signed_with}) than connection "
            f"{site.settings.conn_id!r} has now ({key_id(site.settings.key)}). Put the old "
            "key back to resume it, or clear the whole DAG run to begin anew under a new run id"
        )
    with reading(generation.spec):
        return Spec.from_bytes(site.signer(generation), data)


async def read_run(site: Site, run: Run) -> RunRecord | None:
    data = await site.store.read(run.run)
    if data is None:
        return None
    with reading(run.run):
        return RunRecord.from_bytes(site.signer(run.generation), run.number, data)


async def boot_for(site: Site, run: Run, spec: Spec, record: RunRecord) -> Boot:
    """What the run's machines are told, before each is made its own."""
    settings = site.settings
    return Boot(
        backend=site.backend.name,
        backend_options=site.backend.boot_options(),
        store=site.store.uri,
        store_options=site.backend.store_options,
        job=run.generation.job,
        generation=run.generation.number,
        run=run.number,
        key=site.generation_key(run.generation).hex(),
        memory_mb=record.policy.resources.memory_gb * 1024,
        python="" if record.archives else await local_interpreter(spec.environment, site.backend.root),
        idle_timeout=settings.idle_timeout,
        orphan_after=settings.orphan_after,
        lease=site.backend.lease,
        archives=_archives(spec, record),
        python_version=spec.environment.python,
        setup=spec.environment.setup_blob,
    )


def _archives(spec: Spec, record: RunRecord) -> dict[str, dict[str, str]]:
    """What bare machines unpack: architecture → part → blob."""
    packages = spec.environment.archives
    return {
        name: {**parts, **({"packages": packages[name]} if name in packages else {})}
        for name, parts in record.archives.items()
    }
