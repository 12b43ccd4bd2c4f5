"""How soon a machine that is lost is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from airflow_provider_spotbatch.backends.memory import MemoryCloud
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.job.policy import Policy
from tests.property.scripted import Script
from tests.property.simulation import Simulation

Befall = Callable[[MemoryCloud, str], None]


@pytest.mark.parametrize(
    "befall",
    [
        lambda cloud, machine: cloud.reclaim(machine),
        lambda cloud, machine: cloud.reclaim(machine, notice=False),
        lambda cloud, machine: cloud.kill(machine),
        lambda cloud, machine: cloud.advise(machine),
    ],
    ids=["notice", "vanished", "killed", "rebalance"],
)
def test_a_replacement_is_asked_for_in_the_tick_that_sees_the_slots_free(befall: Befall) -> None:
    told = Simulation(
        items=24,
        policy=Policy(concurrency=3, item_retries=0, early_stop=None),
        script=Script(seconds=(20.0,)),
        slots=1,
        end_seconds=5.0,
    )

    async def story() -> list[list[str]]:
        controller = Controller(told.site, await told.begin_run(), told.say)
        ticks: list[list[str]] = []
        asyncio.get_running_loop().call_later(30.0, lambda: befall(told.cloud, min(told.cloud.machines)))
        while told.clock.now() < began + 120.0:
            before = len(told.said)
            turn = await controller.tick()
            ticks.append(told.said[before:])
            await asyncio.sleep(turn.pause)
        return ticks

    began = told.clock.now()
    ticks = told.play(story())
    [tick] = [lines for lines in ticks if any(" ended: " in line for line in lines)]
    assert any("starting a machine" in line for line in tick), tick
    assert told.cloud.most_slots == 3
