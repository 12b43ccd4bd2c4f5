"""Where a controller touches the world: every call that changes something, counted, and what befalls it
there. All calls of the ports but the plain reads are boundaries, so that a new one joins by itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_spotbatch.control.site import Site

READS = {"read", "read_range", "exists", "find", "list_objects", "list_folders", "describe", "receive"}

BEFORE, AFTER = "before", "after"

Befall = Callable[[int, str, str], Awaitable[None]]
"""Told of each boundary: its number from 1, whether before or after the call, and its name. It may
sleep (the controller is stalled there) or raise :class:`Killed`."""


class Killed(BaseException):
    """The process is gone: nothing it awaits goes on."""


async def nothing(number: int, when: str, name: str) -> None:
    return None


@dataclass
class Boundaries:
    """Those of one controller process. ``crossed``: the names of all so far, in order."""

    befall: Befall = nothing
    crossed: list[str] = field(default_factory=list)
    dead: bool = False

    def around(self, site: Site) -> Site:
        """The site as this process reaches it."""
        return replace(site, store=_Port(site.store, self), backend=_Backend(site.backend, self))

    async def cross(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.crossed.append(name)
        number = len(self.crossed)
        await self._meet(number, BEFORE, name)
        answer = await call()
        await self._meet(number, AFTER, name)
        return answer

    async def _meet(self, number: int, when: str, name: str) -> None:
        self.check()
        try:
            await self.befall(number, when, name)
        except Killed:
            self.dead = True
            raise
        self.check()

    def check(self) -> None:
        if self.dead:
            raise Killed


class _Port:
    """A store, queue or fleet, its calls counted."""

    def __init__(self, inner: Any, boundaries: Boundaries) -> None:
        self._inner = inner
        self._boundaries = boundaries

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        async def call(*given: Any, **named: Any) -> Any:
            self._boundaries.check()
            if name in READS:
                return await attribute(*given, **named)
            what = str(given[0]).rsplit("/", 2)[-2:] if given and isinstance(given[0], str) else []
            told = " ".join([f"{type(self._inner).__name__}.{name}", *what])
            return await self._boundaries.cross(told, lambda: attribute(*given, **named))

        return call


class _Backend:
    """A backend whose fleets and queues are counted."""

    def __init__(self, inner: Any, boundaries: Boundaries) -> None:
        self._inner = inner
        self._boundaries = boundaries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fleet(self, *given: Any) -> Any:
        return _Port(self._inner.fleet(*given), self._boundaries)

    def queue(self, *given: Any) -> Any:
        return _Port(self._inner.queue(*given), self._boundaries)


def kill_at(boundary: int, when: str) -> Befall:
    """The process dies at this boundary: before the call, or after it but before its answer is known."""

    async def befall(number: int, moment: str, name: str) -> None:
        if (number, moment) == (boundary, when):
            raise Killed

    return befall


def stall_at(boundary: int, when: str, seconds: float) -> Befall:
    """The process stands still there for so long, once, and goes on."""

    async def befall(number: int, moment: str, name: str) -> None:
        if (number, moment) == (boundary, when):
            await asyncio.sleep(seconds)

    return befall


def kill_at_call(part: str, when: str) -> Befall:
    """The process dies at the first boundary that has ``part`` in its name."""

    async def befall(number: int, moment: str, name: str) -> None:
        if part in name and moment == when:
            raise Killed

    return befall


def stall_at_call(part: str, when: str, seconds: float) -> Befall:
    """The process stands still at the first boundary that has ``part`` in its name, and goes on."""
    left = [part]

    async def befall(number: int, moment: str, name: str) -> None:
        if left and left[0] in name and moment == when:
            left.clear()
            await asyncio.sleep(seconds)

    return befall
