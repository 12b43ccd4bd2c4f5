"""What is known of a run's items and chunks. Any process can build it again from the store.

It holds a few bytes per item and one entry per chunk, and takes in what changed: reading a million
items' state costs nothing in a tick.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_spotbatch.control.snapshot import Counts, Pace, Retry
from airflow_provider_spotbatch.job.chunks import RESEND, Batch, Chunk
from airflow_provider_spotbatch.job.index import Place, pack_place
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.outcome import LOST, MEMORY, OK, SPENDS_RETRIES, ResultHead
from airflow_provider_spotbatch.job.policy import MAX_LOSSES, Policy
from airflow_provider_spotbatch.job.report import EndedChunk

_WAITING, _SENT, _RETRYING, _OK, _FAILED = range(5)
_NOT_WAITING = re.compile(rb"[^\x00]")

RETRY_SECONDS = 1.0
RETRY_SECONDS_MOST = 60.0
"""A retry waits 1 s, then twice as long each time, up to a minute: long enough for a passing fault of
a service the item asks, short against a machine's start."""


@dataclass
class _Sent:
    """A chunk that was sent. ``at``: observer's time of the last sending; ``serial``: place in the list."""

    chunk: Chunk
    at: float
    serial: int
    ended: bool = False
    losses: int = 0


class Ledger:
    """The state of every item of one run.

    ``carried``: the index of the run before, as (item, place) of items that have a success already.
    """

    def __init__(self, count: int, policy: Policy, *, most_memory_class: int = 0) -> None:
        self.count = count
        self._policy = policy
        self._most_memory_class = most_memory_class
        self._state = bytearray(count)
        self._attempts = bytearray(count)
        self._place = array("I", bytes(4 * count))
        """Serial, from 1, of the chunk that has the item's verdict, else of the last it was sent in."""
        self._ordinal = array("I", bytes(4 * count))
        self._failed_as: dict[int, str] = {}
        self._item_losses: Counter[int] = Counter()
        self._chunk_ids: list[ChunkId] = []
        self._serials: dict[ChunkId, int] = {}
        self._sent: dict[ChunkId, _Sent] = {}
        self._open: dict[ChunkId, _Sent] = {}
        self._retry_of: dict[int, tuple[float, Retry]] = {}
        self._by_due: list[tuple[float, int]] = []  # a heap; entries that _retry_of no longer has are stale
        self._unsent_retries: Counter[int] = Counter()
        self._cursor = 0
        self._counts = Counter({_WAITING: count})
        self.causes: Counter[str] = Counter()
        self.outcomes = 0
        self._ran_items = 0
        self._ran_seconds = 0.0
        self._ran_size = 0

    # --- taking in what happened ---------------------------------------------------------------

    def carry(self, item: int, place: Place) -> None:
        """An item that an earlier run finished."""
        assert place.chunk is not None
        self._set(item, _OK)
        self._attempts[item] = place.attempts
        self._place[item] = self._serial(place.chunk) + 1
        self._ordinal[item] = place.ordinal

    def sent(self, batch: Batch, at: float) -> None:
        """A batch is in the store: its chunks count as sent."""
        for chunk in batch.chunks:
            known = self._sent.get(chunk.id)
            if known is not None:
                known.at = at
                continue
            entry = _Sent(chunk, at, self._serial(chunk.id))
            self._sent[chunk.id] = self._open[chunk.id] = entry
            if batch.kind == RESEND:
                continue
            for start, stop in chunk.ranges:
                self._send_range(start, stop, entry.serial)

    def is_open(self, chunk: ChunkId) -> bool:
        return chunk in self._open

    def knows(self, chunk: ChunkId) -> bool:
        return chunk in self._sent

    def ended_well(self, ended: EndedChunk) -> None:
        """A chunk all of whose items succeeded: nothing of its result needs to be read."""
        entry = self._close(ChunkId.parse(ended.chunk))
        if entry is None:
            return
        self._measure(ended)
        ordinal = 0
        for start, stop in entry.chunk.ranges:
            self._succeed_range(start, stop, entry, ordinal)
            ordinal += stop - start

    def ended_read(self, ended: EndedChunk | None, head: ResultHead, now: float) -> None:
        """A chunk whose result's head was read: each item as it ended."""
        entry = self._close(head.chunk)
        if entry is None:
            return
        if ended is not None:
            self._measure(ended)
        for ordinal, row in enumerate(head.rows):
            if row.cause == OK:
                self._succeeded(row.item, entry, ordinal)
            else:
                self._failed(row.item, row.cause, entry, ordinal, now)

    def lost(self, chunk: ChunkId) -> None:
        """A machine was lost or interrupted with this chunk in hand."""
        entry = self._sent.get(chunk)
        if entry is None:
            return
        entry.losses += 1
        self._item_losses.update(entry.chunk.items())

    def _close(self, chunk: ChunkId) -> _Sent | None:
        entry = self._open.pop(chunk, None)
        if entry is not None:
            entry.ended = True
        return entry

    def _measure(self, ended: EndedChunk) -> None:
        self._ran_items += ended.items
        self._ran_seconds += ended.seconds
        self._ran_size += ended.size

    def _succeeded(self, item: int, entry: _Sent, ordinal: int) -> None:
        self.outcomes += 1
        if self._state[item] == _OK:
            return
        if self._state[item] == _FAILED:
            self.causes[self._failed_as.pop(item)] -= 1
        self._set(item, _OK)
        self._attempts[item] = min(255, entry.chunk.attempt)
        self._place[item] = entry.serial + 1
        self._ordinal[item] = ordinal

    def _failed(self, item: int, cause: str, entry: _Sent, ordinal: int, now: float) -> None:
        self.outcomes += 1
        if self._state[item] in (_OK, _FAILED):
            return  # among several results of one item a success wins, and a verdict stands
        if self._place[item] != entry.serial + 1:
            return  # its next attempt was sent already, by whoever knew of this failure before
        self._ordinal[item] = ordinal
        memory_class = entry.chunk.memory_class
        if cause in SPENDS_RETRIES:
            self._attempts[item] = min(255, entry.chunk.attempt)
        if self._is_final(item, cause, memory_class):
            self._set(item, _FAILED)
            self._failed_as[item] = cause
            self.causes[cause] += 1
            return
        attempt = entry.chunk.attempt + (cause in SPENDS_RETRIES)
        wait = 0.0
        if cause == MEMORY:
            memory_class += 1
        elif cause in SPENDS_RETRIES:
            wait = min(RETRY_SECONDS_MOST, RETRY_SECONDS * 2 ** (entry.chunk.attempt - 1))
        self._set(item, _RETRYING)
        self._unsent_retries[memory_class] += 1
        self._retry_of[item] = now + wait, Retry(item, attempt, memory_class, cause == LOST)
        heapq.heappush(self._by_due, (now + wait, item))

    def _is_final(self, item: int, cause: str, memory_class: int) -> bool:
        if cause == MEMORY and memory_class >= self._most_memory_class:
            return True  # no machine has more to give
        if cause in SPENDS_RETRIES:
            return self._attempts[item] > self._policy.item_retries
        return self._item_losses[item] >= MAX_LOSSES

    def _set(self, item: int, state: int) -> None:
        before = self._state[item]
        if before == _RETRYING:
            _, retry = self._retry_of.pop(item)
            self._unsent_retries[retry.memory_class] -= 1
        self._counts[before] -= 1
        self._counts[state] += 1
        self._state[item] = state

    def _send_range(self, start: int, stop: int, serial: int) -> None:
        if self._all(start, stop, _WAITING):
            self._set_range(start, stop, _WAITING, _SENT)
            self._place[start:stop] = array("I", [serial + 1]) * (stop - start)
            return
        for item in range(start, stop):
            if self._state[item] in (_WAITING, _SENT, _RETRYING):
                self._set(item, _SENT)
                self._place[item] = serial + 1

    def _succeed_range(self, start: int, stop: int, entry: _Sent, ordinal: int) -> None:
        size = stop - start
        if not self._all(start, stop, _SENT):
            for step in range(size):
                self._succeeded(start + step, entry, ordinal + step)
            return
        self.outcomes += size
        self._set_range(start, stop, _SENT, _OK)
        self._attempts[start:stop] = bytes((min(255, entry.chunk.attempt),)) * size
        self._place[start:stop] = array("I", [entry.serial + 1]) * size
        self._ordinal[start:stop] = array("I", range(ordinal, ordinal + size))

    def _all(self, start: int, stop: int, state: int) -> bool:
        return self._state.count(state, start, stop) == stop - start

    def _set_range(self, start: int, stop: int, before: int, after: int) -> None:
        size = stop - start
        self._state[start:stop] = bytes((after,)) * size
        self._counts[before] -= size
        self._counts[after] += size

    def _serial(self, chunk: ChunkId) -> int:
        serial = self._serials.get(chunk)
        if serial is None:
            serial = self._serials[chunk] = len(self._chunk_ids)
            self._chunk_ids.append(chunk)
        return serial

    # --- what the decision needs -----------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        counts = self._counts
        return Counts(
            self.count, counts[_WAITING], counts[_SENT], counts[_RETRYING], counts[_OK], counts[_FAILED]
        )

    @property
    def pace(self) -> Pace:
        if not self._ran_items:
            return Pace()
        return Pace(
            self._ran_items,
            self._ran_seconds / self._ran_items,
            self._ran_size / self._ran_items,
            self._ran_seconds,
        )

    def fresh(self, items: int, ranges: int = 2000) -> tuple[tuple[int, int], ...]:
        """The next ranges of items never sent: up to ``items`` of them, in up to ``ranges`` ranges."""
        found: list[tuple[int, int]] = []
        at = self._state.find(_WAITING, self._cursor)
        self._cursor = at if at >= 0 else self.count
        while at >= 0 and items > 0 and len(found) < ranges:
            end = self._end_of_run(at, min(self.count, at + items))
            found.append((at, end))
            items -= end - at
            at = self._state.find(_WAITING, end)
        return tuple(found)

    def _end_of_run(self, start: int, limit: int) -> int:
        """Where the run of waiting items that begins at ``start`` ends, at ``limit`` at the latest."""
        other = _NOT_WAITING.search(self._state, start, limit)
        return other.start() if other else limit

    def due(self, now: float, most: int = 5000) -> tuple[Retry, ...]:
        """Retries whose time has come, the longest due first."""
        ripe: list[tuple[float, int]] = []
        while self._by_due and self._by_due[0][0] <= now and len(ripe) < most:
            entry = heapq.heappop(self._by_due)
            if self._is_current(entry):
                ripe.append(entry)
        for entry in ripe:  # they stay due until they are sent
            heapq.heappush(self._by_due, entry)
        return tuple(self._retry_of[item][1] for _, item in ripe)

    def next_due(self, now: float) -> float | None:
        """Seconds to the next retry, None if none waits."""
        while self._by_due and not self._is_current(self._by_due[0]):
            heapq.heappop(self._by_due)
        return max(0.0, self._by_due[0][0] - now) if self._by_due else None

    def _is_current(self, entry: tuple[float, int]) -> bool:
        due, item = entry
        return item in self._retry_of and self._retry_of[item][0] == due

    def unsent(self) -> dict[int, int]:
        """Items that wait to be sent, by memory class."""
        waiting = Counter({0: self._counts[_WAITING]})
        waiting.update(self._unsent_retries)
        return {memory_class: count for memory_class, count in waiting.items() if count > 0}

    @property
    def open_count(self) -> int:
        """Chunks without result."""
        return len(self._open)

    def open_chunks(self) -> Iterator[tuple[Chunk, float, int, int]]:
        """``(chunk, last sending, its losses, most losses of an item of it)`` of chunks without result."""
        for entry in self._open.values():
            items = (
                max((self._item_losses[item] for item in entry.chunk.items()), default=0)
                if entry.losses
                else 0
            )
            yield entry.chunk, entry.at, entry.losses, items

    # --- the end ---------------------------------------------------------------------------------

    def records(self) -> Iterator[bytes]:
        """Packed index records in item order."""
        for item in range(self.count):
            state = self._state[item]
            if state == _OK:
                cause: str | None = OK
            elif state == _FAILED:
                cause = self._failed_as[item]
            else:
                cause = None
            serial = self._place[item]
            chunk = self._chunk_ids[serial - 1] if serial and cause is not None else None
            yield pack_place(Place(cause, self._attempts[item], chunk, self._ordinal[item]))
