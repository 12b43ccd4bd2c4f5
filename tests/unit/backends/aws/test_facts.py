"""What a region says of itself, kept in the store for all jobs."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import asdict

import pytest

from airflow_provider_spotbatch.backends.aws.facts import FORMAT, Facts
from airflow_provider_spotbatch.backends.machine_sizing import MachineType, Price
from airflow_provider_spotbatch.backends.memory import MemoryCloud
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import facts


def test_what_is_fresh_is_not_asked_again_by_any_process() -> None:
    now = 1000.0
    asked = 0

    async def ask() -> list[int]:
        nonlocal asked
        asked += 1
        return [asked]

    async def main() -> None:
        nonlocal now
        store = MemoryCloud("facts shared").store
        mine, theirs = (Facts(lambda: store, lambda: now) for _ in range(2))
        assert await asyncio.gather(*(mine.get("aws/x", 60, ask, list) for _ in range(5))) == [[1]] * 5
        assert await theirs.get("aws/x", 60, ask, list) == [1]
        now += 61
        assert await mine.get("aws/x", 60, ask, list) == [2]
        assert await theirs.get("aws/x", 60, ask, list) == [2]

    asyncio.run(main())


def test_a_failed_asking_is_not_kept() -> None:
    async def main() -> None:
        known = Facts(lambda: MemoryCloud("facts failed").store)

        async def fail() -> int:
            raise InvalidInput("not now")

        async def succeed() -> int:
            return 1

        with pytest.raises(InvalidInput):
            await known.get("aws/x", 60, fail, int)
        assert await known.get("aws/x", 60, succeed, int) == 1

    asyncio.run(main())


def test_what_another_release_wrote_is_asked_anew() -> None:
    async def main() -> None:
        store = MemoryCloud("facts format").store
        await store.write(facts("aws/x"), json.dumps({"format": 99, "rows": []}).encode())

        async def ask() -> int:
            return 1

        assert await Facts(lambda: store).get("aws/x", 60, ask, int) == 1

    asyncio.run(main())


def test_machine_types_and_prices_are_kept_in_the_form_that_their_format_names() -> None:
    """Releases that share a store read each other's: one field more or less is another format."""
    forms = (asdict(MachineType("m6i.large", 2, 8.0)), asdict(Price("m6i.large", "a", "spot", 0.03)))
    assert (FORMAT, *forms) == (
        1,
        {
            "name": "m6i.large",
            "vcpus": 2,
            "memory_gb": 8.0,
            "gpus": 0,
            "gpu_memory_gb": 0.0,
            "architecture": "x86_64",
            "burstable": False,
            "bare_metal": False,
            "specialised": False,
            "current_generation": True,
        },
        {
            "type": "m6i.large",
            "zone": "a",
            "purchase": "spot",
            "usd_per_hour": 0.03,
            "interruption_percent": None,
        },
    )


def test_what_is_made_of_a_value_is_made_once_and_beside_the_event_loop() -> None:
    made_in = []

    async def ask() -> list[int]:
        return [1]

    def parse(told: list[int]) -> tuple[int, ...]:
        made_in.append(threading.current_thread())
        return tuple(told)

    async def main() -> None:
        known = Facts(lambda: MemoryCloud("facts parsed").store)
        first = await known.get("aws/x", 60, ask, parse)
        assert first == (1,)
        assert await known.get("aws/x", 60, ask, parse) is first

    asyncio.run(main())
    assert len(made_in) == 1
    assert made_in[0] is not threading.main_thread()
