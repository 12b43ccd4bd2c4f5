"""Reports: what the agent says of itself, and the chunks it tells as ended until they are sealed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from airflow_provider_spotbatch.agent.waiting import wait_at_most
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import StoreUnavailable
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.report import SEAL_AFTER, EndedChunk, Report, seal_to_bytes

SHORTEST_PAUSE = 0.2
"""Between two reports, however much happens: they are hints, and each is a request."""

log = logging.getLogger(__name__)


class Reporter:
    """``describe()`` gives the report as of now, without sequence, ended chunks and seals."""

    def __init__(
        self,
        store: Store,
        run: Run,
        instance: str,
        describe: Callable[[], Report],
        clock: Callable[[], float],
        before_each: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._run = run
        self._instance = instance
        self._describe = describe
        self._clock = clock
        self._before_each = before_each
        self._sequence = 0
        self._sealed = 0
        self._ended: list[EndedChunk] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._urged = asyncio.Event()
        self._writing = asyncio.Lock()

    def ended(self, chunk: EndedChunk) -> asyncio.Future[None]:
        """Tell a chunk as ended; done once the report that says so is durable."""
        self._ended.append(chunk)
        durable = asyncio.get_running_loop().create_future()
        self._waiting.append(durable)
        return durable

    def urge(self) -> None:
        """Something is worth telling at once."""
        self._urged.set()

    async def keep(self, report_every: Callable[[], float]) -> None:
        """Report until cancelled."""
        while True:
            started = self._clock()
            self._urged.clear()
            await self._before_each()
            try:
                await self.write()
            except StoreUnavailable as error:
                log.warning("no report can be written: %s", error)
            await asyncio.sleep(max(SHORTEST_PAUSE - (self._clock() - started), 0))
            await wait_at_most(self._urged, started + report_every() - self._clock())

    async def write(self) -> None:
        """Write a report now. Raises StoreUnavailable; nothing is lost then, the next one tells all."""
        async with self._writing:
            if len(self._ended) > SEAL_AFTER:
                await self._seal()
            waiting, self._waiting = self._waiting, []
            report = replace(
                self._describe(),
                sequence=self._sequence + 1,
                ended=tuple(self._ended),
                sealed=self._sealed,
            )
            try:
                await self._store.write(self._run.report(self._instance), report.to_bytes())
            except BaseException:
                self._waiting[:0] = waiting
                raise
            self._sequence += 1
        for durable in waiting:
            if not durable.done():
                durable.set_result(None)

    async def _seal(self) -> None:
        """Move the ended chunks into an object of their own; seals count from 1.

        Nobody reads it before a report counts it, so a write that failed is simply written anew.
        """
        count = len(self._ended)
        name = self._run.seal(self._instance, self._sealed + 1)
        await self._store.write(name, seal_to_bytes(tuple(self._ended)))
        self._sealed += 1
        del self._ended[:count]
