"""The simulated cloud's object store: the verbs of :class:`Store`, with the cloud's time and faults."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_spotbatch.backends.store import PAGE, Store, StoredObject
from airflow_provider_spotbatch.job.errors import StoreUnavailable

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.memory import MemoryCloud


@dataclass
class Objects:
    """What the store holds: by name, and the names in order."""

    named: dict[str, tuple[bytes, StoredObject]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    writes: int = 0


async def _pass() -> None:
    return None


class MemoryStore(Store):
    """Objects in a dictionary. Not obstore's own memory store: that one has its times from the
    system's clock and answers from another thread, so no simulation over it would repeat itself.

    ``gate`` is awaited before each call and before its answer: a frozen machine stands there.
    """

    def __init__(
        self, cloud: MemoryCloud, objects: Objects, gate: Callable[[], Awaitable[None]] = _pass
    ) -> None:
        self.uri = f"memory://{cloud.name}"
        self.objects = objects
        self._cloud = cloud
        self._gate = gate

    async def create(self, name: str, data: bytes) -> bool:
        await self._request("write", name)
        fresh = name not in self.objects.named
        if fresh:
            self._put(name, data)
        await self._answer("write", name)
        return fresh and not self._cloud.happens("own_create")

    async def write(self, name: str, data: bytes) -> None:
        await self._request("write", name)
        self._put(name, data)
        await self._answer("write", name)

    async def upload(self, name: str, path: Path) -> None:
        await self.write(name, await asyncio.to_thread(path.read_bytes))

    async def read(self, name: str) -> bytes | None:
        await self._request("read", name)
        data = self.objects.named[name][0] if name in self.objects.named else None
        await self._answer("read", name)
        return data

    async def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        data = await self.read(name)
        return None if data is None else data[start : max(start, stop)]

    async def find(self, name: str) -> StoredObject | None:
        await self._request("look at", name)
        found = self.objects.named[name][1] if name in self.objects.named else None
        await self._answer("look at", name)
        return found

    async def list_objects(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        await self._request("list", prefix)
        folder = prefix.rstrip("/") + "/" if prefix else ""
        first = (
            bisect_left(self.objects.names, folder)
            if after is None
            else bisect_right(self.objects.names, after)
        )
        names = takewhile(lambda name: name.startswith(folder), islice(self.objects.names, first, None))
        found = [self.objects.named[name][1] for name in names]
        await self._answer("list", prefix)
        return found

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        last: str | None = None
        while page := (await self.list_objects(prefix, after=last))[:PAGE]:
            yield page
            last = page[-1].name

    async def list_folders(self, prefix: str) -> list[str]:
        entries = await self.list_objects(prefix)
        below = (entry.name[len(prefix) + 1 :].split("/") for entry in entries)
        return sorted({f"{prefix}/{path[0]}" for path in below if len(path) > 1})

    async def delete(self, names: list[str]) -> None:
        for name in names:
            await self._request("delete", name)
            if self.objects.named.pop(name, None):
                self.objects.names.remove(name)
            await self._answer("delete", name)

    def _put(self, name: str, data: bytes) -> None:
        if name not in self.objects.named:
            insort(self.objects.names, name)
        self.objects.writes += 1
        entry = StoredObject(name, len(data), str(self.objects.writes), self._cloud.clock.now())
        self.objects.named[name] = (bytes(data), entry)

    async def _request(self, verb: str, name: str) -> None:
        await self._gate()
        await self._cloud.travel()
        self._maybe_fail(verb, name)

    async def _answer(self, verb: str, name: str) -> None:
        await self._cloud.travel()
        await self._gate()
        self._maybe_fail(verb, name)

    def _maybe_fail(self, verb: str, name: str) -> None:
        if self._cloud.happens("fail_request"):
            raise StoreUnavailable(f"could not {verb} {name} in {self.uri}: simulated fault")
