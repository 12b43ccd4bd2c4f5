"""Tries that follow each other, and overlap: a later one takes over only once the earlier is seen gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED, Outcome
from tests.property.boundaries import AFTER, BEFORE, Befall, Killed, nothing, stall_at_call
from tests.property.scripted import FROZEN, Script
from tests.property.simulation import Simulation
from tests.property.stories import befalls, cloud_faults, simulations
from tests.property.test_safety import misbehave


async def take_over(told: Simulation, tries: int, *befall: Befall) -> Run | Outcome:
    """Submit as try after try until one takes: each may give way to another, or find machines that stay."""
    left = [*befall, nothing]
    while True:
        try:
            submitted = await told.submit(max_tries=tries, befall=left[0])
        except Killed:
            del left[0]
        except SpotBatchError as error:
            told.say(f"a try gave way: {error}")
        else:
            return submitted.run or submitted.outcome  # type: ignore[return-value]
        await asyncio.sleep(30.0)


async def quietly(work: Coroutine[Any, Any, Any]) -> None:
    """An earlier try's controller: it may be killed, or find its run gone."""
    try:
        await work
    except (Killed, SpotBatchError):
        return


async def to_the_end(told: Simulation, run: Run | Outcome) -> Outcome:
    if isinstance(run, Outcome):
        return run
    while True:
        try:
            await told.drive(run)
        except Exception as error:
            told.say(f"a controller gave up: {error!r}")
            await asyncio.sleep(30.0)
        else:
            return await told.finish_at_last(run)


@given(
    told=simulations(),
    faults=cloud_faults(),
    clears=st.lists(st.sampled_from([0.0, 1.0, 8.0, 50.0, 130.0]), min_size=1, max_size=3),
    controller=befalls(),
    submitter=befalls(),
)
def test_clears_in_quick_succession(
    told: Simulation, faults: Faults, clears: list[float], controller: Befall, submitter: Befall
) -> None:
    """While the controllers of earlier tries may still run, or be stalled."""

    async def story() -> Outcome:
        run: Run | Outcome = await told.begin_run()
        misbehave(told, faults)
        earlier: list[asyncio.Future[None]] = []
        for tries, seconds in enumerate(clears, 1):
            if isinstance(run, Run):
                earlier.append(asyncio.ensure_future(quietly(told.drive(run, controller))))
            await asyncio.sleep(seconds)
            run = await take_over(told, tries, submitter)
        outcome = await to_the_end(told, run)
        await asyncio.gather(*earlier)
        return outcome

    outcome = told.play(story())
    told.check_nothing_left(outcome.of_run)
    told.check_slots()
    told.check_runs()
    told.check_outcomes(outcome, True, told.policy.item_retries)


def test_two_clears_at_once_make_one_run() -> None:
    told = Simulation(script=Script(seconds=(40.0,)))

    async def story() -> Outcome:
        first = await told.begin_run()
        driving = asyncio.ensure_future(quietly(told.drive(first)))
        await asyncio.sleep(20.0)
        runs = await asyncio.gather(
            told.submit(max_tries=1), told.submit(max_tries=2), return_exceptions=True
        )
        taken = [each for each in runs if not isinstance(each, BaseException)]
        refused = [each for each in runs if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [SpotBatchError]
        await driving
        return await to_the_end(told, taken[0].run or taken[0].outcome)  # type: ignore[arg-type]

    told.check(told.play(story()))


def test_a_controller_stalled_before_its_launch_and_woken_when_the_run_is_over_starts_nothing() -> None:
    for when in (BEFORE, AFTER):
        for call in ("00001.json", "MemoryFleet.launch", "MemoryQueue.send", "chunks"):
            told = Simulation()

            async def story(told: Simulation = told, call: str = call, when: str = when) -> Outcome:
                run = await told.begin_run()
                stalled = asyncio.ensure_future(quietly(told.drive(run, stall_at_call(call, when, 900.0))))
                await asyncio.sleep(5.0)
                await told.drive(run)
                outcome = await told.finish(run)
                started = len(told.cloud.machines)
                await stalled
                assert len(told.cloud.machines) == started, f"{call}, {when}\n{told.log()}"
                return outcome

            told.check(told.play(story()))


def test_a_machine_frozen_across_a_resume_runs_nothing_when_it_wakes() -> None:
    """It belongs to a run that is over, and cannot be ended while it is frozen."""
    script = Script(mishaps={0: [FROZEN]}, seconds=(30.0,), frozen_seconds=400.0)
    told = Simulation(items=8, script=script, policy=Policy(concurrency=2, early_stop=None), slots=1)

    async def story() -> Outcome:
        first = await told.begin_run()
        driving = asyncio.ensure_future(quietly(told.drive(first)))
        await asyncio.sleep(50.0)
        second = await take_over(told, 1)
        await driving
        return await to_the_end(told, second)

    outcome = told.play(story())
    told.check(outcome)
    assert outcome.state == SUCCEEDED
    assert outcome.run == 2


def test_what_an_earlier_run_finished_is_not_run_again() -> None:
    told = Simulation(items=10, script=Script(failures={3: ["error"]}, seconds=(5.0, 40.0)))

    async def story() -> Outcome:
        first = await told.begin_run()
        driving = asyncio.ensure_future(quietly(told.drive(first)))
        await asyncio.sleep(30.0)
        second = await take_over(told, 1)
        await driving
        return await to_the_end(told, second)

    told.check(told.play(story()))
    done = [run.item for run in told.runs if run.done and told.script.ends_as(run.item, run.attempt) == "ok"]
    assert sorted(done) == list(range(10))
