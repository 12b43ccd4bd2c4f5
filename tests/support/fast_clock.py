"""The time of a controller whose cloud is real: it jumps over pauses in which no machine is at work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from airflow_provider_spotbatch.backends.store import Store, StoredObject
from airflow_provider_spotbatch.control.site import Site

LONGEST_PAUSE = 0.2
"""Real seconds between two looks while machines are at work: a test waits for them."""


class FastClock:
    """``busy``: whether machines are at work, whose own time is real."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self.ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return time.time() + self.ahead

    async def sleep(self, seconds: float) -> None:
        if self._busy():
            await asyncio.sleep(min(seconds, LONGEST_PAUSE))
        else:
            self.ahead += seconds

    def around(self, site: Site) -> Site:
        """The site in this time."""
        store = _StoreInItsTime(site.store, self)
        return replace(site, store=store, clock=self.now, wall_clock=self.wall)


class _StoreInItsTime(Store):
    """What was written is as old as the clock says."""

    def __init__(self, store: Store, clock: FastClock) -> None:
        super().__init__(store.uri, store.inner)
        self._clock = clock
        self._ahead: dict[tuple[str, str], float] = {}

    async def create(self, name: str, data: bytes) -> bool:
        created = await super().create(name, data)
        await self.find(name)
        return created

    async def write(self, name: str, data: bytes) -> None:
        await super().write(name, data)
        await self.find(name)

    async def upload(self, name: str, path: Path) -> None:
        await super().upload(name, path)
        await self.find(name)

    async def find(self, name: str) -> StoredObject | None:
        found = await super().find(name)
        return None if found is None else self._put_in_time(found)

    async def list_objects(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        return [self._put_in_time(entry) for entry in await super().list_objects(prefix, after)]

    def _put_in_time(self, entry: StoredObject) -> StoredObject:
        """What is seen for the first time was written just now, or while a machine was at work."""
        ahead = self._ahead.setdefault((entry.name, entry.tag), self._clock.ahead)
        return replace(entry, modified=entry.modified + ahead)
