"""Two controllers of one run, the one held up at the worst moment: what the other may not do meanwhile."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.job.run_outcome import Outcome
from tests.property.boundaries import AFTER, BEFORE, Befall, stall_at_call
from tests.property.scripted import GONE, Script
from tests.property.simulation import Simulation
from tests.property.stories import Refusals
from tests.property.test_resume import quietly


async def both(told: Simulation, held_up: Befall) -> Outcome:
    """The second begins a second after the first."""
    run = await told.begin_run()
    first = asyncio.ensure_future(quietly(told.drive(run, held_up)))
    await asyncio.sleep(1.0)
    await asyncio.gather(first, told.drive(run))
    return await told.finish(run)


def test_machines_asked_for_but_neither_answered_nor_listed_yet_count() -> None:
    told = Simulation(items=12, visibility_bound=40.0, script=Script(seconds=(20.0,)))
    told.use_faults(Faults(hide_fresh=40.0))
    told.check(told.play(both(told, stall_at_call("MemoryFleet.launch", AFTER, 35.0))))


def test_only_one_asks_for_a_launch_since_the_second_answer_may_differ() -> None:
    told = Simulation(items=12, visibility_bound=40.0, script=Script(seconds=(60.0,)))
    told.use_faults(Faults(hide_fresh=40.0, refuse=Refusals(1, 2)))
    told.check(told.play(both(told, stall_at_call("MemoryFleet.launch", BEFORE, 25.0))))


def test_a_run_is_over_only_when_its_machines_are_gone() -> None:
    told = Simulation(end_seconds=30.0)

    async def story() -> Outcome:
        run = await told.begin_run()
        await told.drive(run)
        assert not told.cloud.on()
        return await told.finish(run)

    told.check(told.play(story()))


def test_a_run_is_over_only_when_no_launch_of_it_can_still_be_made() -> None:
    """The first is held up between the record of a relaunch and its call; meanwhile the rest gets done."""
    told = Simulation(items=12, script=Script(mishaps={0: [GONE]}, seconds=(2.0,)))
    relaunch = stall_at_call("launches 00002.json", AFTER, 50.0)

    async def story() -> Outcome:
        run = await told.begin_run()
        first = asyncio.ensure_future(quietly(told.drive(run, relaunch)))
        await told.until(lambda: any(name.endswith("/00002.json") for name in told.cloud.store.objects.named))
        await told.drive(run)
        started = len(told.cloud.machines)
        outcome = await told.finish(run)
        await first
        assert len(told.cloud.machines) == started, told.log()
        return outcome

    told.check(told.play(story()))


def test_a_cancelled_run_is_gone_only_when_its_fresh_machines_must_be_visible() -> None:
    told = Simulation(visibility_bound=40.0, faults=Faults(hide_fresh=40.0))

    async def story() -> None:
        run = await told.begin_run()
        driving = asyncio.ensure_future(quietly(told.drive(run)))
        await told.until(lambda: told.cloud.machines)
        driving.cancel()
        for machine in told.cloud.on():
            told.cloud.freeze(machine.id)  # none of them ends by itself
        assert await cancel(told.site, run, "marked failed", told.say, deadline=120.0)
        assert not told.cloud.on()

    told.play(story())


def test_a_run_whose_machines_were_launched_long_ago_ends_without_a_wait_for_others() -> None:
    told = Simulation(items=4, script=Script(seconds=(60.0,)), visibility_bound=40.0)

    async def story() -> Outcome:
        run = await told.begin_run()
        await told.drive(run)
        over = told.clock.now()
        outcome = await told.finish(run)
        assert told.clock.now() - over < 10.0, told.log()
        return outcome

    told.check(told.play(story()))
