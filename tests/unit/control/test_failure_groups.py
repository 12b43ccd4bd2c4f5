"""Failures by error: from the index of a run that is over, from reports before that, in bounded memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.control import failure_groups
from airflow_provider_spotbatch.control.failure_groups import FailureGroups, group_failures, read_example
from airflow_provider_spotbatch.control.run_summary import read_documents
from airflow_provider_spotbatch.job.index import BLOCK_RECORDS, Place
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.report import EndedChunk
from tests.support.stored_runs import KEY, StoredRun, stored_run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def chunk(number: int) -> ChunkId:
    return ChunkId(1, 1, number)


async def groups_of(run: StoredRun) -> FailureGroups:
    documents = await read_documents(run.store, Keyring((KEY,)), run.run)
    return await group_failures(run.store, documents, items_shown=3)


async def over(store: Store, messages: dict[int, str], *, items: int, size: int) -> StoredRun:
    """A run that is over: ``size`` items in each chunk, dealt out in turn, so that each chunk's items lie
    in every block of the index."""
    run = await stored_run(store, items=items).begin()
    chunks = items // size
    places = []
    for item in range(items):
        cause = "error" if item in messages else "ok"
        places.append(Place(cause, 1, chunk(item % chunks), item // chunks))
    for number in range(chunks):
        await run.result(chunk(number), messages, range(number, items, chunks))
    await run.index(places)
    return run


def test_the_index_tells_what_failed_in_the_end(store: Store) -> None:
    async def main() -> None:
        messages = dict.fromkeys(range(2, 8), "often") | {9: "rare"}
        run = await over(store, messages, items=10, size=5)

        found = await groups_of(run)
        assert (found.final, found.count) == (True, 7)
        shown = [(group.label, group.count, group.items) for group in found.groups]
        assert shown == [("ValueError: often", 6, [2, 3, 4]), ("ValueError: rare", 1, [9])]
        assert found.groups[1].preview == "input 9"
        documents = await read_documents(store, Keyring((KEY,)), run.run)
        example = await read_example(store, documents, found.groups[1])
        assert example is not None
        assert example.traceback == "Traceback of item 9"

    asyncio.run(main())


def test_items_without_an_outcome_are_no_failures(store: Store) -> None:
    async def main() -> None:
        run = await stored_run(store).begin()
        await run.index([Place(None, 0, None, 0)] * 10)
        assert (await groups_of(run)).count == 0

    asyncio.run(main())


def test_heads_that_do_not_fit_at_once_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "KEPT_ROWS", 3)

    async def main() -> None:
        items = BLOCK_RECORDS + 4
        wrong = [*range(4), *range(BLOCK_RECORDS, items)]
        run = await over(store, {item: f"item {item}" for item in wrong}, items=items, size=items // 4)

        found = await groups_of(run)
        assert sorted(group.items[0] for group in found.groups) == wrong
        assert {group.label for group in found.groups} == {f"ValueError: item {item}" for item in wrong}

    asyncio.run(main())


def test_errors_beyond_those_kept_apart_are_counted_by_cause(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_groups, "MOST_GROUPS", 2)

    async def main() -> None:
        run = await over(store, {item: f"item {item}" for item in range(10)}, items=10, size=5)
        found = await groups_of(run)
        assert (len(found.groups), found.others, found.count) == (2, {"error": 8}, 10)

    asyncio.run(main())


def test_before_the_end_reports_and_seals_tell_the_failed_attempts(store: Store) -> None:
    async def main() -> None:
        run = await stored_run(store).begin()
        for number in range(4):
            messages = {number: "early"} if number < 3 else {}
            await run.result(chunk(number), messages, [number, number + 5])
        sealed, told, unfailing = (
            EndedChunk(str(chunk(number)), 2, int(number < 3), 1.0, 10) for number in (0, 1, 3)
        )
        # Results that another had written: of chunk 1, told already, and of 2, whose machine is gone.
        others = [EndedChunk(str(chunk(number)), 0, 0, 0.0, 0, found=True) for number in (1, 2)]
        not_yet_there = EndedChunk(str(chunk(9)), 1, 1, 1.0, 10)
        await run.report("a", [told], sealed=[sealed])
        await run.report("b", [*others, unfailing, not_yet_there])

        found = await groups_of(run)
        assert (found.final, found.count) == (False, 3)
        assert [sorted(group.items) for group in found.groups] == [[0, 1, 2]]

    asyncio.run(main())
