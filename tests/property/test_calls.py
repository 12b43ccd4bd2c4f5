"""How much a deferred job asks of its triggerer and its store: few looks, few calls in each."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.drive import drive
from airflow_provider_spotbatch.job.policy import Policy
from tests.property.scripted import Script
from tests.property.simulation import Simulation

MINUTES = 10
CALLS_PER_LOOK = 12
"""Six that look for what is new, two changed reports, control.json and progress.json, and at times a batch
(written, then read back) or history."""


class Counted:
    """The controller's store: its calls by verb, and its looks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.looks = 0

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._inner, verb)
        if not asyncio.iscoroutinefunction(attribute):
            return attribute

        async def call(name: str, *given: Any, **named: Any) -> Any:
            self.calls[verb] += 1
            self.looks += name.endswith("/cancel.json")
            return await attribute(name, *given, **named)

        return call


def asked_for(told: Simulation, begin: float) -> tuple[float, float]:
    """Looks a minute, and calls in each, in ten minutes from so many seconds after the start."""
    counted = Counted(told.site.store)

    async def story() -> None:
        run = await told.begin_run()
        site = replace(told.site, store=counted)  # type: ignore[arg-type]
        driving = asyncio.ensure_future(drive(Controller(site, run, told.say), told.say))
        await asyncio.sleep(begin)
        counted.calls.clear()
        counted.looks = 0
        await asyncio.sleep(60.0 * MINUTES)
        assert not driving.done(), "the job was to last"
        driving.cancel()

    told.play(story())
    return counted.looks / MINUTES, counted.calls.total() / max(1, counted.looks)


ONE_LONG_ITEM: dict[str, Any] = {
    "items": 1,
    "script": Script(seconds=(3000.0,)),
    "policy": Policy(concurrency=1, early_stop=None),
}
MANY_ITEMS: dict[str, Any] = {
    "items": 4000,
    "script": Script(seconds=(7.0,)),
    "policy": Policy(concurrency=4, early_stop=None),
}


@pytest.mark.parametrize("job", [ONE_LONG_ITEM, MANY_ITEMS], ids=["one long item", "many items"])
def test_a_steady_job_is_looked_at_once_in_its_poll_interval(job: dict[str, Any]) -> None:
    looks, calls = asked_for(Simulation(**job, tick_seconds=0.25), begin=300.0)
    assert 4 <= looks <= 4.2
    assert calls <= CALLS_PER_LOOK


def test_a_machine_that_takes_long_to_boot_is_looked_for_ever_more_rarely() -> None:
    told = Simulation(**ONE_LONG_ITEM, boot_seconds=550.0, tick_seconds=0.25)
    looks, calls = asked_for(told, begin=30.0)
    assert looks <= 15
    assert calls <= CALLS_PER_LOOK
