"""Slots: room for one item at a time each, held by a worker that is replaced when it dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_spotbatch.agent.chunk_input import ItemInput
from airflow_provider_spotbatch.agent.worker_process import (
    Death,
    LoadFailure,
    RunningNow,
    WorkerProcess,
    WorkerUnstartable,
)
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.outcome import (
    CRASH,
    FAILURE,
    INTERRUPTED,
    MEMORY,
    OK,
    TIMEOUT,
    Failure,
    ItemOutcome,
)
from airflow_provider_spotbatch.job.report import RunningItem

DEATHS_BETWEEN_ITEMS = 3
"""A worker that dies outside any item is replaced; so many times in one chunk, and the machine is ill."""

CHUNK_RESULT_BYTES = 64 * 1024 * 1024
"""Results of one chunk that are kept in memory until all its items have run. Chunks are cut for half as
much, by what earlier results measured; where later ones are larger, the rest of the chunk is put off."""

PUT_OFF = INTERRUPTED
"""The cause that the result of a chunk gives for items that were put off: it spends no retry."""

StartWorker = Callable[[int], Coroutine[Any, Any, WorkerProcess]]


class Slot:
    """Runs chunks, one at a time. ``start_worker(slot number)`` makes its worker; ``clock`` in seconds."""

    def __init__(
        self, number: int, start_worker: StartWorker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.number = number
        self.chunk: Chunk | None = None
        self.peaks: dict[int, float] = {}
        self._start_worker = start_worker
        self._clock = clock
        self.worked_seconds = 0.0
        self._broken_seconds = 0.0
        self._began = 0.0
        self._interrupted = False
        self._kept_bytes = 0
        self._start: asyncio.Task[WorkerProcess] | None = None

    async def run(self, chunk: Chunk, items: Sequence[ItemInput]) -> list[ItemOutcome]:
        """The outcome of every item, in order. A death costs only the item it happened in; items are put
        off (``PUT_OFF``) once the results before them fill ``CHUNK_RESULT_BYTES``.

        Cancelled, it ends the worker and all it started before it returns.
        Raises WorkerUnstartable where the machine cannot run any item.
        """
        self.chunk, self.peaks, self._kept_bytes = chunk, {}, 0
        self._began = self._clock()
        outcomes = None
        try:
            outcomes = await self._run_all(chunk, items)
            return outcomes
        except asyncio.CancelledError:
            await self.end()
            raise
        finally:
            self.chunk = None
            self._count_time(to_its_end=outcomes is not None)

    @property
    def broken_seconds(self) -> float:
        """Time with chunks that were broken off, and with the one in hand: nothing came of it yet."""
        return self._broken_seconds + (0.0 if self.chunk is None else self._clock() - self._began)

    async def warm_up(self) -> None:
        """Have a worker ready before the first item is there."""
        await self._ready_worker()

    def interrupt(self) -> None:
        """Tell the running item, and those to come."""
        self._interrupted = True
        if self.worker is not None:
            self.worker.interrupt()

    async def end(self) -> None:
        """End the worker, whether it runs or is being started, and all it started."""
        start, self._start = self._start, None
        if start is None:
            return
        if start.done() and not start.cancelled() and start.exception() is None:
            await start.result().end()
        else:
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)

    @property
    def worker(self) -> WorkerProcess | None:
        """The worker, once it is up."""
        start = self._start
        up = start is not None and start.done() and not start.cancelled() and start.exception() is None
        return start.result() if start is not None and up else None

    @property
    def running(self) -> RunningItem | None:
        now = self.worker.running if self.worker is not None else None
        if now is None or self.chunk is None:
            return None
        return RunningItem(now.item, self.chunk.attempt, str(self.chunk.id), now.seconds)

    def _count_time(self, *, to_its_end: bool) -> None:
        seconds = self._clock() - self._began
        if to_its_end:
            self.worked_seconds += seconds
        else:
            self._broken_seconds += seconds

    async def _run_all(self, chunk: Chunk, items: Sequence[ItemInput]) -> list[ItemOutcome]:
        outcomes: list[ItemOutcome] = []
        deaths_between = 0
        while len(outcomes) < len(items):
            left = items[len(outcomes) :]
            if self._kept_bytes > CHUNK_RESULT_BYTES:
                outcomes += [_put_off(item.index, chunk.attempt) for item in left]
                break
            worker = await self._ready_worker()
            if worker.load_failure is not None:
                outcomes += [_unloaded(item.index, chunk.attempt, worker.load_failure) for item in left]
                break
            part: list[ItemOutcome] = []
            death = await worker.run(left, chunk.attempt, self._collect(worker, part, chunk.attempt))
            self._add_tails(part, worker)
            outcomes += part
            if death is None:
                continue
            now = worker.running
            if now is not None and now.item == left[len(part)].index and death.item in (None, now.item):
                outcomes.append(self._died(now, chunk.attempt, death))
            else:
                deaths_between += 1
            if deaths_between == DEATHS_BETWEEN_ITEMS:
                raise WorkerUnstartable(f"workers keep dying between items: {death.message}")
        return outcomes

    async def _ready_worker(self) -> WorkerProcess:
        if self.worker is not None and not self.worker.alive:
            await self.end()
        if self._start is None:
            self._start = asyncio.create_task(self._start_worker(self.number))
        worker = await asyncio.shield(self._start)
        if self._interrupted:
            worker.interrupt()
        return worker

    def _collect(
        self, worker: WorkerProcess, part: list[ItemOutcome], attempt: int
    ) -> Callable[[dict[str, Any], bytes], None]:
        def on_result(header: dict[str, Any], body: bytes) -> None:
            self._kept_bytes += len(body)
            if self._kept_bytes > CHUNK_RESULT_BYTES:
                worker.enough()
            item = header["item"]
            peak = max(header["peak"] or 0.0, self.peaks.pop(item, 0.0))
            part.append(
                ItemOutcome(
                    item,
                    attempt,
                    header["cause"],
                    header["kind"],
                    body,
                    header["start"],
                    header["end"],
                    round(peak, 1) if peak else None,
                    header["cpu"],
                    header["in"],
                    header["out"],
                )
            )

        return on_result

    def _add_tails(self, part: list[ItemOutcome], worker: WorkerProcess) -> None:
        """Failures show the last lines of their items' output, which came by another pipe."""
        for position, outcome in enumerate(part):
            if outcome.cause != OK:
                failure = Failure(**json.loads(outcome.value), output_tail=worker.output.tail(outcome.item))
                part[position] = replace(outcome, value=failure.to_bytes(), preview_out=failure.label)

    def _died(self, now: RunningNow, attempt: int, death: Death) -> ItemOutcome:
        failure = Failure(_TYPES[death.cause], death.message, output_tail=death.output)
        end = time.time()
        return ItemOutcome(
            now.item,
            attempt,
            death.cause,
            FAILURE,
            failure.to_bytes(),
            end - now.seconds,
            end,
            self.peaks.pop(now.item, None),
            preview_out=failure.label,
        )


def _unloaded(item: int, attempt: int, load: LoadFailure) -> ItemOutcome:
    now = time.time()
    value = load.failure.to_bytes()
    return ItemOutcome(item, attempt, load.cause, FAILURE, value, now, now, preview_out=load.failure.label)


def _put_off(item: int, attempt: int) -> ItemOutcome:
    """An item that was not run: the results before it are stored first."""
    now = time.time()
    failure = Failure("PutOff", "the results of the chunk grew too large: the item goes on in another one")
    return ItemOutcome(
        item, attempt, PUT_OFF, FAILURE, failure.to_bytes(), now, now, preview_out=failure.label
    )


_TYPES = {CRASH: "WorkerCrashed", TIMEOUT: "ItemTimeout", MEMORY: "OutOfMemory"}
"""What failures are called that are no exceptions."""
