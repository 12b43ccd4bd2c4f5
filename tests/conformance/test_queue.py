"""The contract of :class:`airflow_provider_spotbatch.backends.base.Queue`."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_spotbatch.backends.base import Lease, Queue
from airflow_provider_spotbatch.job.errors import LeaseLost, QueueGone
from tests.conformance.place import MANY_MESSAGES, ONE_DELIVERY, Place

SHORT = 0.2
"""A lease to be outlived, in seconds."""


async def lapse(queue: Queue) -> Lease:
    """Wait for a lapsed message to be delivered again."""
    leases = await queue.receive(1, wait=10)
    assert leases, "a message whose lease has lapsed did not come again"
    return leases[0]


class TestQueue:
    def test_what_is_sent_is_received(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().send(["a", "b", "ü\n{}"])
            leases = await place.queue().receive(10, wait=1)
            assert sorted(lease.body for lease in leases) == ["a", "b", "ü\n{}"]
            assert [lease.deliveries for lease in leases] == [1, 1, 1]

        asyncio.run(main())

    def test_sending_nothing_is_harmless(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().send([])
            assert await place.queue().receive(1, wait=0) == []

        asyncio.run(main())

    def test_a_doubled_message_is_received_twice(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().send(["same"])
            await place.queue().send(["same"])
            leases = await place.queue().receive(10, wait=1)
            assert [lease.body for lease in leases] == ["same", "same"]
            assert len({lease.receipt for lease in leases}) == 2

        asyncio.run(main())

    def test_no_more_than_asked_for_is_received(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().send(["a", "b", "c"])
            assert len(await place.queue().receive(2, wait=1)) == 2
            assert len(await place.queue().receive(2, wait=1)) == 1

        asyncio.run(main())

    def test_a_queue_that_never_was_is_empty(self, place: Place) -> None:
        async def main() -> None:
            assert await place.queue().receive(1, wait=0) == []

        asyncio.run(main())

    def test_an_empty_receive_waits_its_time_and_no_longer(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue()
            await queue.receive(1, wait=0)  # whatever a first call takes
            started = time.monotonic()
            assert await queue.receive(1, wait=0.3) == []
            assert 0.25 < time.monotonic() - started < 2

        asyncio.run(main())

    def test_a_waiting_receive_returns_when_something_is_sent(self, place: Place) -> None:
        async def main() -> None:
            waiting = asyncio.ensure_future(place.queue().receive(1, wait=30))
            await place.queue().receive(1, wait=0.1)  # long enough for the other to be waiting
            started = time.monotonic()
            await place.queue().send(["late"])
            assert [lease.body for lease in await waiting] == ["late"]
            assert time.monotonic() - started < 2

        asyncio.run(main())

    def test_a_held_message_is_hidden_from_all(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().send(["a"])
            assert await place.queue().receive(1, wait=1)
            assert await place.queue().receive(1, wait=0.1) == []

        asyncio.run(main())

    def test_a_lapsed_message_comes_again_and_is_counted(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue(lease=SHORT)
            await queue.send(["a"])
            [first] = await queue.receive(1, wait=1)
            second = await lapse(queue)
            assert (second.body, second.deliveries) == ("a", 2)
            assert second.receipt != first.receipt

        asyncio.run(main())

    def test_an_extended_message_stays_hidden(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue(lease=0.5)
            await queue.send(["a"])
            [lease] = await queue.receive(1, wait=1)
            for _ in range(4):
                assert await queue.receive(1, wait=0.2) == []
                await queue.extend(lease)
            assert (await lapse(queue)).deliveries == 2

        asyncio.run(main())

    def test_a_lapsed_lease_cannot_be_extended(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue(lease=SHORT)
            await queue.send(["a"])
            [lease] = await queue.receive(1, wait=1)
            await lapse(queue)
            with pytest.raises(LeaseLost, match=lease.receipt):
                await queue.extend(lease)

        asyncio.run(main())

    def test_a_released_message_is_to_be_had_at_once(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue()
            await queue.send(["a"])
            [lease] = await queue.receive(1, wait=1)
            await queue.release(lease)
            [again] = await queue.receive(1, wait=1)
            assert (again.body, again.deliveries) == ("a", 2)
            with pytest.raises(LeaseLost):
                await queue.extend(lease)

        asyncio.run(main())

    def test_a_released_lease_is_no_longer_ours(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue()
            await queue.send(["a"])
            [lease] = await queue.receive(1, wait=1)
            await queue.release(lease)
            await queue.ack(lease)
            with pytest.raises(LeaseLost):
                await queue.extend(lease)
            assert len(await queue.receive(1, wait=1)) == 1

        asyncio.run(main())

    def test_an_acked_message_never_comes_again(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue(lease=SHORT)
            await queue.send(["a"])
            [lease] = await queue.receive(1, wait=1)
            await queue.ack(lease)
            await queue.ack(lease)
            await queue.release(lease)
            assert await queue.receive(1, wait=3 * SHORT) == []
            with pytest.raises(LeaseLost):
                await queue.extend(lease)

        asyncio.run(main())

    def test_a_stale_receipt_touches_nobody_elses_lease(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue(lease=1.0)
            await queue.send(["a"])
            [stale] = await queue.receive(1, wait=1)
            held = await lapse(queue)
            await queue.release(stale)
            await queue.ack(stale)
            assert await queue.receive(1, wait=0.2) == []
            await queue.extend(held)
            await queue.release(held)
            assert (await lapse(queue)).deliveries == 3

        asyncio.run(main())

    def test_a_deleted_queue_is_gone_for_good(self, place: Place) -> None:
        async def main() -> None:
            queue = place.queue()
            await queue.send(["a", "b"])
            [lease] = await queue.receive(1, wait=1)
            await queue.delete()
            await queue.delete()
            with pytest.raises(QueueGone):
                await place.queue().send(["c"])
            with pytest.raises(QueueGone):
                await place.queue().receive(1, wait=0)
            with pytest.raises(LeaseLost):
                await queue.extend(lease)
            await queue.ack(lease)
            await queue.release(lease)

        asyncio.run(main())

    def test_a_queue_that_never_was_can_be_deleted(self, place: Place) -> None:
        async def main() -> None:
            await place.queue().delete()
            with pytest.raises(QueueGone):
                await place.queue().send(["a"])

        asyncio.run(main())

    def test_a_waiting_receive_learns_of_the_deletion(self, place: Place) -> None:
        async def main() -> None:
            waiting = asyncio.ensure_future(place.queue().receive(1, wait=30))
            await place.queue().receive(1, wait=0.1)
            await place.queue().delete()
            with pytest.raises(QueueGone):
                await waiting

        asyncio.run(main())

    def test_queues_of_other_memory_classes_and_runs_are_apart(self, place: Place) -> None:
        async def main() -> None:
            larger = place.backend.queue(place.run, 1)
            later = place.backend.queue(type(place.run)(place.run.generation, 2), 0)
            await place.queue().send(["a"])
            assert await larger.receive(1, wait=0) == []
            assert await later.receive(1, wait=0) == []
            await larger.delete()
            assert len(await place.queue().receive(1, wait=1)) == 1

        asyncio.run(main())

    @pytest.mark.parametrize("messages", [100, 1000])
    def test_each_of_many_messages_reaches_one_of_many_consumers(self, place: Place, messages: int) -> None:
        if messages > 100:
            place.needs(MANY_MESSAGES)

        async def consume(seen: list[str]) -> None:
            queue = place.queue()
            while leases := await queue.receive(7, wait=0.2):
                seen += [lease.body for lease in leases]
                for lease in leases:
                    await queue.ack(lease)

        async def main() -> None:
            seen: list[str] = []
            await place.queue().send([str(number) for number in range(messages)])
            await asyncio.gather(*(consume(seen) for _ in range(8)))
            assert set(map(int, seen)) == set(range(messages))
            if ONE_DELIVERY not in place.coarser:
                assert len(seen) == messages

        asyncio.run(main())

    def test_a_cancelled_receive_keeps_nothing(self, place: Place) -> None:
        """An agent that drains cancels its receive: what it was about to get is not lost to the others."""

        async def main() -> None:
            for number in range(20):
                receiving = asyncio.ensure_future(place.queue().receive(1, wait=5))
                await asyncio.sleep(0)
                await place.queue().send([str(number)])
                receiving.cancel()
                (got,) = await asyncio.gather(receiving, return_exceptions=True)
                left = [] if isinstance(got, list) else await place.queue().receive(1, wait=2)
                assert [lease.body for lease in (got if isinstance(got, list) else left)] == [str(number)]

        asyncio.run(main())

    def test_a_machine_sees_the_same_queue(self, place: Place) -> None:
        async def main() -> None:
            [launched] = (await place.fleet.launch(place.record(machines=1))).instances
            machine = place.machine(launched)
            await place.queue().send(["work"])
            [lease] = await machine.queue(place.run, 0).receive(1, wait=1)
            assert lease.body == "work"
            await machine.queue(place.run, 0).ack(lease)

        asyncio.run(main())
