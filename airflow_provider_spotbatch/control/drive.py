"""The loop until its end: patient with a store or cloud that is down for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.job.errors import (
    CloudUnavailable,
    Refusal,
    SpotBatchError,
    StoreUnavailable,
)

FAILED_TICKS = 12
"""Ticks that may fail in a row: with the pauses below, a store that is down for about 8 minutes."""

LONGEST_PAUSE = 60.0


def may_pass(error: Exception) -> bool:
    """Whether looking again later can cure an error: a store or cloud that is away comes back."""
    if isinstance(error, Refusal):
        return not error.fatal
    return isinstance(error, (StoreUnavailable, CloudUnavailable)) or not isinstance(error, SpotBatchError)


async def drive(
    controller: Controller,
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tick until the run is over. Raises the last error when too many ticks failed."""
    try:
        await _tick_until_over(controller, say, sleep)
    finally:
        controller.leave()


async def _tick_until_over(
    controller: Controller, say: Callable[[str], None], sleep: Callable[[float], Awaitable[None]]
) -> None:
    failed = 0
    while True:
        try:
            turn = await controller.tick()
        except Exception as error:
            failed += 1
            if failed >= FAILED_TICKS or not may_pass(error):
                raise
            pause = min(LONGEST_PAUSE, 2.0**failed) * random.uniform(0.5, 1.0)
            say(f"{type(error).__name__}: {error}. Looking again in {pause:.0f} s ({failed}/{FAILED_TICKS})")
            await sleep(pause)
            continue
        failed = 0
        if turn.over:
            return
        await sleep(turn.pause)
