"""Which jobs are old enough to be removed: a pure decision over what was listed of a job, and the time.

All times are seconds since the epoch, of the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY = 24 * 3600.0

FORGOTTEN_AFTER = 365 * DAY
"""After so long not even the number of a removed generation is remembered: nobody can hold its results."""

KEEP = "keep"
REMOVE = "remove"
FORGET = "forget"


@dataclass(frozen=True)
class StoredRun:
    """``began``: when its record was written; ``ended``: when its outcome was, or its cancel; where
    neither is there, ``max_runtime`` in seconds (infinite where the record cannot be read).
    ``closed``: it is no run, but closes its generation."""

    number: int
    began: float
    ended: float | None = None
    max_runtime: float = math.inf
    closed: bool = False

    @property
    def over(self) -> float:
        """When nothing of it was left at the latest."""
        if self.ended is not None or self.closed:
            return self.began if self.ended is None else self.ended
        return self.began + self.max_runtime + DAY


@dataclass(frozen=True)
class StoredGeneration:
    """``specified``: its specification is there; ``more``: objects besides specification and items,
    and the record of its last run."""

    number: int
    specified: bool
    runs: tuple[StoredRun, ...] = ()
    more: bool = False

    @property
    def closed(self) -> bool:
        return bool(self.runs) and self.runs[-1].closed

    @property
    def alive(self) -> bool:
        """Whether a try may still come back to it."""
        return self.specified and not self.closed

    @property
    def removed(self) -> bool:
        """Its removal has begun, perhaps ended."""
        return bool(self.runs) and not self.alive

    @property
    def left(self) -> bool:
        """A removal that was broken off has left something of it."""
        return self.removed and (self.specified or self.more)


@dataclass(frozen=True)
class StoredJob:
    """``newest``: when the newest object of what the Airflow side wrote was written; ``generations``
    by number."""

    job: str
    newest: float
    generations: tuple[StoredGeneration, ...] = ()

    @property
    def alive(self) -> bool:
        return any(generation.alive for generation in self.generations)

    @property
    def over(self) -> float:
        """When all of it was over: perhaps in the future."""
        runs = [run.over for generation in self.generations for run in generation.runs]
        return max([self.newest, *runs])


def verdict(job: StoredJob, now: float, keep: float) -> str:
    """``remove``: all that is left of the job, but the number of its last generation. ``forget``: that
    too. ``keep``: in seconds, how long a job is kept once it is over."""
    if job.alive:
        return REMOVE if job.over + keep <= now else KEEP
    if any(generation.left for generation in job.generations):
        return REMOVE  # it was decided before, and is not to be read any more
    if any(not generation.removed for generation in job.generations):
        return KEEP  # items without a specification are the sweep's business
    return FORGET if job.newest + max(keep, FORGOTTEN_AFTER if job.generations else DAY) <= now else KEEP
