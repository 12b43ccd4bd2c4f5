"""Each slot's items see GPUs of their own, and no others: real workers, driven by a real agent. No GPU is
needed: what counts is what CUDA would be told."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.spec import WorkerEnvironment
from tests.support.jobs import chunk, function_job, value_of


def seen_on_two_slots(tmp_path: Path, resources: Resources, env: dict[str, str] | None = None) -> list[Any]:
    """``CUDA_VISIBLE_DEVICES`` of two items that run at the same time."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    def look(item: int) -> str | None:
        (meeting / str(item)).touch()
        deadline = time.monotonic() + 20
        while len(os.listdir(meeting)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    job = function_job(
        tmp_path,
        look,
        [0, 1],
        slots=2,
        policy=Policy(resources=resources),
        environment=WorkerEnvironment(python="", env=env or {}),
    )

    async def scenario() -> list[Any]:
        await job.submit([chunk(0, (0, 1)), chunk(1, (1, 2))])
        await job.run_agent()
        return [value_of((await job.outcomes(ChunkId(1, 1, number)))[0]) for number in (0, 1)]

    return sorted(asyncio.run(scenario()), key=str)


@pytest.mark.parametrize(
    ("resources", "seen"),
    [
        (Resources(gpus=1), ["0", "1"]),
        (Resources(gpus=2), ["0,1", "2,3"]),
        (Resources(gpu_memory_gb=16), ["0", "1"]),
    ],
    ids=["one GPU", "two GPUs", "GPU memory alone"],
)
def test_items_on_two_slots_see_gpus_of_their_own(
    tmp_path: Path, resources: Resources, seen: list[str]
) -> None:
    assert seen_on_two_slots(tmp_path, resources) == seen


def test_without_gpus_in_item_resources_the_users_own_setting_stands(tmp_path: Path) -> None:
    seen = seen_on_two_slots(tmp_path, Resources(), env={"CUDA_VISIBLE_DEVICES": "3"})
    assert seen == ["3", "3"]
