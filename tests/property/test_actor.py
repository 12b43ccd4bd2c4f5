"""The same plan carried out twice, by one controller or by two, is the same as once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.control.act import Actor
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.decide import PLAN_SECONDS, decide
from airflow_provider_spotbatch.control.metrics import SILENT, RunMetrics, Tally
from airflow_provider_spotbatch.control.observe import Observer
from airflow_provider_spotbatch.control.plan import Plan, WriteControl
from airflow_provider_spotbatch.job.errors import CloudUnavailable
from airflow_provider_spotbatch.job.keys import Run
from tests.property.scripted import GONE, Script
from tests.property.simulation import Simulation

UNCOUNTED = RunMetrics(SILENT, "", {}, Tally())

OWN = ("/control.json", "/progress.json", "/drivers/", "/history/")
"""What each controller writes of its own; all else is written once."""


def pictured(told: Simulation) -> dict[str, Any]:
    """The objects that are written once, the machines, and the bodies of the messages."""
    named = told.cloud.store.objects.named
    messages = {
        name: {message.body for message in queue.numbered.values()}
        for name, queue in told.cloud.queues.items()
    }
    return {
        "objects": {name: data for name, (data, _) in named.items() if not any(own in name for own in OWN)},
        "machines": sorted(told.cloud.machines),
        "messages": messages,
    }


class Process:
    """A controller that looks and decides, and acts when it is told to."""

    def __init__(self, told: Simulation, run: Run, observer: Observer) -> None:
        self._told = told
        self._observer = observer
        self.actor = Actor(told.site, run, observer.fleet, observer, told.say, UNCOUNTED)

    @classmethod
    async def of(cls, told: Simulation, run: Run) -> Process:
        return cls(told, run, await Controller(told.site, run, told.say).open())

    async def plan(self) -> Plan:
        self.plan_made = decide(await self._observer.look())
        self.decided_at = self._told.clock.now()
        return self.plan_made

    async def act(self) -> bool:
        return await self.actor.carry_out(self.plan_made, self.decided_at)


def test_a_plan_carried_out_twice_is_as_once() -> None:
    """Every plan of a run that loses machines and retries items, from its first to its last."""
    script = Script(failures={1: ["error"], 2: ["memory"]}, mishaps={0: [GONE]}, seconds=(10.0,))
    told = Simulation(script=script)

    async def story() -> set[str]:
        run = await told.begin_run()
        kinds: set[str] = set()
        one, other = await Process.of(told, run), await Process.of(told, run)
        while True:
            plan = await one.plan()
            await other.plan()
            kinds |= {type(action).__name__ for action in plan.actions}
            await one.act()
            once = pictured(told)
            assert not await one.act() or all(_repeats(plan))
            await other.act()
            assert pictured(told) == once, plan
            if plan.over:
                return kinds
            await asyncio.sleep(2.0)

    kinds = told.play(story())
    assert {"Launch", "Send", "RecordLoss", "Terminate", "CloseLaunches", "WriteControl"} <= kinds


def _repeats(plan: Plan) -> list[bool]:
    return [type(action).__name__ in (WriteControl.__name__, "Terminate") for action in plan.actions]


def test_a_plan_is_not_carried_out_late() -> None:
    told = Simulation()

    async def story() -> None:
        run = await told.begin_run()
        late = await Process.of(told, run)
        await late.plan()
        before = pictured(told)
        await asyncio.sleep(PLAN_SECONDS + 1)
        assert not await late.act()
        assert pictured(told) == before

    told.play(story())


@pytest.mark.parametrize("seed", range(12))
def test_no_machine_is_asked_for_after_the_life_of_its_plan(seed: int) -> None:
    """However long the request travels: others may have closed the log since, and seen all settled."""
    told = Simulation(seed=seed)

    async def story() -> None:
        run = await told.begin_run()
        slow = await Process.of(told, run)
        await slow.plan()
        await asyncio.sleep(PLAN_SECONDS - 20)
        told.use_faults(Faults(latency=8.0))
        with contextlib.suppress(CloudUnavailable):
            await slow.act()
        late = [machine.launched - slow.decided_at for machine in told.cloud.machines.values()]
        assert all(seconds <= PLAN_SECONDS for seconds in late)

    told.play(story())
