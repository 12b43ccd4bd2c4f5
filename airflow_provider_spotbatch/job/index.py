"""The index of a run: item → state, chunk, place in the chunk, attempts. Written once at its end.

Blocks of 4,096 records of 16 bytes, each block followed by its MAC, so that a reader fetches and
trusts one block (64 KB) at a time. The last block is padded with empty records.
Record (little-endian): state u8 (a cause's code; 255: no outcome), attempts u8 (255: that or more),
run u16, batch u32, number u32, ordinal u32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.outcome import CAUSES
from airflow_provider_spotbatch.job.signing import MAC_BYTES, Signer

RECORD = struct.Struct("<BBHIII")
BLOCK_RECORDS = 4096
BLOCK_BYTES = BLOCK_RECORDS * RECORD.size + MAC_BYTES
_NONE = 255
_EMPTY = RECORD.pack(_NONE, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Place:
    """Where the standing outcome of an item lies; ``cause`` None and ``chunk`` None: it has none."""

    cause: str | None
    attempts: int
    chunk: ChunkId | None
    ordinal: int


def pack_place(place: Place) -> bytes:
    if place.cause is None or place.chunk is None:
        return RECORD.pack(_NONE, min(place.attempts, 255), 0, 0, 0, 0)
    return RECORD.pack(
        CAUSES.index(place.cause),
        min(place.attempts, 255),
        place.chunk.run,
        place.chunk.batch,
        place.chunk.number,
        place.ordinal,
    )


def encode_index(signer: Signer, run: int, records: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of an index in pieces, from packed records in item order."""
    block = bytearray()
    number = 0
    for record in records:
        block += record
        if len(block) == BLOCK_RECORDS * RECORD.size:
            yield _sealed(signer, run, number, bytes(block))
            block.clear()
            number += 1
    if block:
        block += _EMPTY * (BLOCK_RECORDS - len(block) // RECORD.size)
        yield _sealed(signer, run, number, bytes(block))


def block_span(item: int) -> tuple[int, int, int]:
    """``(block number, start, stop)``: which bytes of the index hold ``item``."""
    number = item // BLOCK_RECORDS
    return number, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES


def open_block(signer: Signer, run: int, number: int, data: bytes) -> bytes:
    """The records of a block, once its MAC is found right."""
    records, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
    signer.check(mac, "index", f"{run}/{number}", records)
    return records


def place_at(records: bytes, position: int) -> Place:
    """The record at ``position`` (0 to 4,095) of an opened block."""
    state, attempts, run, batch, number, ordinal = RECORD.unpack_from(records, position * RECORD.size)
    if state == _NONE:
        return Place(None, attempts, None, 0)
    return Place(CAUSES[state], attempts, ChunkId(run, batch, number), ordinal)


def _sealed(signer: Signer, run: int, number: int, records: bytes) -> bytes:
    return records + signer.mac("index", f"{run}/{number}", records)
