"""What the controller tells agents: cancelled, stopped, done, given up for lost, drain, spend no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from airflow_provider_spotbatch.agent.endings import DRAIN, NOW, Ending
from airflow_provider_spotbatch.agent.waiting import wait_at_most
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.errors import StoreUnavailable

LOOK_SECONDS = 10.0
"""Longest pause between two looks: an agent of a cancelled run ends within it."""

log = logging.getLogger(__name__)


class Watch:
    """Looks at the run's control objects, and at the machine's own time limits. Times of ``clock``."""

    def __init__(self, store: Store, boot: Boot, clock: Callable[[], float]) -> None:
        self.report_every = 1.0
        self._store = store
        self._boot = boot
        self._run = boot.of_run
        self._clock = clock
        self._born = self._seen = clock()
        self._stored: bytes | None = None
        self._spend_until: float | None = None
        self._drain = False
        self._wake = asyncio.Event()

    def look_soon(self) -> None:
        self._wake.set()

    async def until(self, worse_than: int) -> Ending:
        """Return the first ending that is more urgent than ``worse_than``."""
        while True:
            ending = await self.look()
            if ending is not None and ending.how > worse_than:
                return ending
            self._wake.clear()
            pause = min(LOOK_SECONDS, 2 * self.report_every, max(0.05, self._time_left()))
            await wait_at_most(self._wake, pause)

    async def look(self) -> Ending | None:
        """The most urgent ending there is, if any. A store that is silent tells nothing."""
        run = self._run
        try:
            cancelled, done, lost, stopped, control = await asyncio.gather(
                self._store.exists(run.cancel),
                self._store.exists(run.outcome),
                self._store.exists(run.loss(self._boot.instance)),
                self._store.exists(run.stop),
                self._store.read(run.control),
            )
        except StoreUnavailable as error:
            log.warning("the run's state cannot be looked at: %s", error)
            return self._own_limits()
        self._take(control)
        if cancelled:
            return Ending(NOW, "the run was cancelled")
        if done:
            return Ending(NOW, "the run is over")
        if lost:
            return Ending(NOW, "the controller has given this machine up for lost")
        return self._own_limits() or self._wishes(stopped)

    def _wishes(self, stopped: bool) -> Ending | None:
        if stopped:
            return Ending(DRAIN, "the run was stopped")
        if self._drain:
            return Ending(DRAIN, "the controller needs this machine no longer")
        return None

    def _own_limits(self) -> Ending | None:
        now = self._clock()
        if now - self._born >= self._boot.lifetime:
            return Ending(NOW, f"the machine's lifetime of {self._boot.lifetime:.0f} s is over")
        if self._spend_until is not None and now >= self._spend_until:
            return Ending(NOW, "the budget is spent, as far as the controller last said")
        if now - self._seen >= self._boot.orphan_after:
            return Ending(NOW, f"no controller was seen for {self._boot.orphan_after:.0f} s")
        return None

    def _time_left(self) -> float:
        """Seconds until one of the machine's own limits."""
        ends = [self._born + self._boot.lifetime, self._seen + self._boot.orphan_after]
        if self._spend_until is not None:
            ends.append(self._spend_until)
        return min(ends) - self._clock()

    def _take(self, stored: bytes | None) -> None:
        if stored is None or stored == self._stored:
            return
        control = Control.from_bytes(stored)
        now = self._clock()
        self._stored = stored
        self._seen = now
        self._drain = control.drain
        self.report_every = control.report_every
        self._spend_until = None if control.spend_for is None else now + control.spend_for
