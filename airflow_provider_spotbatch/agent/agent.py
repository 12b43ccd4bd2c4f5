"""The agent: one per instance. Leases chunks, runs them on its slots, stores and reports their results.

The order for each chunk: look whether its result exists; run; create the result, which stands if it is
the first; report the end; ack once that report is durable.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_spotbatch.agent.checkpoints import Checkpoints
from airflow_provider_spotbatch.agent.chunk_input import ChunkInputs
from airflow_provider_spotbatch.agent.endings import DRAIN, FAILED, INTERRUPTED, NOW, Ending
from airflow_provider_spotbatch.agent.folder import prepare
from airflow_provider_spotbatch.agent.gpus import gpus_of_slot
from airflow_provider_spotbatch.agent.leases import (
    REPORTING,
    RUNNING,
    STORING,
    WAITING,
    Clock,
    Held,
    Leases,
)
from airflow_provider_spotbatch.agent.limits import enforce
from airflow_provider_spotbatch.agent.logs import Logs
from airflow_provider_spotbatch.agent.reporting import Reporter
from airflow_provider_spotbatch.agent.slots import PUT_OFF, Slot, StartWorker
from airflow_provider_spotbatch.agent.watch import Watch
from airflow_provider_spotbatch.agent.worker_process import WorkerProcess
from airflow_provider_spotbatch.backends.base import Machine
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job import report as reports
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.chunks import Chunk, from_message
from airflow_provider_spotbatch.job.errors import QueueGone, SpotBatchError, StoreUnavailable
from airflow_provider_spotbatch.job.outcome import OK, ItemOutcome, encode_result
from airflow_provider_spotbatch.job.report import EndedChunk, Report
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spec import Spec
from airflow_provider_spotbatch.job.use import Use

T = TypeVar("T")

RECEIVE_SECONDS = 5.0
"""One wait for messages: how late an agent that ends may be, against how often an idle one asks."""

SHORT_CHUNK = 1.0
"""Where chunks run shorter than this, one is leased ahead for each slot: no slot waits for the queue."""

AHEAD_SECONDS = 5.0
"""A chunk leased ahead that finds no slot in this time goes back: another agent may have one free."""

LOOK_AGAIN_SECONDS = 1.0
"""A look for a chunk's result that is older is repeated before the chunk runs: its message may have come
twice, and another agent may have finished it while it waited here for a slot."""

STORING_BYTES = 128 * 1024 * 1024
"""Results that may wait in memory to be stored: beyond that nothing more is leased until some are."""

NO_QUEUE_SECONDS = 120.0
"""An agent with nothing in hand whose queue answered none of its questions for so long is of no use: its
machine has no route there, or no permission, and costs money."""

BACKOFF_SECONDS = 30.0
"""Longest pause between tries of a store or queue that does not answer."""

LAST_SECONDS = 5.0
"""What each of the last steps may take: storing finished chunks, releasing, the last report."""

log = logging.getLogger(__name__)


class MachineFailed(SpotBatchError):
    """The agent ended because its machine cannot work; its last report says so, if it could be written."""


async def run_agent(
    boot: Boot,
    machine: Machine,
    store: Store,
    *,
    clock: Callable[[], float] = time.monotonic,
    start_worker: StartWorker | None = None,
) -> None:
    """Be the agent of one instance until it ends. Raises MachineFailed where the machine is to blame.

    ``start_worker(slot number)`` stands in for worker processes; with it no environment is prepared.
    Cancelled, it ends its workers, releases its leases and reports first.
    """
    await Agent(boot, machine, store, clock, start_worker).run()


class Agent:
    """See :func:`run_agent`."""

    def __init__(
        self,
        boot: Boot,
        machine: Machine,
        store: Store,
        clock: Clock,
        start_worker: StartWorker | None = None,
    ) -> None:
        self._boot = boot
        self._run = boot.of_run
        self._machine = machine
        self._store = store
        self._clock = clock
        self._start_worker = start_worker
        self._signer = Signer(bytes.fromhex(boot.key), boot.of_generation)
        self._watch = Watch(store, boot, clock)
        self._logs = Logs(store, boot.of_generation, boot.instance)
        self._checkpoints = Checkpoints(store, self._run, self._signer, boot.instance)
        self._reporter = Reporter(store, self._run, boot.instance, self._describe, clock, self._logs.flush)
        self._queue = machine.queue(self._run, boot.memory_class)
        self._leases = Leases(
            self._queue, boot.lease, clock, self._has_result, self._leave_to_others, self._watch.look_soon
        )
        self._slots: list[Slot] = []
        self._free: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()
        self._inputs: ChunkInputs
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()
        self._ending: Ending | None = None
        self._room = asyncio.Event()
        self._state = reports.BOOTING
        self._trouble = ""
        self._queue_trouble = ""
        self._boot_log = ""
        self._handed_over: tuple[str, ...] = ()
        self._items_ok = 0
        self._items_failed = 0
        self._item_seconds = 0.0
        self._use = Use()
        self._up_since: float | None = None
        self._chunk_seconds: float | None = None
        self._idle_since = clock()
        self._empty_since: float | None = None
        self._told_empty = False

    async def run(self) -> None:
        sources: list[asyncio.Task[None]] = []
        try:
            ending = await self._begin(sources) or await self._until_ending(leasing=sources[0])
        except asyncio.CancelledError:
            await self._end(Ending(NOW, "the agent was told to end"), sources)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the last report tells it
            ending = self._failed(error)
        await self._end(ending, sources)
        if ending.how == FAILED:
            raise MachineFailed(ending.reason)

    async def _begin(self, sources: list[asyncio.Task[None]]) -> Ending | None:
        """Fetch what is to be run and start all sources, leasing first; or the reason not to."""
        ending, _ = await asyncio.gather(self._watch.look(), self._reporter.write())
        if ending is not None:
            return ending
        spec, record = await self._read_orders()
        self._inputs = ChunkInputs(self._store, self._signer, spec)
        start_worker = self._start_worker or await self._prepare_workers(spec, record)
        self._slots = [Slot(number, start_worker, self._clock) for number in range(self._boot.slots)]
        for slot in self._slots:
            self._free.put_nowait(slot)
        self._state = reports.RUNNING
        self._up_since = self._clock()
        sources += [
            asyncio.create_task(self._source(source))
            for source in (
                self._lease_chunks(),
                self._watch_run(),
                self._hear_notice(),
                self._hear_advice(),
                self._leases.keep(),
                enforce(self._slots, record.policy.item_timeout, self._boot.memory_mb),
                self._reporter.keep(lambda: self._watch.report_every),
                *(slot.warm_up() for slot in self._slots),
            )
        ]
        return None

    async def _read_orders(self) -> tuple[Spec, RunRecord]:
        spec, record = await asyncio.gather(
            self._store.read(self._run.generation.spec), self._store.read(self._run.run)
        )
        if spec is None or record is None:
            missing = self._run.generation.spec if spec is None else self._run.run
            raise SpotBatchError(f"{missing} is missing in {self._store.uri}: was the store cleaned?")
        return Spec.from_bytes(self._signer, spec), RunRecord.from_bytes(
            self._signer, self._run.number, record
        )

    async def _prepare_workers(self, spec: Spec, record: RunRecord) -> StartWorker:
        """Fetch what workers need; what starts one of them."""
        secrets = {
            variable: await self._machine.secret(reference)
            for variable, reference in spec.environment.secrets.items()
        }
        setup = await prepare(spec, self._store, Path(self._boot.folder), self._boot.python, secrets)

        gpus = record.policy.resources.gpus_of_item

        async def start(slot: int) -> WorkerProcess:
            own = replace(setup, env={**setup.env, **gpus_of_slot(slot, gpus)})
            return await WorkerProcess.start(
                own, self._boot.instance, slot, self._checkpoints, self._logs.add
            )

        return start

    # Sources: what runs beside the chunks. Each may end the agent.

    async def _source(self, work: Coroutine[Any, Any, Ending | None]) -> None:
        try:
            ending = await work
        except Exception as error:  # noqa: BLE001 - the machine, or this program, is broken: told and ended
            ending = self._failed(error)
        if ending is not None:
            self._endings.put_nowait(ending)

    async def _watch_run(self) -> Ending:
        ending = await self._watch.until(worse_than=-1)
        if ending.how == DRAIN:
            self._endings.put_nowait(ending)
            ending = await self._watch.until(worse_than=DRAIN)
        return ending

    async def _hear_notice(self) -> Ending:
        return Ending(INTERRUPTED, await self._machine.notices().wait())

    async def _hear_advice(self) -> Ending:
        return Ending(DRAIN, await self._machine.notices().wait_for_advice())

    async def _lease_chunks(self) -> Ending:
        """Lease as slots come free, until there has been nothing to do for ``idle_timeout``."""
        wait = min(RECEIVE_SECONDS, self._boot.lease / 4, self._boot.idle_timeout / 4)
        failures = 0
        silent_since = self._idle_since = self._clock()  # fetching the environment was not idle
        while True:
            self._room.clear()
            wanted = self._wanted()
            if wanted <= 0:
                await self._room.wait()
                continue
            asked = self._clock()
            try:
                leases = await self._queue.receive(wanted, wait)
            except QueueGone:
                return Ending(DRAIN, "its queue is gone: the run is over")
            except SpotBatchError as error:
                if not failures:
                    silent_since = asked
                failures += 1
                log.warning("no chunk can be leased: %s", error)
                self._note_queue_trouble(f"no chunk can be leased: {error}")
                if not self._leases.all and self._clock() - silent_since > NO_QUEUE_SECONDS:
                    return self._failed(error)
                await asyncio.sleep(_pause(failures))
                self._idle_since = self._clock()  # nor was it idle while it could not ask
                continue
            failures = 0
            self._note_queue_trouble("")
            for lease in leases:
                held = self._leases.take(from_message(lease.body), lease, asked)
                if held is not None:
                    held.task = asyncio.create_task(self._chunk(held))
            if self._idle(bool(leases)):
                return Ending(DRAIN, f"nothing to do for {self._boot.idle_timeout:.0f} s")

    def _note_queue_trouble(self, trouble: str) -> None:
        if bool(trouble) != bool(self._queue_trouble):
            self._reporter.urge()
        self._queue_trouble = trouble

    def _wanted(self) -> int:
        """How many chunks to lease now."""
        if sum(held.size for held in self._leases.all if held.phase == STORING) > STORING_BYTES:
            return 0
        short = self._chunk_seconds is not None and self._chunk_seconds < SHORT_CHUNK
        room = len(self._slots) * (2 if short else 1)
        return room - sum(held.phase in (WAITING, RUNNING) for held in self._leases.all)

    def _idle(self, received: bool) -> bool:
        """Note whether the queue was seen empty; whether this agent was idle for too long."""
        now = self._clock()
        if received:
            self._empty_since, self._told_empty = None, False
        elif self._free.qsize():
            self._empty_since = self._empty_since or now
            if not self._told_empty and now - self._empty_since >= self._boot.lease:
                self._told_empty = True
                self._reporter.urge()
        return not self._leases.all and now - self._idle_since >= self._boot.idle_timeout

    # One chunk.

    async def _chunk(self, held: Held) -> None:
        """All that is done with a leased chunk, from the first look at its result to the ack."""
        try:
            ended = await self._finish_chunk(held)
            if ended is None:
                self._leases.drop(held)
                return
            held.phase = REPORTING
            durable = self._reporter.ended(ended)
            self._note_room()
            await durable
            await self._leases.ack(held)
            self._leases.drop(held)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - no item's own failure comes here
            self._endings.put_nowait(self._failed(error))
        finally:
            self._note_room()

    async def _finish_chunk(self, held: Held) -> EndedChunk | None:
        """See to it that the chunk's result is durable. None: it was given back, or left to others."""
        chunk = held.chunk
        found = EndedChunk(str(chunk.id), 0, 0, 0.0, 0, found=True)
        looked = self._clock()
        if await self._patiently(held, lambda: self._has_result(chunk)):
            return found
        items = await self._patiently(held, lambda: self._inputs.read(chunk))
        if items is None:
            return None
        slot = await self._take_slot()
        if slot is None:
            # What runs is no short chunk: else this one would be leased ahead again at once, time after
            # time, and never reach an agent that has a slot free.
            self._note_duration(AHEAD_SECONDS)
            await self._leases.release(held)
            return None
        started = self._clock()
        try:
            old = held.may_have_lapsed(started) or started - looked > LOOK_AGAIN_SECONDS
            if old and (there := await self._patiently(held, lambda: self._has_result(chunk))) is not False:
                return found if there else None
            held.phase = RUNNING
            outcomes = await slot.run(chunk, items)
        finally:
            self._free.put_nowait(slot)
            self._room.set()
        took = self._clock() - started
        self._note_duration(took)
        held.phase, held.size = STORING, sum(len(outcome.value) for outcome in outcomes)
        data, use = await asyncio.to_thread(self._result_of, chunk, slot, outcomes, took)
        causes = Counter(outcome.cause for outcome in outcomes)
        seconds = sum(outcome.end - outcome.start for outcome in outcomes)
        del outcomes  # large ones are not kept twice while they are stored
        created = await self._patiently(held, lambda: self._create_result(held, data), lease_or_not=True)
        if not created:
            return found
        self._use.merge(use)
        return self._counted(chunk, causes, seconds, len(data))

    def _result_of(
        self, chunk: Chunk, slot: Slot, outcomes: list[ItemOutcome], took: float
    ) -> tuple[bytes, Use]:
        """The result object of a chunk that had its slot for ``took`` seconds, and what its items used."""
        data = encode_result(self._signer, chunk.id, outcomes, self._machine_facts(slot))
        return data, Use.of_chunk(outcomes, took, self._boot.memory_mb)

    async def _create_result(self, held: Held, data: bytes) -> bool:
        if held.may_have_lapsed(self._clock()) and await self._has_result(held.chunk):
            return False
        return await self._store.create(self._run.generation.result(held.chunk.id), data)

    async def _patiently(
        self, held: Held, ask: Callable[[], Awaitable[T]], *, lease_or_not: bool = False
    ) -> T | None:
        """Ask the store, again and again while the lease is ours. None: it did not answer in that time.

        ``lease_or_not``: for as long as the agent lives. Work that was done is worth the wait, and a
        result that another agent stored meanwhile is found.
        """
        failures = 0
        while True:
            try:
                answer = await ask()
            except StoreUnavailable as error:
                failures += 1
                self._trouble = str(error)
                log.warning("chunk %s waits: %s", held.chunk.id, error)
                if not lease_or_not and held.may_have_lapsed(self._clock()):
                    return None
                await asyncio.sleep(_pause(failures))
            else:
                self._trouble = ""
                return answer

    async def _take_slot(self) -> Slot | None:
        try:
            return await asyncio.wait_for(self._free.get(), AHEAD_SECONDS)
        except asyncio.TimeoutError:
            return None

    async def _has_result(self, chunk: Chunk) -> bool:
        return await self._store.exists(self._run.generation.result(chunk.id))

    def _leave_to_others(self, held: Held) -> None:
        """Another agent has finished it: what is still run here is for nothing."""
        if held.phase in (WAITING, RUNNING) and held.task is not None:
            log.warning("chunk %s was finished by another agent: its run here ends", held.chunk.id)
            held.task.cancel()
            self._leases.drop(held)
            self._note_room()

    def _counted(self, chunk: Chunk, causes: Counter[str], seconds: float, size: int) -> EndedChunk:
        ran = chunk.count - causes[PUT_OFF]
        self._items_ok += causes[OK]
        self._items_failed += ran - causes[OK]
        self._item_seconds += seconds
        return EndedChunk(str(chunk.id), ran, chunk.count - causes[OK], seconds, size)

    def _note_duration(self, seconds: float) -> None:
        before = seconds if self._chunk_seconds is None else self._chunk_seconds
        self._chunk_seconds = 0.7 * before + 0.3 * seconds

    def _note_room(self) -> None:
        self._room.set()
        if not self._leases.unfinished:
            self._idle_since = self._clock()
            self._reporter.urge()

    # The end.

    async def _until_ending(self, leasing: asyncio.Task[None]) -> Ending:
        """Work until an ending, and then for as long as that ending leaves time."""
        self._ending = await self._endings.get()
        noticed = self._clock()
        await _cancel([leasing])
        while True:
            ending = self._ending
            log.info("ending: %s", ending.reason)
            self._state = reports.DRAINING
            if ending.how >= NOW:
                return ending
            for held in self._leases.all:
                if held.phase == WAITING and held.task is not None:
                    held.task.cancel()
            seconds = None
            if ending.how == INTERRUPTED:
                for slot in self._slots:
                    slot.interrupt()
                seconds = noticed + self._run_on_seconds() - self._clock()
            self._reporter.urge()
            worse = await self._next_ending(ending.how, seconds)
            if worse is None:
                return ending
            if worse.how == INTERRUPTED:
                noticed = self._clock()
            self._ending = worse

    async def _next_ending(self, worse_than: int, seconds: float | None) -> Ending | None:
        """A more urgent ending; None once every chunk is finished, or ``seconds`` are over."""
        deadline = None if seconds is None else self._clock() + seconds
        while chunks := {held.task for held in self._leases.unfinished if held.task and not held.task.done()}:
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return None
            ending = asyncio.create_task(self._endings.get())
            room = asyncio.create_task(self._room.wait())
            self._room.clear()
            try:
                await asyncio.wait({ending, room, *chunks}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if ending.done() and ending.result().how > worse_than:
                    return ending.result()
            finally:
                ending.cancel()
                room.cancel()
        return None

    def _run_on_seconds(self) -> float:
        """How long chunks run on after a notice; the rest of the grace is for the last steps."""
        return max(self._boot.grace - LAST_SECONDS, self._boot.grace / 2)

    async def _end(self, ending: Ending, sources: list[asyncio.Task[None]]) -> None:
        """End what runs, store what is finished, give back the rest, report."""
        self._ending = ending
        self._state = reports.DRAINING
        await _cancel([held.task for held in self._leases.unfinished if held.task and held.phase != STORING])
        storing = {held.task for held in self._leases.unfinished if held.task and held.phase == STORING}
        if storing:
            await asyncio.wait(storing, timeout=LAST_SECONDS)
        await asyncio.gather(*(slot.end() for slot in self._slots))
        unfinished = self._leases.unfinished
        await _cancel([held.task for held in unfinished if held.task])
        await _cancel(sources)
        await asyncio.gather(*(self._leases.release(held) for held in unfinished), self._flush_logs())
        self._handed_over = tuple(str(held.chunk.id) for held in unfinished)
        for held in unfinished:
            self._leases.drop(held)
        await self._last_words()

    async def _flush_logs(self) -> None:
        try:
            await asyncio.wait_for(self._logs.flush(), LAST_SECONDS)
        except asyncio.TimeoutError:
            log.error("the last output of items cannot be stored")

    async def _last_words(self) -> None:
        """The last report, and the acks that wait for it. A silent store is not waited for."""
        self._state = reports.ENDED
        try:
            await asyncio.wait_for(self._reporter.write(), LAST_SECONDS)
        except (StoreUnavailable, asyncio.TimeoutError) as error:
            log.error("the last report cannot be written: %s", error)
        acks = {held.task for held in self._leases.all if held.task}
        if acks:
            await asyncio.wait(acks, timeout=LAST_SECONDS)
            await _cancel(list(acks))

    def _failed(self, error: Exception) -> Ending:
        log.error("the agent fails", exc_info=error)
        self._boot_log = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-8192:]
        return Ending(FAILED, str(error) or type(error).__name__)

    # What reports and results say of this machine.

    def _describe(self) -> Report:
        running = [now for slot in self._slots if (now := slot.running) is not None]
        running.sort(key=lambda now: -now.seconds)
        in_hand = self._handed_over or tuple(str(held.chunk.id) for held in self._leases.unfinished)
        empty = None if self._empty_since is None else self._clock() - self._empty_since
        return Report(
            instance=self._boot.instance,
            launch=self._boot.launch,
            memory_class=self._boot.memory_class,
            slots=self._boot.slots,
            sequence=0,
            state=self._state,
            reason=self._ending.reason if self._ending is not None else self._trouble or self._queue_trouble,
            interrupted=self._ending is not None and self._ending.how == INTERRUPTED,
            held=in_hand,
            running=tuple(running[: reports.SHOWN_ITEMS]),
            empty_seconds=empty,
            items_ok=self._items_ok,
            items_failed=self._items_failed,
            item_seconds=self._item_seconds,
            boot_log=self._boot_log,
            use=self._use.to_json(),
            up_seconds=0.0 if self._up_since is None else round(self._clock() - self._up_since, 3),
            worked_seconds=round(sum(slot.worked_seconds for slot in self._slots), 3),
            broken_seconds=round(sum(slot.broken_seconds for slot in self._slots), 3),
        )

    def _machine_facts(self, slot: Slot) -> dict[str, Any]:
        return {
            "instance": self._boot.instance,
            "launch": self._boot.launch,
            "memory_class": self._boot.memory_class,
            "slot": slot.number,
            "host": platform.node(),
        }


def _pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row: exponential, with jitter."""
    return random.uniform(0.5, 1.0) * min(BACKOFF_SECONDS, 0.5 * 2.0 ** min(failures, 10))


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and return once they have ended.

    Again and again: ``wait_for`` swallows a cancellation that meets what it waited for.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
