"""Chunks: items leased together; the messages that name them and the batches that record them.

A message holds no user data, only which items to run: it fits every queue's size limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import ChunkId

FORMAT = 1

FRESH = "fresh"
RETRY = "retry"
RESEND = "resend"


@dataclass(frozen=True)
class Chunk:
    """Some items to run one after another on one slot.

    ``ranges``: half-open ranges of item indexes, ascending. ``attempt``: which attempt this is of
    every item in it, counting from 1 within the run; items of different attempts are never in one
    chunk. ``memory_class`` k runs with ``memory_gb * 2**k``.
    """

    id: ChunkId
    ranges: tuple[tuple[int, int], ...]
    attempt: int = 1
    memory_class: int = 0

    @cached_property
    def count(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def items(self) -> Iterator[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "ranges": self.ranges,
            "attempt": self.attempt,
            "class": self.memory_class,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Chunk:
        return cls(
            id=ChunkId.parse(stored["id"]),
            ranges=tuple((start, stop) for start, stop in stored["ranges"]),
            attempt=stored["attempt"],
            memory_class=stored["class"],
        )


def ranges_of(items: list[int]) -> tuple[tuple[int, int], ...]:
    """Half-open ranges that cover ascending ``items`` exactly."""
    ranges: list[tuple[int, int]] = []
    for item in items:
        if ranges and ranges[-1][1] == item:
            ranges[-1] = (ranges[-1][0], item + 1)
        else:
            ranges.append((item, item + 1))
    return tuple(ranges)


def to_message(chunk: Chunk) -> str:
    return json.dumps({"format": FORMAT, **chunk.to_json()}, separators=(",", ":"))


def from_message(body: str) -> Chunk:
    stored = json.loads(body)
    if stored.get("format") != FORMAT:
        raise FormatMismatch(
            f"a queue message has format {stored.get('format')!r}; this release reads {FORMAT}"
        )
    return Chunk.from_json(stored)


@dataclass(frozen=True)
class Batch:
    """What one write of the controller sends: kept in the store before its messages go out.

    ``kind`` is fresh, retry or resend; a resend names chunks of earlier batches again.
    """

    number: int
    kind: str
    chunks: tuple[Chunk, ...]

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "number": self.number,
                "kind": self.kind,
                "chunks": [chunk.to_json() for chunk in self.chunks],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        stored = json.loads(data)
        if stored.get("format") != FORMAT:
            raise FormatMismatch(f"a batch has format {stored.get('format')!r}; this release reads {FORMAT}")
        return cls(
            number=stored["number"],
            kind=stored["kind"],
            chunks=tuple(Chunk.from_json(chunk) for chunk in stored["chunks"]),
        )
