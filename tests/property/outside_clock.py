"""Virtual time for a program that also asks the outside world: it jumps, but never over an answer."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_spotbatch.backends.memory_clock import JumpingSelector, VirtualClock


class OutsideClock(VirtualClock):
    """While a call is :meth:`outside` time passes as it really does; what a thread does takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Around a call that something out of this event loop answers."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    def selector(self) -> JumpingSelector:
        return _PatientSelector(self)


class _PatientSelector(JumpingSelector):
    def __init__(self, clock: OutsideClock) -> None:
        super().__init__(clock)
        self._outside = clock

    def select(self, timeout: float | None = None) -> Any:
        if not self._outside.calls:
            return super().select(timeout)
        began = time.monotonic()
        ready = selectors.DefaultSelector.select(self, timeout)
        self._outside.elapsed += time.monotonic() - began
        return ready
