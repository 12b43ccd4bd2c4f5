"""What is built on the Airflow side and kept there: once for all processes, and never seen half-done."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from airflow_provider_spotbatch.job.errors import InvalidInput

BUILD_SECONDS = 1800.0
"""One build with all its downloads: protects the task from an index that is silent."""

_POLL_SECONDS = 0.2


async def build_once(folder: str, deadline: float, build: Callable[[str], Awaitable[None]]) -> None:
    """See to it that ``folder`` is there. ``build`` makes it under another name; it appears whole by one
    rename. A build by another process is waited for, until ``deadline`` (monotonic)."""
    if await asyncio.to_thread(os.path.exists, folder):
        return
    await asyncio.to_thread(os.makedirs, os.path.dirname(folder), 0o700, True)
    async with _locked(f"{folder}.lock", deadline):
        if await asyncio.to_thread(os.path.exists, folder):
            return
        partial = f"{folder}.partial"  # the lock is ours: what is there was left by a build that died
        await asyncio.to_thread(shutil.rmtree, partial, True)
        try:
            await build(partial)
            await asyncio.to_thread(os.rename, partial, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, True)


@contextlib.asynccontextmanager
async def _locked(path: str, deadline: float) -> AsyncIterator[None]:
    """Hold a file's lock, which ends with the process."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InvalidInput(
                        f"another process has been building the environment {path} for too long; "
                        "end it, or try again"
                    ) from None
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)
