"""Packed items: how inputs lie in the store, so that one ranged request reads a chunk.

A part holds records one after another; its ``.offsets`` object holds ``count + 1`` little-endian
u64 byte offsets. A record is ``kind (1 byte: J or P) + MAC (16 bytes) + payload``; the MAC covers
kind, payload and the item's index.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_spotbatch.job.codec import JSON, PICKLE
from airflow_provider_spotbatch.job.signing import MAC_BYTES, Signer

PART_BYTES = 16 * 1024 * 1024
PART_ITEMS = 65_536
"""A part is closed at either limit: its offsets stay below 512 KB, which an agent keeps at hand."""

_KINDS = {JSON: b"J", PICKLE: b"P"}
_NAMES = {b"J": JSON, b"P": PICKLE}
OFFSET_BYTES = 8


@dataclass(frozen=True)
class Part:
    """One part: the index of its first item, how many it holds, how many bytes."""

    first: int
    count: int
    size: int


@dataclass(frozen=True)
class ItemTable:
    """Where every item of a generation lies."""

    submission: str
    count: int
    parts: tuple[Part, ...]

    def part_of(self, item: int) -> int:
        """The number of the part that holds ``item``."""
        if not 0 <= item < self.count:
            raise IndexError(f"item {item} of {self.count}")
        return bisect_right([part.first for part in self.parts], item) - 1

    def split(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """``(part, start, stop)`` pieces of a range of items, one per part it touches."""
        while start < stop:
            number = self.part_of(start)
            end = min(stop, self.parts[number].first + self.parts[number].count)
            yield number, start, end
            start = end


def pack(signer: Signer, index: int, kind: str, payload: bytes) -> bytes:
    """The record of one item."""
    body = _KINDS[kind] + payload
    return body[:1] + signer.mac("item", str(index), body) + payload


def unpack(signer: Signer, index: int, record: bytes) -> tuple[str, bytes]:
    """``(kind, payload)`` of a record, once its MAC is found right."""
    kind, mac, payload = record[:1], record[1 : 1 + MAC_BYTES], record[1 + MAC_BYTES :]
    signer.check(mac, "item", str(index), kind + payload)
    return _NAMES[kind], payload


@dataclass
class PartBuilder:
    """Collects records until a part is full."""

    first: int
    data: bytearray = field(default_factory=bytearray)
    offsets: array[int] = field(default_factory=lambda: array("Q", [0]))

    def add(self, record: bytes) -> None:
        self.data += record
        self.offsets.append(len(self.data))

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    @property
    def full(self) -> bool:
        return len(self.data) >= PART_BYTES or self.count >= PART_ITEMS

    @property
    def part(self) -> Part:
        return Part(self.first, self.count, len(self.data))

    @property
    def packed_offsets(self) -> bytes:
        return offsets_to_bytes(self.offsets)


def offsets_to_bytes(offsets: array[int]) -> bytes:
    return _little_endian(offsets).tobytes()


def offsets_from_bytes(data: bytes) -> Sequence[int]:
    offsets = array("Q")
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return values
    swapped = array("Q", values)
    swapped.byteswap()
    return swapped
