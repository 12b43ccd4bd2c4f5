"""The end of a real job tells what its items used."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.control.advice import use_of
from airflow_provider_spotbatch.job.resources import Resources
from tests.support.runs import Site, drive
from tests.support.work import hold_megabytes

ITEMS = 25


def test_the_log_tells_use_and_advice_once(site: Site) -> None:
    each_more_than_the_last = range(80, 80 + 2 * ITEMS, 2)  # so that the peak of each is known
    worker = site.submit(
        hold_megabytes, each_more_than_the_last, resources=Resources(memory_gb=4), concurrency=1
    )
    outcome = drive(worker)
    told = [line for line in site.said if line.startswith(("what items used", "  advice"))]

    assert told[0] == f"what items used: measured on {ITEMS} items that succeeded"
    assert any("of 4 GB asked: ask for memory_gb=0.2 (20 % above the most)" in line for line in told)
    assert asyncio.run(use_of(open_store(worker.store_uri), outcome.of_run.generation)).items == ITEMS

    before = len(site.said)
    worker.finish()
    assert site.said[before:] == [], "a second finisher has nothing to tell"
