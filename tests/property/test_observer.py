"""A look that breaks off half-way loses nothing: the next one takes what it had not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.job.errors import StoreUnavailable
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from tests.property.scripted import Script
from tests.property.simulation import Simulation


class FailsOnce:
    """The store, but the first ranged read below ``folder`` fails."""

    def __init__(self, inner: Any, folder: str) -> None:
        self._inner = inner
        self._folder = folder
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        if not self.failed and name.startswith(self._folder):
            self.failed = True
            raise StoreUnavailable(f"could not read {name}")
        data: bytes | None = await self._inner.read_range(name, start, stop)
        return data


def test_a_report_whose_results_could_not_be_read_is_read_again() -> None:
    told = Simulation(
        items=1, script=Script(failures={0: ["error"]}), policy=Policy(concurrency=1, item_retries=0)
    )

    async def story() -> Run:
        run = await told.begin_run()
        driving = asyncio.ensure_future(told.drive(run))
        results = run.generation.results
        await told.until(lambda: any(name.startswith(results) for name in told.cloud.store.objects.named))
        await asyncio.sleep(1.0)
        driving.cancel()
        store = FailsOnce(told.site.store, results)
        site = replace(told.site, store=store)  # type: ignore[arg-type]
        observer = await Controller(site, run, told.say).open()
        with pytest.raises(StoreUnavailable):
            await observer.look()
        assert (await observer.look()).counts.failed == 1
        return run

    told.play(story())
