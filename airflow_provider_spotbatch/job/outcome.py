"""Outcomes of items, and the result object that holds those of one chunk.

Layout of a result object (all integers little-endian)::

    magic "SBR1" | count u32 | length of details u32 | length of all values u64
    table: count rows of 44 bytes: item u64, offset u64, size u64, kind u8, cause u8, attempt u16,
           digest 16 bytes
    details: JSON of columns (start, end, peak_mb, cpu_seconds, previews) and of the machine
    MAC: 16 bytes over all before it
    values, one after another; offsets count from the start of the values

The digest is BLAKE2b-128 of the value's bytes, so the one MAC covers the values as well and any
value can be read and trusted by a ranged request once the head was read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_provider_spotbatch.job.codec import JSON, PICKLE
from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.signing import MAC_BYTES, Signer

OK = "ok"
ERROR = "error"
TIMEOUT = "timeout"
MEMORY = "memory"
CRASH = "crash"
INTERRUPTED = "interrupted"
LOST = "lost"

CAUSES = (OK, ERROR, TIMEOUT, MEMORY, CRASH, INTERRUPTED, LOST)
"""In the order of their stored codes."""

SPENDS_RETRIES = frozenset({ERROR, TIMEOUT, MEMORY, CRASH})
"""Causes that are the item's own fault; the others are the machine's."""

FAILURE = "failure"
_KINDS = (JSON, PICKLE, FAILURE)

_MAGIC = b"SBR1"
_PREFIX = struct.Struct("<4sIIQ")
_ROW = struct.Struct("<QQQBBH16s")


@dataclass(frozen=True)
class Failure:
    """What is known of an item's failure: all text, so that anyone may read it."""

    type: str
    message: str
    traceback: str = ""
    output_tail: str = ""

    @property
    def label(self) -> str:
        """Type and first line of the message, at most 120 characters. Failures are counted by it:
        what differs from item to item belongs into later lines."""
        return f"{self.type}: {self.message.partition(chr(10))[0]}"[:120]

    def to_bytes(self) -> bytes:
        return json.dumps(self.__dict__).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Failure:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class ItemOutcome:
    """How one item ended, once: ``value`` are its encoded bytes, or a :class:`Failure`'s.

    Times are seconds since the epoch by the machine's clock, for people to read only.
    ``preview_out`` of a failure is its label. ``peak_mb``: highest resident memory of the worker's
    processes seen while the item ran.
    """

    item: int
    attempt: int
    cause: str
    kind: str
    value: bytes = field(repr=False)
    start: float
    end: float
    peak_mb: float | None = None
    cpu_seconds: float | None = None
    preview_in: str = ""
    preview_out: str = ""


def encode_result(
    signer: Signer,
    chunk: ChunkId,
    outcomes: Sequence[ItemOutcome],
    machine: dict[str, Any],
) -> bytes:
    """The result object of a chunk."""
    table = bytearray()
    offset = 0
    for outcome in outcomes:
        table += _ROW.pack(
            outcome.item,
            offset,
            len(outcome.value),
            _KINDS.index(outcome.kind),
            CAUSES.index(outcome.cause),
            min(outcome.attempt, 0xFFFF),
            hashlib.blake2b(outcome.value, digest_size=16).digest(),
        )
        offset += len(outcome.value)
    details = json.dumps(
        {
            "machine": machine,
            "start": [round(outcome.start, 6) for outcome in outcomes],
            "end": [round(outcome.end, 6) for outcome in outcomes],
            "peak_mb": [outcome.peak_mb for outcome in outcomes],
            "cpu_seconds": [outcome.cpu_seconds for outcome in outcomes],
            "preview_in": [outcome.preview_in for outcome in outcomes],
            "preview_out": [outcome.preview_out for outcome in outcomes],
        },
        separators=(",", ":"),
    ).encode()
    head = _PREFIX.pack(_MAGIC, len(outcomes), len(details), offset) + bytes(table) + details
    mac = signer.mac("result", str(chunk), head)
    return b"".join([head, mac, *(outcome.value for outcome in outcomes)])


@dataclass(frozen=True)
class Row:
    """Where an item's value lies in its result object, and how the item ended."""

    item: int
    offset: int
    size: int
    kind: str
    cause: str
    attempt: int
    digest: bytes


@dataclass(frozen=True)
class ResultHead:
    """The head of a result object: everything but the values, unpacked as it is asked for.

    ``values_at``: where the values start in the object, in bytes.
    """

    chunk: ChunkId
    values_at: int
    table: bytes = field(repr=False)
    encoded_details: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.table) // _ROW.size

    def row(self, ordinal: int) -> Row:
        """The row of one item by its place in the chunk."""
        return _row(*_ROW.unpack_from(self.table, ordinal * _ROW.size))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(_row(*fields) for fields in _ROW.iter_unpack(self.table))

    @cached_property
    def details(self) -> dict[str, Any]:
        """Columns (start, end, peak_mb, cpu_seconds, preview_in, preview_out) and the machine."""
        details: dict[str, Any] = json.loads(self.encoded_details)
        return details

    def span(self, ordinal: int) -> tuple[int, int]:
        """Byte range (start, stop) of a value in the object."""
        row = self.row(ordinal)
        return self.values_at + row.offset, self.values_at + row.offset + row.size

    def check(self, ordinal: int, value: bytes) -> bytes:
        """``value``, once its digest is found to be the signed one."""
        row = self.row(ordinal)
        if hashlib.blake2b(value, digest_size=16).digest() != row.digest:
            raise SignatureMismatch(
                f"the value of item {row.item} in result {self.chunk} was changed after it was written"
            )
        return value


def _row(item: int, offset: int, size: int, kind: int, cause: int, attempt: int, digest: bytes) -> Row:
    return Row(item, offset, size, _KINDS[kind], CAUSES[cause], attempt, digest)


def head_size(start: bytes) -> int:
    """How many bytes the head takes, read off the first 20 bytes or more of the object."""
    magic, count, details, _ = _PREFIX.unpack_from(start)
    if magic != _MAGIC:
        raise FormatMismatch(f"not a result object of a format this release reads: {magic!r}")
    return int(_PREFIX.size + count * _ROW.size + details + MAC_BYTES)


def decode_head(signer: Signer, chunk: ChunkId, data: bytes) -> ResultHead:
    """The head of a result object, once its MAC is found right. ``data`` may hold more than the head."""
    size = head_size(data)
    signer.check(data[size - MAC_BYTES : size], "result", str(chunk), data[: size - MAC_BYTES])
    _, count, length, _ = _PREFIX.unpack_from(data)
    details_at = _PREFIX.size + count * _ROW.size
    table = bytes(data[_PREFIX.size : details_at])
    return ResultHead(chunk, size, table, bytes(data[details_at : details_at + length]))
