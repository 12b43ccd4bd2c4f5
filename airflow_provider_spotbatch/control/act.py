"""Carrying out a plan: each action once, in order, none later than the plan's life.

An "already exists" where we write means that somebody else acted, or that our own retried write had
gone through: either way the rest of the plan is void and the next look tells what is true.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_spotbatch.backends.base import Fleet, Queue
from airflow_provider_spotbatch.control.decide import PLAN_SECONDS
from airflow_provider_spotbatch.control.metrics import RunMetrics
from airflow_provider_spotbatch.control.observe import Observer
from airflow_provider_spotbatch.control.plan import (
    Action,
    CloseChunk,
    CloseLaunches,
    Launch,
    Plan,
    RecordLoss,
    RecordStop,
    Send,
    Terminate,
    WriteControl,
)
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.control.threads import work_out
from airflow_provider_spotbatch.control.wording import machines
from airflow_provider_spotbatch.job.chunks import RESEND, RETRY, Batch, to_message
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.errors import QueueGone, Refusal
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.outcome import FAILURE, LOST, Failure, ItemOutcome, encode_result

FORMAT = 1


class Void(Exception):
    """The rest of the plan is void: look again."""


@dataclass
class Actor:
    """Carries out plans for one run. ``say`` takes the lines of the task's log."""

    site: Site
    run: Run
    fleet: Fleet
    observer: Observer
    say: Callable[[str], None]
    metrics: RunMetrics

    def __post_init__(self) -> None:
        self._queues: dict[int, Queue] = {}
        self._beat = int(self.site.wall_clock())  # another process's first beat differs from ours
        self._decided_at = 0.0

    async def carry_out(self, plan: Plan, decided_at: float) -> bool:
        """Do what the plan says; False if it became void half-way."""
        self._decided_at = decided_at
        for action in plan.actions:
            try:
                self._check_in_time()
                await self._do(action)
            except Void:
                return False
        return True

    async def _do(self, action: Action) -> None:
        if isinstance(action, RecordStop):
            await self._record_stop(action)
        elif isinstance(action, RecordLoss):
            await self._record_loss(action)
        elif isinstance(action, CloseChunk):
            await self._close_chunk(action)
        elif isinstance(action, Launch):
            await self._launch(action)
        elif isinstance(action, Terminate):
            await self._terminate(action)
        elif isinstance(action, Send):
            await self._send(action)
        elif isinstance(action, CloseLaunches):
            await self._create(self.run.launch(action.record.number), action.record.to_bytes())
        else:
            await self._write_control(action)

    def _check_in_time(self) -> None:
        if self.site.clock() - self._decided_at > PLAN_SECONDS:
            self.say("a plan was not carried out in time and is dropped; looking again")
            raise Void

    async def _create(self, name: str, data: bytes) -> None:
        if not await self.site.store.create(name, data):
            raise Void

    # --- stops and losses ------------------------------------------------------------------------

    async def _record_stop(self, action: RecordStop) -> None:
        self.say(action.reason)
        body = {"format": FORMAT, "stop": action.stop.__dict__, "at": self.site.wall_clock()}
        await self._create(self.run.stop, json.dumps(body).encode())

    async def _record_loss(self, action: RecordLoss) -> None:
        self.say(action.reason)
        body = {
            "format": FORMAT,
            "instance": action.instance,
            "cause": action.cause,
            "chunks": list(action.chunks),
            "at": self.site.wall_clock(),
        }
        await self._create(self.run.loss(action.instance), json.dumps(body).encode())
        self.metrics.lost(action.cause)

    async def _close_chunk(self, action: CloseChunk) -> None:
        self.say(action.reason)
        chunk, at = action.chunk, self.site.wall_clock()
        failure = Failure("Lost", action.reason)
        outcomes = [
            ItemOutcome(
                item, chunk.attempt, LOST, FAILURE, failure.to_bytes(), at, at, preview_out=failure.label
            )
            for item in chunk.items()
        ]
        signer = self.site.signer(self.run.generation)
        data = encode_result(signer, chunk.id, outcomes, {"instance": "controller"})
        # Somebody else's result is as good as ours: the first durable one stands.
        await self.site.store.create(self.run.generation.result(chunk.id), data)
        head = await self.observer.head(chunk.id)
        if head is not None:
            await self.observer.take_head(head, self.site.clock())

    # --- machines --------------------------------------------------------------------------------

    async def _launch(self, action: Launch) -> None:
        record = action.record
        self.say(action.reason)
        if action.again:
            claim = json.dumps({"format": FORMAT, "at": self.site.wall_clock()}).encode()
            await self._create(self.run.launch_again(record.number, action.asking), claim)
        else:
            await self._create(self.run.launch(record.number), record.to_bytes())
        self._check_in_time()  # from then on another may ask
        outcome = await self._ask_fleet(record)
        if not await self.site.store.create(self.run.launch_result(record.number), outcome.to_bytes()):
            raise Void
        self.metrics.launched(outcome)
        told = Counter(f"({each.kind}): {each.message} {each.remedy}".rstrip() for each in outcome.refusals)
        for refusal, times in told.items():
            how_often = f" ({times} times)" if times > 1 else ""
            self.say(f"launch {record.number} was refused {refusal}{how_often}")

    async def _ask_fleet(self, record: LaunchRecord) -> LaunchOutcome:
        left = PLAN_SECONDS - (self.site.clock() - self._decided_at)
        try:
            return await self.fleet.launch(record, within=left)
        except Refusal as refusal:
            return LaunchOutcome(refusals=(refusal,))

    async def _terminate(self, action: Terminate) -> None:
        self.say(f"{action.reason}: ending {machines(action.instances)}")
        try:
            await self.fleet.terminate(action.instances)
        except Refusal as refusal:
            self.say(
                f"ERROR: machines {', '.join(action.instances)} could not be ended and may cost money: "
                f"{refusal.message} {refusal.remedy}".rstrip()
                + " Trying again."
            )

    # --- work ------------------------------------------------------------------------------------

    def queue(self, memory_class: int) -> Queue:
        if memory_class not in self._queues:
            self._queues[memory_class] = self.site.backend.queue(self.run, memory_class)
        return self._queues[memory_class]

    async def _send(self, action: Send) -> None:
        batch = action.batch
        if batch.kind == RESEND:
            batch = await self._without_results(batch)
            if not batch.chunks:
                raise Void  # its number stays free, and those after it were to follow
        self.say(action.reason)
        body, messages = await work_out(
            len(batch.chunks), lambda: (batch.to_bytes(), [to_message(chunk) for chunk in batch.chunks])
        )
        await self._create(self.run.batch(batch.number), body)
        await self.observer.take_batch(batch, self.site.clock())
        if batch.kind == RETRY:
            self.metrics.retried(sum(chunk.count for chunk in batch.chunks))
        try:
            await self.queue(action.memory_class).send(messages)
        except QueueGone:
            raise Void from None

    async def _without_results(self, batch: Batch) -> Batch:
        """The chunks of a resend that have no result; those that have one are recorded."""
        missing = []
        for chunk in batch.chunks:
            head = await self.observer.head(chunk.id)
            if head is None:
                missing.append(chunk)
            else:
                await self.observer.take_head(head, self.site.clock())
        return replace(batch, chunks=tuple(missing))

    # --- agents ----------------------------------------------------------------------------------

    async def _write_control(self, action: WriteControl) -> None:
        self._beat += 1
        control = Control(self._beat, action.report_every, action.spend_for, action.drain)
        await self.site.store.write(self.run.control, control.to_bytes())
        self.observer.control_at = self.site.clock()
        await self.write_progress()

    async def write_progress(self) -> None:
        """Tell how far the run is: to lists, and to the process that drives it next."""
        await self.site.store.write(self.run.progress, self._progress())

    def _progress(self) -> bytes:
        counts = self.observer.ledger.counts
        body = {
            "format": FORMAT,
            "at": self.site.wall_clock(),
            "spent_usd": self.observer.spent_usd,
            "causes": dict(self.observer.ledger.causes),
            "most_memory_class": self.observer.most_memory_class,
            **counts.__dict__,
        }
        return json.dumps(body).encode()
