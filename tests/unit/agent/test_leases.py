"""Leases in hand: extended in time, given up in time, and looked at again when they may have lapsed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from airflow_provider_spotbatch.agent.leases import LONGEST_LEASE, Held, Leases
from airflow_provider_spotbatch.backends.local_queue import LocalQueue
from airflow_provider_spotbatch.job.chunks import Chunk, from_message, to_message
from airflow_provider_spotbatch.job.errors import LeaseLost
from tests.support.jobs import chunk, eventually

LEASE = 0.6


class Hand:
    """A queue with one chunk, leased and kept; a clock that can jump."""

    def __init__(self, root: Path) -> None:
        self.queue = LocalQueue(str(root / "queue.sqlite"), "agents", LEASE)
        self.ahead = 0.0
        self.done: set[Chunk] = set()
        self.superseded: list[Held] = []
        self.woken = 0
        self.leases = Leases(
            self.queue, LEASE, self.clock, self.has_result, self.superseded.append, self.wake_up
        )

    def clock(self) -> float:
        return time.monotonic() + self.ahead

    async def has_result(self, chunk: Chunk) -> bool:
        return chunk in self.done

    def wake_up(self) -> None:
        self.woken += 1

    async def take(self) -> Held:
        await self.queue.send([to_message(chunk(0, (0, 1)))])
        return await self.receive()

    async def receive(self) -> Held:
        (lease,) = await self.queue.receive(1, 5.0)
        held = self.leases.take(from_message(lease.body), lease, self.clock())
        assert held is not None
        return held


def with_kept_leases(root: Path, body: Callable[[Hand], Awaitable[None]]) -> None:
    async def scenario() -> None:
        hand = Hand(root)
        keeping = asyncio.create_task(hand.leases.keep())
        try:
            await body(hand)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scenario())


def test_a_kept_lease_stays_ours(tmp_path: Path) -> None:
    async def body(hand: Hand) -> None:
        held = await hand.take()
        until = time.monotonic() + 2 * LEASE

        async def long_past() -> bool:
            assert await hand.queue.receive(1, 0) == []
            return time.monotonic() > until

        await eventually(long_past, "the time of two leases")
        assert not held.may_have_lapsed(hand.clock())

    with_kept_leases(tmp_path, body)


async def steal(hand: Hand) -> None:
    """Let the lease lapse, as of a frozen agent, and give the chunk to another."""

    async def lapsed() -> bool:
        return bool(await hand.queue.receive(1, 0))

    await eventually(lapsed, "the lapse of the lease")


def test_a_lost_lease_is_left_to_others_once_their_result_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        hand = Hand(tmp_path)
        held = await hand.take()
        await steal(hand)
        keeping = asyncio.create_task(hand.leases.keep())

        async def lost() -> bool:
            return held.lost

        await eventually(lost, "the loss of the lease")
        assert held.may_have_lapsed(hand.clock())
        assert hand.superseded == [], "no result yet: it runs on"
        hand.done.add(held.chunk)

        async def superseded() -> bool:
            return bool(hand.superseded)

        await eventually(superseded, "the look at the result")
        assert hand.superseded[0] is held
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scenario())


def test_a_redelivery_to_ourselves_renews_the_lease_in_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        hand = Hand(tmp_path)
        held = await hand.take()
        first = held.lease

        async def again() -> object:
            return await hand.queue.receive(1, 0)

        (lease,) = await eventually(again, "the redelivery")
        assert hand.leases.take(held.chunk, lease, hand.clock()) is None
        assert held.lease == lease
        with pytest.raises(LeaseLost):
            await hand.queue.extend(first)
        await hand.queue.extend(held.lease)

    asyncio.run(scenario())


def test_a_lease_may_have_lapsed_after_its_time_by_our_own_clock(tmp_path: Path) -> None:
    async def scenario() -> None:
        hand = Hand(tmp_path)
        held = await hand.take()
        assert not held.may_have_lapsed(hand.clock())
        hand.ahead = LEASE + 0.1
        assert held.may_have_lapsed(hand.clock())

    asyncio.run(scenario())


def test_an_agent_that_stood_still_looks_at_its_run_at_once(tmp_path: Path) -> None:
    async def body(hand: Hand) -> None:
        async def woken() -> bool:
            hand.ahead += LEASE + 1
            return hand.woken > 0

        await eventually(woken, "the waking")

    with_kept_leases(tmp_path, body)


def test_a_lease_of_eleven_hours_is_acked_and_still_in_hand(tmp_path: Path) -> None:
    async def body(hand: Hand) -> None:
        held = await hand.take()
        hand.ahead += LONGEST_LEASE + 1

        async def acked() -> bool:
            return held.acked

        await eventually(acked, "the ack")
        assert hand.leases.unfinished == [held]
        assert not held.may_have_lapsed(hand.clock())

    with_kept_leases(tmp_path, body)
