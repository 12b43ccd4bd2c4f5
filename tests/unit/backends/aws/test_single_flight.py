"""One answer for all who ask the same at the same time."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.backends.aws.single_flight import SingleFlight


def test_who_asks_at_the_same_time_gets_one_answer() -> None:
    async def main() -> None:
        flight: SingleFlight[int] = SingleFlight()
        asked = 0
        go_on = asyncio.Event()

        async def ask() -> int:
            nonlocal asked
            asked += 1
            await go_on.wait()
            return asked

        first = asyncio.ensure_future(flight.join(ask))
        others = [asyncio.ensure_future(flight.join(ask)) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        go_on.set()
        assert await asyncio.gather(*others) == [1] * 5
        assert await flight.join(ask) == 2

    asyncio.run(main())
