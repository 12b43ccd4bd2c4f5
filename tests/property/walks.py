"""Stories in which one process is killed, wherever it touches the world, and others go on."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.run_outcome import CANCELLED, Outcome
from tests.property.boundaries import Befall, Boundaries, Killed
from tests.property.simulation import Simulation
from tests.property.test_resume import quietly, take_over, to_the_end


async def driving(told: Simulation, befall: Befall) -> Outcome:
    return await told.whole_job(befall)


async def finishing(told: Simulation, befall: Befall) -> Outcome:
    run = await told.begin_run()
    await told.drive(run)
    try:
        return await told.finish(run, befall)
    except Killed:
        return await told.finish(run)


async def cancelling(told: Simulation, befall: Befall) -> Outcome:
    """Nobody drives the run any more, and its machines hear of nothing: the next one cancels again."""
    run = await told.begin_run()
    driving = asyncio.ensure_future(quietly(told.drive(run)))
    await asyncio.sleep(20.0)
    for machine in told.cloud.on():
        told.cloud.freeze(machine.id)
    driving.cancel()
    for each in (befall, None):
        site = told.site if each is None else Boundaries(each).around(told.site)
        try:
            assert await cancel(site, run, "marked failed", told.say)
        except Killed:
            await asyncio.sleep(5.0)
    outcome = await told.finish(run)
    assert outcome.state == CANCELLED
    return outcome


async def taking_over(told: Simulation, befall: Befall) -> Outcome:
    """A cleared task's next try: it cancels and finishes the run before, and begins its own."""
    first = await told.begin_run()
    driving = asyncio.ensure_future(quietly(told.drive(first)))
    await asyncio.sleep(25.0)
    run: Run | Outcome = await take_over(told, 1, befall)
    await driving
    return await to_the_end(told, run)
