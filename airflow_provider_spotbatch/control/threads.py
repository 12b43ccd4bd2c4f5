"""Where work is done: small work at once, large work in a thread.

A triggerer's event loop serves every deferred task of an Airflow. Large work would hold it for all of
them; but a thread costs more than most of a small run's work, and each run has some several times a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SMALL = 200
"""Entries (chunks, machines, lines of a stored object) that are worked on in well under 5 ms."""

ENTRY_BYTES = 100
"""Of a stored object: an entry has about so many."""


async def work_out(entries: int, work: Callable[[], T]) -> T:
    """What ``work`` returns, which has so many entries to go through."""
    if entries <= SMALL:
        return work()
    return await asyncio.to_thread(work)


async def parse(function: Callable[[bytes], T], data: bytes) -> T:
    """What ``function`` makes of a stored object."""
    return await work_out(len(data) // ENTRY_BYTES, lambda: function(data))
