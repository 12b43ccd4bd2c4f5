"""The output of machines as one stream: in order, each line once, whatever the machines wrote."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.control import item_logs
from airflow_provider_spotbatch.control.item_logs import ItemLogs
from airflow_provider_spotbatch.job.keys import Generation

GENERATION = Generation("job", 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def lines(*texts: str, at: float = 1.0) -> bytes:
    rows = [{"item": 0, "attempt": 1, "time": at + place, "text": text} for place, text in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


async def texts_of(logs: ItemLogs) -> list[str]:
    return [line.text async for line in logs.new_lines()]


def test_machines_are_merged_by_time_and_each_keeps_its_order(store: Store) -> None:
    async def main() -> None:
        await store.write(GENERATION.log("a", 0), lines("a1", "a3", at=1.0))
        await store.write(GENERATION.log("a", 1), lines("a0 by a clock set back", at=0.0))
        await store.write(GENERATION.log("b", 0), lines("b2", "b3", at=1.5))
        found = await texts_of(ItemLogs(store, GENERATION))
        assert found == ["a1", "b2", "a3", "a0 by a clock set back", "b3"]

    asyncio.run(main())


def test_a_second_look_gives_what_has_come_since(store: Store) -> None:
    async def main() -> None:
        logs = ItemLogs(store, GENERATION)
        assert await texts_of(logs) == []
        await store.write(GENERATION.log("a", 0), lines("one", "two"))
        assert await texts_of(logs) == ["one", "two"]
        assert await texts_of(logs) == []
        await store.write(GENERATION.log("a", 1), lines("three"))
        await store.write(GENERATION.log("b", 0), lines("of a new machine", at=9.0))
        assert await texts_of(logs) == ["three", "of a new machine"]
        await store.write(GENERATION.log("a", 2), lines("four"))
        assert await texts_of(logs) == ["four"]

    asyncio.run(main())


def test_an_object_written_anew_gives_its_further_lines_alone(store: Store) -> None:
    async def main() -> None:
        logs = ItemLogs(store, GENERATION)
        await store.write(GENERATION.log("a", 0), lines("zero"))
        await store.write(GENERATION.log("a", 1), lines("one"))
        assert await texts_of(logs) == ["zero", "one"]
        await store.write(GENERATION.log("a", 1), lines("one", "two"))
        await store.write(GENERATION.log("a", 2), lines("three"))
        assert await texts_of(logs) == ["two", "three"]

    asyncio.run(main())


def test_many_objects_are_read_in_groups_and_none_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_logs, "AHEAD_BYTES", 200)

    async def main() -> None:
        for number in range(50):
            await store.write(GENERATION.log("a", number), lines(str(number), at=number))
        assert await texts_of(ItemLogs(store, GENERATION)) == [str(number) for number in range(50)]

    asyncio.run(main())


def test_only_the_machines_that_are_asked_for_are_read(store: Store) -> None:
    async def main() -> None:
        for machine in ("a", "b"):
            await store.write(GENERATION.log(machine, 0), lines(machine))
        assert await texts_of(ItemLogs(store, GENERATION, frozenset({"b", "unknown"}))) == ["b"]

    asyncio.run(main())


def test_what_is_no_line_of_an_agent_is_shown_as_it_is(store: Store) -> None:
    async def main() -> None:
        await store.write(GENERATION.log("a", 0), b'not json\n{"item": "x"}\n[]\n\xff\n')
        found = [line async for line in ItemLogs(store, GENERATION).new_lines()]
        assert [line.text for line in found] == ["not json", '{"item": "x"}', "[]", "\\xff"]
        assert {line.item for line in found} == {None}

    asyncio.run(main())
