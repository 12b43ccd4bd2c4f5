"""Which run is meant, and the order in which jobs are listed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.control.find_run import find_run, latest_run
from airflow_provider_spotbatch.control.jobs_list import ListedJob, list_jobs
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import Generation, Run, catalogue
from tests.support.stored_runs import KEY, stored_run

NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


async def listed(store: Store, **options: object) -> list[ListedJob]:
    return [job async for job in list_jobs(store, Keyring((KEY,)), NOW, **options)]  # type: ignore[arg-type]


def test_the_newest_run_of_the_newest_generation_is_meant(store: Store) -> None:
    async def main() -> None:
        for generation, run in ((1, 1), (1, 2), (2, 1), (2, 2), (10, 1)):
            await stored_run(store, "my-job", generation, run).begin()
        newest = Run(Generation("my-job", 10), 1)

        assert await find_run(store, "my-job") == newest
        assert await find_run(store, "y-j") == newest
        assert await find_run(store, "my", generation=2) == Run(Generation("my-job", 2), 2)
        assert await find_run(store, "my", generation=2, run=1) == Run(Generation("my-job", 2), 1)
        assert await find_run(store, "my", run=1) == newest
        with pytest.raises(InvalidInput, match="no generation 3; there are: 1, 2, 10"):
            await find_run(store, "my", generation=3)

    asyncio.run(main())


def test_a_whole_id_is_meant_though_others_have_it_in_theirs(store: Store) -> None:
    async def main() -> None:
        for job in ("job", "job-a", "job-b"):
            await stored_run(store, job).begin()

        assert (await find_run(store, "job")).generation.job == "job"
        with pytest.raises(InvalidInput, match="part of 2 job ids"):
            await find_run(store, "job-")

    asyncio.run(main())


def test_a_generation_without_its_specification_is_none_and_one_without_a_run_has_number_0(
    store: Store,
) -> None:
    async def main() -> None:
        begun = await stored_run(store).begin()
        await store.write(Generation("job", 2).item_part("died-half-way", 0), b"")
        assert await latest_run(store, "job") == begun.run
        await store.delete([begun.run.run])
        assert await latest_run(store, "job") == Run(Generation("job", 1), 0)
        assert await latest_run(store, "none") is None
        with pytest.raises(InvalidInput, match="has begun yet"):
            await find_run(store, "job")

    asyncio.run(main())


def test_those_begun_last_come_first_and_only_as_many_as_asked(store: Store) -> None:
    async def main() -> None:
        for number in range(40):
            run = await stored_run(store, f"job-{number:02d}").begin(dag_id=f"dag {number % 2}")
            entry = Path(
                store.uri.removeprefix("file://"), catalogue(f"dag {number % 2}", run.run.generation.job)
            )
            os.utime(entry, (NOW + number, NOW + number))

        assert [job.job for job in await listed(store, limit=3)] == ["job-39", "job-38", "job-37"]
        assert len(await listed(store)) == 40
        odd = await listed(store, dag_id="dag 1", limit=2)
        assert [job.job for job in odd] == ["job-39", "job-37"]
        assert await listed(store, dag_id="dag-1") == []  # its entries lie in the same folder

    asyncio.run(main())


def test_a_run_that_nobody_drives_any_more_is_unfinished(store: Store) -> None:
    async def main() -> None:
        await stored_run(store, "fresh").begin(created=NOW - 60)
        await stored_run(store, "forgotten").begin(created=NOW - 600)
        await (await stored_run(store, "ended").begin(created=NOW - 600)).end("failed", ok=8, failed=2)
        states = {job.job: job.summary.state for job in await listed(store) if job.summary is not None}

        assert states == {"fresh": "running", "forgotten": "unfinished", "ended": "failed"}

    asyncio.run(main())


def test_a_job_that_cannot_be_read_spares_the_others(store: Store) -> None:
    async def main() -> None:
        await stored_run(store, "good").begin()
        await stored_run(store, "changed").begin()
        record = Run(Generation("changed", 1), 1).run
        data = await store.read(record)
        assert data is not None
        await store.write(record, data.replace(b'"concurrency": 2', b'"concurrency": 3'))
        troubles = {job.job: job.trouble for job in await listed(store)}

        assert troubles["good"] == ""
        assert "not signed" in troubles["changed"]

    asyncio.run(main())
