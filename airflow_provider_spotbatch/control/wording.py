"""Numbers in words, as logs and the command line show them."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 4
"""Machines that a line names at most: it is read by people, and ``spotbatch show`` lists them all."""


def some(count: int, noun: str) -> str:
    """``1 machine``, ``2 machines``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def machines(ids: Sequence[str]) -> str:
    """``machine a``, ``2 machines (a, b)``, ``16 machines (a, b, c, …)``."""
    if len(ids) == 1:
        return f"machine {ids[0]}"
    shown = list(ids) if len(ids) <= NAMED else [*ids[: NAMED - 1], "…"]
    return f"{some(len(ids), 'machine')} ({', '.join(shown)})"


def rate_text(per_second: float) -> str:
    """Items per second, minute or hour, whichever gives a number to read."""
    if per_second >= 1:
        return f"{some(round(per_second), 'item')}/s"
    if per_second * 60 >= 1:
        return f"{some(round(per_second * 60), 'item')}/min"
    return f"{per_second * 3600:,.1f} items/h"


def duration(seconds: float) -> str:
    """In words: seconds, then minutes, then hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
