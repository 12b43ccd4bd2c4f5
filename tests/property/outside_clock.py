"""Virtual time for a program that also asks the outside world: it jumps, but never over an answer."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_provider_spotbatch.backends.memory_clock import VirtualClock

T = TypeVar("T")


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

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        loop = _Loop(self)
        try:
            return loop.run_until_complete(main)
        finally:
            loop.run_until_complete(_end_all())
            loop.close()


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: OutsideClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if self._clock.calls:
            began = time.monotonic()
            ready = super().select(timeout)
            self._clock.elapsed += time.monotonic() - began
            return ready
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that nothing will bring about"
            self._clock.elapsed += max(0.0, timeout)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: OutsideClock) -> None:
        self._its_clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._its_clock.elapsed

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once and here: the order of events stays the program's own."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # whatever it is, it belongs to whoever awaits
            done.set_exception(error)
        return done


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
