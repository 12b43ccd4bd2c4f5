"""Blobs: code, functions and environments, stored by their content and shared by jobs.

A blob that no specification names any more is removed, but never one that a submission is about to
name: whoever submits rewrites what is older than a day, and what is younger than two is not removed.
So a submission has a day between its look at a blob and its specification.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.keys import blob

FRESH_SECONDS = 24 * 3600.0
"""Age up to which a stored blob is taken as it is; an older one is written again."""

KEPT_SECONDS = 2 * FRESH_SECONDS
"""Age before which no blob is removed, whatever the retention."""

BLOBS_AT_ONCE = 4

_SHA256 = re.compile(rb"[0-9a-f]{64}")


async def store_blobs(store: Store, blobs: Mapping[str, bytes], now: float) -> None:
    """Have all blobs (sha256 → content) in the store, none older than a day. ``now``: since the epoch."""
    waiting = list(blobs.items())
    while waiting:
        some, waiting = waiting[:BLOBS_AT_ONCE], waiting[BLOBS_AT_ONCE:]
        writes = {sha256: partial(store.write, blob(sha256), data) for sha256, data in some}
        await asyncio.gather(*(keep_blob(store, sha256, now, write) for sha256, write in writes.items()))


async def keep_blob(store: Store, sha256: str, now: float, write: Callable[[], Awaitable[None]]) -> None:
    """Have one blob in the store, not older than a day; ``write`` writes it."""
    found = await store.find(blob(sha256))
    if found is None or now - found.modified > FRESH_SECONDS:
        await write()


async def missing_blobs(store: Store, blobs: Iterable[str]) -> list[str]:
    """Those of the blobs that are not in the store."""
    wanted = sorted(blobs)
    there = await asyncio.gather(*(store.exists(blob(sha256)) for sha256 in wanted))
    return [sha256 for sha256, found in zip(wanted, there, strict=True) if not found]


def named_in(spec: bytes) -> set[str]:
    """All that may be a blob's name in a stored specification, of whichever format: too many rather than
    too few."""
    return {found.decode() for found in _SHA256.findall(spec)}
