"""A wait with a deadline that heeds every cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """As ``asyncio.wait_for``, which before Python 3.12 swallows a cancel that meets the end of the work: a
    trigger that was told to end would go on. Raises TimeoutError of asyncio; the work is then cancelled.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()


def _retrieve(task: asyncio.Future[T]) -> None:
    """Whose caller was cancelled may fail unheard: asyncio would log that, with files read on the loop."""
    if not task.cancelled():
        task.exception()
