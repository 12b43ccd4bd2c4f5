"""An agent's last report tells what all its items used."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_spotbatch.job.outcome import ERROR
from airflow_provider_spotbatch.job.use import Use
from tests.support.jobs import Job, chunk, function_job

MB = 1024 * 1024
HELD_MB = 150


def work(kind: str) -> None:
    """Items that use nothing, one CPU for a while, or memory for a while; and one that fails."""
    if kind == "busy":
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
    elif kind == "large":
        held = bytearray(HELD_MB * MB)
        held[::4096] = b"1" * len(held[::4096])
        del held
    elif kind == "wrong":
        raise ValueError("this item is wrong")


@pytest.fixture(scope="module")
def use(tmp_path_factory: pytest.TempPathFactory) -> Use:
    items = ["none"] * 40 + ["busy", "large", "wrong"]
    job: Job = function_job(tmp_path_factory.mktemp("use"), work, items, slots=2)

    async def reported() -> Use:
        await job.submit([chunk(0, (0, 30)), chunk(1, (30, 40)), chunk(2, (40, 43))])
        await job.run_agent()
        assert {ended.items for ended in await job.ended()} == {30, 10, 3}
        return Use.from_json((await job.report()).use)

    return asyncio.run(reported())


def test_every_item_that_succeeded_is_measured(use: Use) -> None:
    assert use.items == 42


def test_items_that_failed_are_counted_by_cause(use: Use) -> None:
    assert use.left_out == {ERROR: 1}


def test_the_busy_item_kept_one_cpu_busy(use: Use) -> None:
    assert 0.3 <= use.cpu_seconds < 1.0
    assert use.cpus.maximum <= 1.1


def test_the_large_item_is_the_most_memory(use: Use) -> None:
    assert HELD_MB <= use.memory_mb.maximum < HELD_MB + 200


def test_the_longest_item_is_the_busy_one(use: Use) -> None:
    assert 0.3 <= use.seconds.maximum < 10
    assert use.seconds.quantile(0.5) == 0.0, "the median item does nothing"
