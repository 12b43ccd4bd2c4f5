"""Which jobs are old enough to be removed: a pure decision over what was listed of a job, and the time.

All times are seconds since the epoch, of the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY = 24 * 3600.0


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
    """``specified``: its specification is there."""

    number: int
    specified: bool
    runs: tuple[StoredRun, ...] = ()

    @property
    def closed(self) -> bool:
        return bool(self.runs) and self.runs[-1].closed

    @property
    def alive(self) -> bool:
        """Whether a try may still come back to it."""
        return self.specified and not self.closed

    @property
    def half_removed(self) -> bool:
        """Its removal was broken off: a run begins only where there is a specification."""
        return bool(self.runs) and not self.alive


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


def may_go(job: StoredJob, now: float, keep: float) -> bool:
    """Whether all that is left of the job may be removed. ``keep``: in seconds, how long a job is kept
    once it is over."""
    if job.alive:
        return job.over + keep <= now
    if any(generation.half_removed for generation in job.generations):
        return True  # it was decided before, and is not to be read any more
    if job.generations:
        return False  # items without a specification are the sweep's business
    return job.newest + max(keep, DAY) <= now
