"""Why an agent ends, and how quickly."""

from __future__ import annotations

from dataclasses import dataclass

DRAIN = 0
"""Lease nothing more, finish what runs."""

INTERRUPTED = 1
"""The platform takes the machine back: finish what can be finished in its grace."""

NOW = 2
"""End what runs."""

FAILED = 3
"""End what runs: this machine cannot work."""


@dataclass(frozen=True)
class Ending:
    """``how`` is one of the above, the more urgent the higher."""

    how: int
    reason: str
