"""An agent's periodic account of itself: one object per instance, rewritten by its agent alone.

Reports are hints, results are the truth: a chunk named here as ended has a durable result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_provider_spotbatch.job.errors import FormatMismatch

FORMAT = 1

BOOTING = "booting"
RUNNING = "running"
DRAINING = "draining"
ENDED = "ended"

SEAL_AFTER = 500
"""Ended chunks in a report before they are sealed: keeps a report below about 40 KB."""

SHOWN_ITEMS = 100
"""Running items that a report names at most."""


class EndedChunk(NamedTuple):
    """A chunk whose result is durable. ``items``: those that ran; ``seconds``: their time, summed;
    ``size``: bytes stored.

    ``failed`` counts the outcomes that are not ok, and items put off; the result object tells which.
    ``found`` marks a chunk whose result another agent had already written: its other figures are zero.
    """

    chunk: str
    items: int
    failed: int
    seconds: float
    size: int
    found: bool = False

    def to_json(self) -> list[Any]:
        return [
            self.chunk,
            self.items,
            self.failed,
            round(self.seconds, 6),
            self.size,
            int(self.found),
        ]

    @classmethod
    def from_json(cls, stored: list[Any]) -> EndedChunk:
        chunk, items, failed, seconds, size, found = stored
        return cls(chunk, items, failed, seconds, size, bool(found))


@dataclass(frozen=True)
class RunningItem:
    item: int
    attempt: int
    chunk: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """What an agent says of itself.

    ``sequence`` grows with every report; ``launch`` is the record that asked for the machine;
    ``ended`` are the chunks ended since the last seal, ``sealed`` the number of seals;
    ``held`` are the chunks leased and not ended (also those handed over by an ended agent:
    ``state`` ended with ``held`` is work in hand when it ended); ``empty_seconds``: for how long
    this agent has seen its queue empty with a slot free, else None; ``reason`` says why an agent
    drains or ended, ``interrupted`` that it was the platform's notice; ``use``: what its items used, as
    :class:`~airflow_provider_spotbatch.job.use.Use` stores it.

    Where its time went, in seconds: ``up_seconds`` since it could take work; of its slots, summed,
    ``worked_seconds`` with chunks that ran to their end, ``broken_seconds`` with chunks that were broken off
    or are in hand.
    """

    instance: str
    launch: int
    memory_class: int
    slots: int
    sequence: int
    state: str
    reason: str = ""
    interrupted: bool = False
    ended: tuple[EndedChunk, ...] = ()
    sealed: int = 0
    held: tuple[str, ...] = ()
    running: tuple[RunningItem, ...] = ()
    empty_seconds: float | None = None
    items_ok: int = 0
    items_failed: int = 0
    item_seconds: float = 0.0
    boot_log: str = ""
    up_seconds: float = 0.0
    worked_seconds: float = 0.0
    broken_seconds: float = 0.0
    use: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        body = dict(self.__dict__)
        body["ended"] = [chunk.to_json() for chunk in self.ended]
        body["running"] = [[i.item, i.attempt, i.chunk, round(i.seconds, 3)] for i in self.running]
        return json.dumps({"format": FORMAT, **body}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        stored = json.loads(data)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("an agent's report has a format that this release does not read")
        stored["ended"] = tuple(EndedChunk.from_json(chunk) for chunk in stored["ended"])
        stored["running"] = tuple(RunningItem(*item) for item in stored["running"])
        stored["held"] = tuple(stored["held"])
        return cls(**stored)


def seal_to_bytes(ended: tuple[EndedChunk, ...]) -> bytes:
    return json.dumps({"format": FORMAT, "ended": [chunk.to_json() for chunk in ended]}).encode()


def seal_from_bytes(data: bytes) -> tuple[EndedChunk, ...]:
    stored = json.loads(data)
    if stored.get("format") != FORMAT:
        raise FormatMismatch("a seal has a format that this release does not read")
    return tuple(EndedChunk.from_json(chunk) for chunk in stored["ended"])
