"""Clocks for the memory backend: the real one, and one that is as fast as the work allows."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Where the memory backend has its time from. Seconds; ``now`` never goes back."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Time as it passes; ``now`` is seconds since the epoch."""

    def __init__(self) -> None:
        self._started = time.time() - time.monotonic()

    def now(self) -> float:
        return self._started + time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """Time that jumps to the next thing to do, so that a simulated day takes as long as its work.

    ``run`` plays the part of ``asyncio.run``: inside it all of asyncio (sleep, wait_for …) goes by
    this clock, threads do their work at once in place, and the same program runs the same way each
    time. Nothing inside may wait for the outside world: no sockets, processes or object stores.
    """

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self._start = start
        # Counted apart: the event loop tells times apart by a nanosecond, finer than a float of a date.
        self.elapsed = 0.0

    def now(self) -> float:
        return self._start + self.elapsed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` to its end. Raises RuntimeError when all its tasks wait for nothing to come."""
        loop = _VirtualLoop(self, self.selector())
        try:
            return loop.run_until_complete(main)
        finally:
            _cancel_all(loop)
            loop.close()

    def selector(self) -> JumpingSelector:
        """Where its event loop waits."""
        return JumpingSelector(self)


class JumpingSelector(selectors.DefaultSelector):
    """Where an event loop would wait, the clock jumps."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits for something that nothing will bring about")
            self._clock.elapsed += max(0.0, timeout)
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock, selector: JumpingSelector) -> None:
        self._virtual = clock
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual.elapsed

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once and here: the order of events stays the program's own."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever awaits
            done.set_exception(error)
        return done


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
