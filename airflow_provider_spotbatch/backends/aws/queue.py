"""A run's queue in SQS.

SQS forgets a deleted queue after 60 s and would make a new one of that name, and it cannot tell a deleted
queue from one that never was. So a deletion is written into the store first, for good.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.backends.base import Lease
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import (
    CloudUnavailable,
    InvalidInput,
    LeaseLost,
    QueueGone,
    SpotBatchError,
)

BATCH = 10
BATCH_BYTES = 1024 * 1024
"""Messages and bytes of one request, and bytes of one message (SQS API reference, SendMessageBatch)."""

LONGEST_POLL = 20

NOT_THERE_SECONDS = 1.0
"""Pause between two looks for a queue that nobody has made yet."""

RETENTION_SECONDS = 14 * 24 * 3600
"""As long as SQS keeps messages: a job may take longer than the default of 4 days."""

REMEMBERED_SECONDS = 600.0
"""How long a lease that has lapsed is known as such."""

SEND_ATTEMPTS = 5
SEND_PAUSE = 0.4
"""Tries of messages that SQS did not take, and seconds before the second, doubled each time, with jitter:
3 to 6 s in all. A queue may be used "at least one second" after it was made (SQS API reference, CreateQueue).
"""

NO_QUEUE = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.QueueDoesNotExist",
    }
)
DELETED_RECENTLY = frozenset({"AWS.SimpleQueueService.QueueDeletedRecently", "QueueDeletedRecently"})
STALE = frozenset(
    {
        "InvalidParameterValue",  # the receipt handle has expired, or the 12 h of its message are over
        "InvalidParameterValueException",
        "ReceiptHandleIsInvalid",
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)


def queue_prefix(store: str) -> str:
    """What the names of all queues of a store begin with: policies allow these queues alone, and a listing
    of them needs no other. Short, since SQS allows 80 characters: a job's id takes up to 63 of them.
    """
    return base64.b32encode(hashlib.sha256(store.encode()).digest())[:5].decode().lower() + "-"


class SqsQueue:
    """See :class:`~airflow_provider_spotbatch.backends.base.Queue`. Leases last whole seconds.

    SQS may obey a stale receipt, and so touch another's lease: what has surely lapsed is not used.

    ``name``: of the queue; ``tombstone``: of the object that says for good that it was deleted.
    """

    def __init__(
        self,
        clients: Clients,
        store: Store,
        name: str,
        tombstone: str,
        lease: float,
        tags: dict[str, str],
    ) -> None:
        self._clients = clients
        self._store = store
        self._name = name
        self._tombstone = tombstone
        self._seconds = max(1, math.ceil(lease))
        self._tags = tags
        self._url: str | None = None
        self._lapses: dict[str, float] = {}
        """Receipt → when its lease has surely lapsed, by our monotonic clock."""

    async def send(self, bodies: Sequence[str]) -> None:
        for batch in _batches(bodies):
            await self._send(batch)

    async def receive(self, most: int, wait: float) -> list[Lease]:
        until = time.monotonic() + wait
        while True:
            left = until - time.monotonic()
            leases = await self._receive(most, left)
            if leases or left <= 0:
                return leases
            left = until - time.monotonic()
            if self._url is None:
                await asyncio.sleep(max(0.0, min(NOT_THERE_SECONDS, left)))
            elif left < 1:  # SQS waits whole seconds: the rest is waited here, then looked once more
                await asyncio.sleep(max(0.0, left))

    async def extend(self, lease: Lease) -> None:
        lost = LeaseLost(f"the lease {lease.receipt} of the queue {self._name} has lapsed")
        if self._has_lapsed(lease):
            raise lost
        try:
            await self._set_visibility(lease, self._seconds)
        except ErrorCode:
            raise lost from None
        self._lapses[lease.receipt] = time.monotonic() + self._seconds

    async def release(self, lease: Lease) -> None:
        if self._has_lapsed(lease):
            return
        self._lapses[lease.receipt] = time.monotonic()
        with suppress(ErrorCode):
            await self._set_visibility(lease, 0)

    async def ack(self, lease: Lease) -> None:
        if self._has_lapsed(lease):
            return
        self._lapses[lease.receipt] = time.monotonic()
        with suppress(ErrorCode):
            url = await self._leased_from(lease)
            await self._clients.call(
                "sqs", "DeleteMessage", answers=NO_QUEUE | STALE, QueueUrl=url, ReceiptHandle=lease.receipt
            )

    async def delete(self) -> None:
        await self._store.create(self._tombstone, b"")
        with suppress(ErrorCode):
            url = self._url or await self._looked_up()
            if url is not None:
                await self._clients.call("sqs", "DeleteQueue", answers=NO_QUEUE, QueueUrl=url)

    # --- the queue itself ----------------------------------------------------------------------------

    async def _found(self) -> str | None:
        """The queue's URL; None if there is no such queue yet. Raises QueueGone once it was deleted."""
        if self._url is None:
            url = await self._looked_up()
            if await self._store.exists(self._tombstone):
                raise self._gone()
            self._url = url
        return self._url

    async def _looked_up(self) -> str | None:
        try:
            answer = await self._clients.call("sqs", "GetQueueUrl", answers=NO_QUEUE, QueueName=self._name)
        except ErrorCode:
            return None
        return str(answer["QueueUrl"])

    async def _created(self) -> str:
        try:
            answer = await self._clients.call(
                "sqs",
                "CreateQueue",
                answers=DELETED_RECENTLY,
                QueueName=self._name,
                Attributes={"MessageRetentionPeriod": str(RETENTION_SECONDS)},
                tags=self._tags,
            )
        except ErrorCode as error:
            await self._missing()
            raise CloudUnavailable(
                f"the queue {self._name} was deleted by hand; SQS makes none of its name for 60 s: {error}"
            ) from None
        self._url = str(answer["QueueUrl"])
        return self._url

    async def _missing(self) -> None:
        """SQS knows no such queue. Raises QueueGone if it was deleted; else it was made just now and is not
        to be seen everywhere, and the next look asks for it anew."""
        self._url = None
        if await self._store.exists(self._tombstone):
            raise self._gone()

    async def _leased_from(self, lease: Lease) -> str:
        """The queue's URL, for who has a lease of it. Raises ErrorCode if it is gone."""
        url = self._url or await self._looked_up()
        if url is None:
            raise ErrorCode("QueueDoesNotExist", f"no queue for the lease {lease.receipt}")
        return url

    def _gone(self) -> QueueGone:
        return QueueGone(f"the queue {self._name} was deleted: its run is over")

    # --- messages ------------------------------------------------------------------------------------

    async def _send(self, batch: list[str]) -> None:
        left = dict(enumerate(batch))
        for attempt in range(SEND_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(0.5, 1.0) * SEND_PAUSE * 2 ** (attempt - 1))
            url = await self._found() or await self._created()
            try:
                answer = await self._clients.call(
                    "sqs",
                    "SendMessageBatch",
                    answers=NO_QUEUE,
                    QueueUrl=url,
                    Entries=[{"Id": str(place), "MessageBody": body} for place, body in left.items()],
                )
            except ErrorCode as error:
                await self._missing()
                why = str(error)
                continue
            failed = answer.get("Failed", [])
            if not failed:
                return
            why = f"{failed[0]['Code']}: {failed[0].get('Message', '')}"
            if any(failure["SenderFault"] for failure in failed):
                break
            left = {int(failure["Id"]): left[int(failure["Id"])] for failure in failed}
        raise CloudUnavailable(f"{len(left)} messages could not be sent to the queue {self._name}: {why}")

    async def _receive(self, most: int, wait: float) -> list[Lease]:
        """One request, which waits for whole seconds of ``wait`` at most."""
        url = await self._found()
        if url is None:
            return []
        polling = _Polling(self._clients, url)
        try:
            answer = await polling.ask(
                MaxNumberOfMessages=min(BATCH, most),
                WaitTimeSeconds=max(0, min(LONGEST_POLL, math.floor(wait))),
                VisibilityTimeout=self._seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        except ErrorCode:
            await self._missing()
            return []
        leases = [
            Lease(
                receipt=message["ReceiptHandle"],
                body=message["Body"],
                deliveries=int(message["Attributes"]["ApproximateReceiveCount"]),
            )
            for message in answer.get("Messages", [])
        ]
        self._remember(leases)
        return leases

    def _remember(self, leases: Sequence[Lease]) -> None:
        now = time.monotonic()
        long_ago = now - REMEMBERED_SECONDS
        self._lapses = {receipt: at for receipt, at in self._lapses.items() if at > long_ago}
        self._lapses |= {lease.receipt: now + self._seconds for lease in leases}

    def _has_lapsed(self, lease: Lease) -> bool:
        """Whether the lease is surely no longer ours: it was given back, or not extended in time."""
        return time.monotonic() >= self._lapses.get(lease.receipt, math.inf)

    async def _set_visibility(self, lease: Lease, seconds: int) -> None:
        url = await self._leased_from(lease)
        await self._clients.call(
            "sqs",
            "ChangeMessageVisibility",
            answers=NO_QUEUE | STALE,
            QueueUrl=url,
            ReceiptHandle=lease.receipt,
            VisibilityTimeout=seconds,
        )


class _Polling:
    """One ReceiveMessage in a thread of its own, which an ending process does not wait for. Messages that
    arrive after the caller was cancelled are given back at once."""

    def __init__(self, clients: Clients, url: str) -> None:
        self._clients = clients
        self._url = url

    async def ask(self, **parameters: Any) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[dict[str, Any]] = loop.create_future()

        def poll() -> None:
            answer: dict[str, Any] | Exception
            try:
                answer = self._clients.call_now(
                    "sqs", "ReceiveMessage", answers=NO_QUEUE, QueueUrl=self._url, **parameters
                )
            except (SpotBatchError, ErrorCode) as error:
                answer = error
            try:
                loop.call_soon_threadsafe(self._settle, answered, answer)
            except RuntimeError:  # the loop has ended
                self._give_back(answer)

        threading.Thread(target=poll, name="spotbatch-poll", daemon=True).start()
        try:
            return await answered
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled():
                self._give_back_aside(answered.exception() or answered.result())
            raise

    def _settle(self, answered: asyncio.Future[dict[str, Any]], answer: dict[str, Any] | Exception) -> None:
        if answered.cancelled():
            self._give_back_aside(answer)
        elif isinstance(answer, Exception):
            answered.set_exception(answer)
        else:
            answered.set_result(answer)

    def _give_back_aside(self, answer: dict[str, Any] | BaseException) -> None:
        threading.Thread(
            target=self._give_back, args=(answer,), name="spotbatch-give-back", daemon=True
        ).start()

    def _give_back(self, answer: dict[str, Any] | BaseException) -> None:
        if isinstance(answer, BaseException):
            return
        for message in answer.get("Messages", []):
            with suppress(SpotBatchError, ErrorCode):
                self._clients.call_now(
                    "sqs",
                    "ChangeMessageVisibility",
                    answers=NO_QUEUE | STALE,
                    QueueUrl=self._url,
                    ReceiptHandle=message["ReceiptHandle"],
                    VisibilityTimeout=0,
                )


def _batches(bodies: Sequence[str]) -> Iterator[list[str]]:
    """As many messages as one request takes. Raises InvalidInput for one that no request takes."""
    batch: list[str] = []
    size = 0
    for body in bodies:
        length = len(body.encode())
        if length > BATCH_BYTES:
            raise InvalidInput(f"a message of {length} bytes is larger than SQS takes ({BATCH_BYTES})")
        if batch and (len(batch) == BATCH or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += length
    if batch:
        yield batch
