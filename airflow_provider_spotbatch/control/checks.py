"""What a connection needs to work, looked at one by one: its key, its store's verbs, its backend.

Nothing that lasts is changed and nothing is launched. Each check that failed says what would cure it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_provider_spotbatch.backends.base import Backend, Check
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.offers import in_words
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError, StoreDenied, StoreUnavailable
from airflow_provider_spotbatch.job.keys import probe
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.signing import key_id

VERB_SECONDS = 20.0
"""One verb of the store, its repeats included: somebody waits for the answer."""

BACKEND_SECONDS = 30.0

_PROBE = b"written by a check of the connection"

T = TypeVar("T")


async def check_settings(settings: Settings) -> list[Check]:
    """Every check of a connection whose fields could be read; the first failure tells the most."""
    checks = [
        Check("connection", True, f"{settings.conn_id} leads to the backend {settings.backend!r}"),
        Check("key", True, f"signs as {key_id(settings.key)}"),
    ]
    try:
        site = await asyncio.to_thread(open_site, settings)
    except InvalidInput as wrong:
        return [*checks, Check("store", False, str(wrong))]
    return [*checks, *await check_store(site.store), *await _check_backend(site.backend)]


def failed_connection(wrong: Exception) -> Check:
    """The one check of a connection that could not be read."""
    return Check("connection", False, str(wrong))


async def check_store(store: Store) -> list[Check]:
    """The verbs that every job needs of its store, tried with one object that is deleted again.

    Where the store does not answer at all, the first failure is the last check.
    """
    trial = _Trial(store, probe(uuid.uuid4().hex))
    checks: list[Check] = []
    for verb, attempt in trial.verbs.items():
        try:
            found = await asyncio.wait_for(attempt(), VERB_SECONDS)
            checks.append(Check(f"store: {verb}", True, found))
        except StoreDenied as denied:
            checks.append(Check(f"store: {verb}", False, denied.message, denied.remedy))
        except (SpotBatchError, asyncio.TimeoutError) as wrong:
            told = str(wrong) or f"{store.uri} did not answer within {VERB_SECONDS:g} s"
            checks.append(Check(f"store: {verb}", False, told, _remedy(wrong, store.uri)))
            if isinstance(wrong, (StoreUnavailable, asyncio.TimeoutError)):
                break
    return checks


class _Trial:
    """One object's life in the store."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._once = f"{name}-once"
        self._written = False

    @property
    def verbs(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """In this order; each tells what it found, or raises."""
        return {
            "write": self._write,
            "read": self._read,
            "list": self._list,
            "create only once": self._create_twice,
            "delete": self._delete,
        }

    async def _write(self) -> str:
        await self._store.write(self._name, _PROBE)
        self._written = True
        return f"wrote an object in {self._store.uri}"

    async def _read(self) -> str:
        data = await self._store.read(self._name)
        if not self._written and data is None:
            return "an object that is not there reads as such"
        if data != _PROBE:
            raise SpotBatchError(f"the store {self._store.uri} gave back other bytes than were written")
        return "read the same bytes"

    async def _list(self) -> str:
        folder = self._name.rsplit("/", 1)[0]
        listed = {entry.name for entry in await self._store.list_objects(folder)}
        if self._written and self._name not in listed:
            raise SpotBatchError(f"{self._name} is missing from the listing of {self._store.uri}")
        return "listings are complete at once"

    async def _create_twice(self) -> str:
        await self._store.create(self._once, _PROBE)
        if await self._store.create(self._once, _PROBE):
            raise _NotAtomic(
                f"the store {self._store.uri} created the same object twice: results could be overwritten"
            )
        return "a second creation of the same object is refused"

    async def _delete(self) -> str:
        await self._store.delete([self._name, self._once])
        return "nothing of this check is left"


class _NotAtomic(SpotBatchError):
    """The store lets two writers create one object."""


def _remedy(wrong: Exception, uri: str) -> str:
    if isinstance(wrong, _NotAtomic):
        return (
            "use a store with conditional writes (If-None-Match), such as Amazon S3 or Google Cloud Storage"
        )
    if uri.startswith("file://"):
        return f"see that {uri[len('file://') :]} is a folder that this user may write, on a disk with room"
    return (
        "see that the bucket exists, and that region, endpoint and credentials in 'store_options' are right"
    )


async def _check_backend(backend: Backend) -> list[Check]:
    """The backend's own checks, and what it offers for an item of the default size."""
    try:
        checks = await asyncio.wait_for(backend.check(), BACKEND_SECONDS)
        checks.append(await asyncio.wait_for(_check_offers(backend), BACKEND_SECONDS))
    except asyncio.TimeoutError:
        return [Check(backend.name, False, f"did not answer within {BACKEND_SECONDS:g} s", "try again later")]
    return checks


async def _check_offers(backend: Backend) -> Check:
    asked = Resources()
    item = f"an item of {asked.cpus:g} CPU and {asked.memory_gb:g} GB"
    try:
        offers = await backend.offers(asked, Policy(), 1)
    except SpotBatchError as refusal:
        return Check("machines", False, f"{item} does not fit: {refusal}")
    first = offers[0]
    price = f", at most {first.usd_per_hour:g} USD an hour" if first.usd_per_hour else ""
    return Check("machines", True, f"{item} runs on {in_words(first)}{price}")
