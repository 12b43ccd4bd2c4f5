"""One answer for all who ask the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """One asking for all who want to know at the same time, in one event loop."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[T] | None = None

    async def join(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not loop:
            asking = self._asking = loop.create_task(_awaited(ask))
            asking.add_done_callback(_take_note)
        return await asyncio.shield(asking)


async def _awaited(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _take_note(asking: asyncio.Task[Any]) -> None:
    """Who asked may have been cancelled: an error that nobody waits for is none."""
    if not asking.cancelled():
        asking.exception()
