"""The simulated cloud's queues."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_spotbatch.backends.base import Lease
from airflow_provider_spotbatch.job.errors import LeaseLost, QueueGone

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.memory import MemoryCloud


@dataclass
class _Message:
    body: str
    deliveries: int = 0
    held_until: float = 0.0


@dataclass
class Messages:
    """What one queue holds, in the cloud, and who waits for it to change."""

    numbered: dict[int, _Message] = field(default_factory=dict)
    sent: int = 0
    deleted: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def changed(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


async def _pass() -> None:
    return None


class MemoryQueue:
    """One user's view of a queue. See :class:`~airflow_provider_spotbatch.backends.base.Queue`.

    ``gate`` is awaited before each call: a frozen machine stands there.
    """

    def __init__(
        self, cloud: MemoryCloud, name: str, lease: float, gate: Callable[[], Awaitable[None]] = _pass
    ) -> None:
        self.name = name
        self.lease = lease
        self._cloud = cloud
        self._gate = gate

    async def send(self, bodies: Sequence[str]) -> None:
        await self._request()
        self._check_not_deleted()
        cut = None
        if self._cloud.happens("fail_send"):
            cut = self._cloud.random.randint(0, len(bodies))
        for body in bodies[:cut]:
            self._add(body)
        self._messages.changed()
        await self._cloud.travel()
        if cut is not None:
            raise ConnectionError(f"simulated fault: sending to {self.name} broke off")

    async def receive(self, most: int, wait: float) -> list[Lease]:
        deadline = self._cloud.clock.now() + wait
        while True:
            await self._request()
            self._check_not_deleted()
            leases = self._take(most)
            if leases:
                await self._hand_over(leases)
                return leases
            left = deadline - self._cloud.clock.now()
            if left <= 0:
                return []
            await self._change_within(min(left, self._until_a_lease_lapses()))

    async def extend(self, lease: Lease) -> None:
        await self._request()
        message = self._held(lease)
        now = self._cloud.clock.now()
        if message is None or message.held_until <= now:
            raise LeaseLost(f"the lease {lease.receipt} of the queue {self.name} has lapsed")
        message.held_until = now + self.lease
        await self._cloud.travel()

    async def release(self, lease: Lease) -> None:
        await self._request()
        self._free(lease)
        await self._cloud.travel()

    async def ack(self, lease: Lease) -> None:
        await self._request()
        message = self._held(lease)
        if message is not None and message.held_until:
            del self._messages.numbered[_number(lease)]
        await self._cloud.travel()

    async def delete(self) -> None:
        await self._request()
        self._messages.deleted = True
        self._messages.numbered.clear()
        self._messages.changed()
        await self._cloud.travel()

    @property
    def _messages(self) -> Messages:
        return self._cloud.queues.setdefault(self.name, Messages())

    async def _request(self) -> None:
        await self._gate()
        await self._cloud.travel()

    async def _hand_over(self, leases: list[Lease]) -> None:
        """The answer's way; a caller that is gone when it comes gives the messages back."""
        try:
            await self._cloud.travel()
        except asyncio.CancelledError:
            for lease in leases:
                self._free(lease)
            raise

    def _check_not_deleted(self) -> None:
        if self._messages.deleted:
            raise QueueGone(f"the queue {self.name} was deleted: its run is over")

    def _add(self, body: str) -> None:
        if self._cloud.happens("lose_message"):
            return
        for _ in range(2 if self._cloud.happens("double_message") else 1):
            self._messages.sent += 1
            self._messages.numbered[self._messages.sent] = _Message(body)

    def _take(self, most: int) -> list[Lease]:
        now = self._cloud.clock.now()
        ready = [n for n, message in self._messages.numbered.items() if message.held_until <= now]
        if self._cloud.faults.shuffle:
            self._cloud.random.shuffle(ready)
        leases = []
        for number in ready[:most]:
            message = self._messages.numbered[number]
            message.deliveries += 1
            message.held_until = now + self.lease
            leases.append(Lease(f"{number}.{message.deliveries}", message.body, message.deliveries))
        return leases

    def _free(self, lease: Lease) -> None:
        message = self._held(lease)
        if message is not None:
            message.held_until = 0.0
            self._messages.changed()

    def _held(self, lease: Lease) -> _Message | None:
        """The message, unless it was removed or delivered again since."""
        message = self._messages.numbered.get(_number(lease))
        return message if message and message.deliveries == lease.deliveries else None

    def _until_a_lease_lapses(self) -> float:
        now = self._cloud.clock.now()
        ends = (message.held_until for message in self._messages.numbered.values())
        return max(0.0, min(ends, default=math.inf) - now)

    async def _change_within(self, seconds: float) -> None:
        change = asyncio.get_running_loop().create_future()
        self._messages.waiting.append(change)
        sleeping = asyncio.ensure_future(self._cloud.clock.sleep(seconds))
        try:
            await asyncio.wait({change, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._messages.waiting.remove(change)
            sleeping.cancel()


def _number(lease: Lease) -> int:
    return int(lease.receipt.split(".")[0])
