"""Which checkpoint an item goes on from."""

from __future__ import annotations

import asyncio
from pathlib import Path

from airflow_provider_spotbatch.agent.checkpoints import Checkpoints
from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.signing import Signer

GENERATION = Generation("job", 1)
SIGNER = Signer(b"k" * 32, GENERATION)


def test_the_latest_run_and_attempt_counts_even_if_an_older_one_saves_again(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    first_run = Checkpoints(store, Run(GENERATION, 1), SIGNER, "i-1")
    second_run = Checkpoints(store, Run(GENERATION, 2), SIGNER, "i-2")

    async def story() -> list[bytes | None]:
        seen = [await second_run.load(7)]
        await first_run.save(7, 3, b"run 1, attempt 3")
        seen.append(await second_run.load(7))
        await second_run.save(7, 1, b"run 2, attempt 1")
        await first_run.save(7, 3, b"a frozen machine woke up")
        seen.append(await second_run.load(7))
        await second_run.save(7, 2, b"run 2, attempt 2")
        seen.append(await second_run.load(7))
        return seen

    assert asyncio.run(story()) == [None, b"run 1, attempt 3", b"run 2, attempt 1", b"run 2, attempt 2"]
