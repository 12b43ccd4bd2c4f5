"""How many items go into a chunk, and how much is sent ahead. Pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_spotbatch.control.snapshot import Pace

CHUNK_SECONDS = 10.0
"""A chunk's work while little is known: a storage request is dear against much less of a cheap slot."""

CHUNK_SECONDS_MOST = 120.0
"""The most work in one chunk: what an interruption may cost at worst."""

CHUNK_SECONDS_LEAST = 0.2
"""The least work in a chunk near the end: below it the handling costs more than the evenness saves."""

CHUNK_BYTES = 32 * 1024 * 1024
"""Expected results, and inputs, of one chunk: an agent holds them in memory until they are written."""

CHUNK_ITEMS = 10_000
"""Items of one chunk: bounds the head of a result object (about 2 MB)."""

CHUNKS_AT_ONCE = 5_000
"""Chunks sent in one tick, once each slot has two: a queue takes some seconds for so many. While chunks
are short the next tick sends more."""

SECONDS_LEAST = 1e-5
"""Items cannot be quicker than the handling of one."""

AHEAD_LOW = 60.0
AHEAD_HIGH = 180.0
"""Seconds of work per slot to keep in the queue: topped up to the high mark when below the low one."""


def seconds_ahead(poll_interval: float) -> tuple[float, float]:
    """Low and high mark: the work sent ahead always outlasts the pause between two ticks."""
    low = max(AHEAD_LOW, 4 * poll_interval)
    return low, low * AHEAD_HIGH / AHEAD_LOW


def items_at_most(pace: Pace, item_bytes: float) -> int:
    """How many items one chunk may hold, whatever their time: by expected bytes, at least one."""
    size = max(pace.size, item_bytes, 1.0)
    return max(1, min(CHUNK_ITEMS, int(CHUNK_BYTES / size)))


def chunk_sizes(
    waiting: int,
    slots: int,
    pace: Pace,
    *,
    most: int,
    ahead_seconds: float,
    seconds: float,
    chunks: int,
    longest: float = CHUNK_SECONDS_MOST,
) -> Iterator[int]:
    """Sizes of the next chunks: at least ``chunks`` of them and ``seconds`` of work, while items wait.

    ``ahead_seconds``: work per slot already sent; ``longest``: work in one chunk at most.
    Each chunk takes a fair part of what is left (guided self-scheduling, Polychronopoulos and Kuck 1987,
    with half a share per slot), so that chunks are large while much is left and small near the end; none
    takes more than a slot's share.
    """
    mean = max(pace.seconds, SECONDS_LEAST)
    grown = min(longest, max(CHUNK_SECONDS, pace.busy_seconds / slots))
    planned, count = 0.0, 0
    while waiting > 0 and (planned < seconds or count < chunks):
        left = waiting * mean / slots + ahead_seconds
        target = max(CHUNK_SECONDS_LEAST, min(grown, left / 2))
        size = min(-(-waiting // slots), most, max(1, int(target / mean)))
        yield size
        waiting -= size
        planned += size * mean
        count += 1
