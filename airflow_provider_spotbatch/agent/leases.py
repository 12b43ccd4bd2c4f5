"""Chunks in hand: their leases, kept alive, and what is to be thought of a lease that may have lapsed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.base import Lease, Queue
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.errors import LeaseLost, QueueGone, SpotBatchError

LONGEST_LEASE = 11 * 3600.0
"""A queue may refuse to hold a message longer than 12 h (SQS): then it is acked, and our report holds it."""

log = logging.getLogger(__name__)

Clock = Callable[[], float]

WAITING = "waiting"
RUNNING = "running"
STORING = "storing"
REPORTING = "reporting"


@dataclass(eq=False)
class Held:
    """A chunk in hand. ``safe_until``: the lease was surely ours before this time of our clock.

    ``phase``: waiting for a slot, running on one, its result (of ``size`` bytes) being stored, or (its
    result durable) waiting for the report that says so.
    """

    chunk: Chunk
    lease: Lease
    since: float
    safe_until: float
    extended: float
    lost: bool = False
    acked: bool = False
    phase: str = WAITING
    size: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def may_have_lapsed(self, now: float) -> bool:
        return not self.acked and (self.lost or now >= self.safe_until)


class Leases:
    """All chunks in hand. ``superseded(held)`` is told of one that another agent has finished."""

    def __init__(
        self,
        queue: Queue,
        lease_seconds: float,
        clock: Clock,
        has_result: Callable[[Chunk], Awaitable[bool]],
        superseded: Callable[[Held], None],
        woke_up: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._seconds = lease_seconds
        self._clock = clock
        self._has_result = has_result
        self._superseded = superseded
        self._woke_up = woke_up
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def all(self) -> list[Held]:
        return list(self._held.values())

    @property
    def unfinished(self) -> list[Held]:
        """Those whose result is not durable."""
        return [held for held in self._held.values() if held.phase != REPORTING]

    def take(self, chunk: Chunk, lease: Lease, leased_at: float) -> Held | None:
        """A new chunk in hand; None if it is in hand already: then this is its newer lease."""
        known = self._held.get(str(chunk.id))
        until = leased_at + self._seconds
        if known is not None:
            known.lease, known.safe_until, known.extended, known.lost = lease, until, leased_at, False
            return None
        held = Held(chunk, lease, since=leased_at, safe_until=until, extended=leased_at)
        self._held[str(chunk.id)] = held
        return held

    def drop(self, held: Held) -> None:
        """No longer in hand; what becomes of the message is the caller's choice."""
        self._held.pop(str(held.chunk.id), None)

    async def ack(self, held: Held) -> None:
        if not held.acked:
            held.acked = True
            await self._tolerantly(self._queue.ack(held.lease), "acked", held)

    async def release(self, held: Held) -> None:
        if not held.acked:
            await self._tolerantly(self._queue.release(held.lease), "released", held)

    async def keep(self) -> None:
        """Extend leases at a third of their time, until cancelled; notice when this process was frozen."""
        pause = min(1.0, self._seconds / 6)
        while True:
            before = self._clock()
            await asyncio.sleep(pause)
            now = self._clock()
            if now - before > self._seconds:
                log.warning("this process stood still for %.0f s", now - before)
                self._woke_up()
            due = [held for held in self._held.values() if now - held.extended >= self._seconds / 3]
            await asyncio.gather(*(self._extend(held) for held in due if not held.acked))

    async def _extend(self, held: Held) -> None:
        now = self._clock()
        held.extended = now
        if now - held.since > LONGEST_LEASE:
            await self.ack(held)
            return
        try:
            await asyncio.wait_for(self._queue.extend(held.lease), self._seconds / 3)
        except LeaseLost:
            held.lost = True
            await self._look_again(held)
        except (SpotBatchError, asyncio.TimeoutError) as error:
            log.warning("the lease of chunk %s could not be extended: %s", held.chunk.id, error)
        else:
            held.safe_until = now + self._seconds

    async def _look_again(self, held: Held) -> None:
        """Another agent may have the chunk now. It is left to it only once its result is there."""
        try:
            if await self._has_result(held.chunk):
                self._superseded(held)
        except SpotBatchError as error:
            log.warning("chunk %s, whose lease was lost, cannot be looked at: %s", held.chunk.id, error)

    async def _tolerantly(self, asked: Awaitable[None], verb: str, held: Held) -> None:
        """The message comes back if this fails, and its result is found then."""
        try:
            await asyncio.wait_for(asked, self._seconds / 3)
        except QueueGone:
            return
        except (SpotBatchError, asyncio.TimeoutError) as error:
            log.warning("chunk %s could not be %s: %s", held.chunk.id, verb, error)
