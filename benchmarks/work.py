"""What the measured jobs run on each item."""

from __future__ import annotations

import time


def nothing(item: int) -> int:
    return item


def when(item: int) -> float:
    """The time at which the item ran, seconds since the epoch."""
    return time.time()


def three_seconds(item: int) -> int:
    time.sleep(3.0)
    return item
