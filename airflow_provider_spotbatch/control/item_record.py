"""What is on record of one item: its standing outcome, found with a few reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.heads import read_failure, read_head
from airflow_provider_spotbatch.job.chunks import Batch
from airflow_provider_spotbatch.job.index import BLOCK_RECORDS, block_span, open_block, place_at
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.outcome import INTERRUPTED, Failure
from airflow_provider_spotbatch.job.signing import Signer

AT_ONCE = 32
"""Batches read at the same time."""


@dataclass(frozen=True)
class ItemRecord:
    """How an item ended on a machine. Times in seconds since the epoch, memory in MB.

    ``attempts``: how often it was run; ``failure`` None: it succeeded.
    """

    item: int
    cause: str
    attempts: int
    failure: Failure | None
    start: float
    end: float
    peak_mb: float | None
    preview_in: str
    preview_out: str
    instance: str
    host: str
    memory_class: int


async def read_item_record(store: Store, signer: Signer, run: Run, item: int) -> ItemRecord | None:
    """The outcome that stands, of this run or of the last before it that has one; None: there is none.

    A finished run tells by its index. In one that still runs, the last attempt with a result stands.
    """
    for number in range(run.number, 0, -1):
        found = await _in_run(store, signer, Run(run.generation, number), item)
        if found is not None:
            return found
    return None


async def _in_run(store: Store, signer: Signer, run: Run, item: int) -> ItemRecord | None:
    block, start, stop = block_span(item)
    data = await store.read_range(run.index, start, stop)
    if data is not None:
        records = await asyncio.to_thread(open_block, signer, run.number, block, data)
        place = place_at(records, item % BLOCK_RECORDS)
        if place.chunk is None:
            return None
        return await _of_chunk(store, signer, run, place.chunk, item, place.attempts)
    for chunk, attempt in await _chunks_with(store, run, item):
        found = await _of_chunk(store, signer, run, chunk, item, attempt)
        if found is not None and found.cause != INTERRUPTED:  # put off there: it was not run
            return found
    return None


async def _chunks_with(store: Store, run: Run, item: int) -> list[tuple[ChunkId, int]]:
    """The chunks that the item was sent in, each with its attempt, the last one first."""
    found: dict[ChunkId, int] = {}
    names = [entry.name for entry in await store.list_objects(run.batches)]
    for start in range(0, len(names), AT_ONCE):
        for data in await asyncio.gather(*(store.read(name) for name in names[start : start + AT_ONCE])):
            if data is not None:
                batch = await asyncio.to_thread(Batch.from_bytes, data)
                found.update(
                    (chunk.id, chunk.attempt)
                    for chunk in batch.chunks
                    if any(first <= item < stop for first, stop in chunk.ranges)
                )
    return sorted(found.items(), reverse=True)


async def _of_chunk(
    store: Store, signer: Signer, run: Run, chunk: ChunkId, item: int, attempts: int
) -> ItemRecord | None:
    head = await read_head(store, signer, run.generation, chunk)
    if head is None:
        return None
    ordinal = next(place for place, row in enumerate(head.rows) if row.item == item)
    row = head.rows[ordinal]
    details = head.details
    machine = details["machine"]
    return ItemRecord(
        item=item,
        cause=row.cause,
        attempts=attempts,
        failure=await read_failure(store, run.generation, head, ordinal),
        start=details["start"][ordinal],
        end=details["end"][ordinal],
        peak_mb=details["peak_mb"][ordinal],
        preview_in=details["preview_in"][ordinal],
        preview_out=details["preview_out"][ordinal],
        instance=machine.get("instance", ""),
        host=machine.get("host", ""),
        memory_class=machine.get("memory_class", 0),
    )
