"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Return once ``event`` is set or ``seconds`` are over."""
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0.001))
    except asyncio.TimeoutError:
        return
