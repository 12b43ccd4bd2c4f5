"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PAUSE = 0.1

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float, why: Callable[[], object] = lambda: "") -> T:
    """The first true value of ``condition``; it must come within ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s: {why()}"
        time.sleep(PAUSE)
