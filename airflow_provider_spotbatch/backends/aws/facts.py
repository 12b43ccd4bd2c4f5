"""What a cloud says of itself and rarely changes: kept in the store, for all jobs and processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from airflow_provider_spotbatch.backends.aws.single_flight import SingleFlight
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.keys import facts

FORMAT = 1

T = TypeVar("T")


class Facts:
    """Values of JSON by name, each asked anew when it is older than its time. Large ones are read in threads:
    a region's prices are MBs."""

    def __init__(self, store: Callable[[], Store], wall_clock: Callable[[], float] = time.time) -> None:
        self._open_store = store
        self._wall_clock = wall_clock
        self._known: dict[str, tuple[float, Any]] = {}
        self._flights: dict[str, SingleFlight[Any]] = {}

    async def get(
        self, name: str, seconds: float, ask: Callable[[], Awaitable[Any]], parse: Callable[[Any], T]
    ) -> T:
        """What ``parse`` makes of the value of that name, no older than ``seconds``: from memory, the store,
        or ``ask``. Shared by all who ask: not to be changed."""
        known = self._known.get(name)
        if known is not None and self._is_fresh(known[0], seconds):
            fresh: T = known[1]
            return fresh
        flight = self._flights.setdefault(name, SingleFlight())
        looked_up: T = await flight.join(lambda: self._look_up(name, seconds, ask, parse))
        return looked_up

    async def _look_up(
        self, name: str, seconds: float, ask: Callable[[], Awaitable[Any]], parse: Callable[[Any], T]
    ) -> T:
        stored = await asyncio.to_thread(_read, await self._open_store().read(facts(name)))
        if stored is None or not self._is_fresh(stored[0], seconds):
            stored = (self._wall_clock(), await ask())
            await self._open_store().write(facts(name), await asyncio.to_thread(_written, *stored))
        at, value = stored
        parsed = await asyncio.to_thread(parse, value)
        self._known[name] = (at, parsed)
        return parsed

    def _is_fresh(self, at: float, seconds: float) -> bool:
        return 0 <= self._wall_clock() - at < seconds


def _written(at: float, value: Any) -> bytes:
    return json.dumps({"format": FORMAT, "at": at, "value": value}).encode()


def _read(data: bytes | None) -> tuple[float, Any] | None:
    """When it was asked, and the answer; None for what is not there or was written by another release."""
    if data is None:
        return None
    body = json.loads(data)
    return (float(body["at"]), body["value"]) if body.get("format") == FORMAT else None
