"""The controller killed at every boundary of a run: what comes after it loses, doubles and leaves nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import Outcome
from tests.property.boundaries import AFTER, BEFORE, Boundaries, kill_at, stall_at
from tests.property.scripted import GONE, NOTICE, Script
from tests.property.simulation import Simulation
from tests.property.test_resume import quietly
from tests.property.walks import cancelling, finishing, taking_over, walk

SCRIPT = Script(
    failures={1: ["error"], 2: ["memory"], 3: ["crash", "error", "timeout"]},
    mishaps={0: [GONE], 4: [NOTICE]},
    seconds=(3.0, 7.0, 20.0),
)


def simulation(**rest: Any) -> Simulation:
    return Simulation(
        items=7, script=SCRIPT, policy=Policy(concurrency=4, early_stop=None), visibility_bound=4.0, **rest
    )


def crossed_by_drive() -> list[str]:
    """The boundaries of an undisturbed run."""
    told = simulation()

    async def story() -> Boundaries:
        return await told.drive(await told.begin_run())

    boundaries: Boundaries = told.play(story())
    return boundaries.crossed


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_killed_at_every_boundary_of_the_loop(when: str) -> None:
    boundaries = crossed_by_drive()
    kinds = {name.split()[0] for name in boundaries}
    assert {"MemoryStore.create", "MemoryQueue.send", "MemoryFleet.launch", "MemoryFleet.terminate"} <= kinds
    for number in range(1, len(boundaries) + 1):
        told = simulation()
        outcome = told.play(told.whole_job(kill_at(number, when)))
        try:
            told.check(outcome)
        except AssertionError as error:
            raise AssertionError(
                f"killed {when} boundary {number}, {boundaries[number - 1]}: {error}"
            ) from None


def test_stalled_at_every_boundary_while_another_finishes_the_run() -> None:
    """It wakes when all is over, in the middle of its plan."""
    boundaries = crossed_by_drive()
    for number in range(1, len(boundaries) + 1, 2):
        told = simulation()

        async def story(told: Simulation = told, number: int = number) -> Outcome:
            run = await told.begin_run()
            stalled = asyncio.ensure_future(quietly(told.drive(run, stall_at(number, BEFORE, 2000.0))))
            await told.drive(run)
            outcome = await told.finish(run)
            await stalled
            return outcome

        outcome = told.play(story())
        try:
            told.check(outcome)
        except AssertionError as error:
            raise AssertionError(f"stalled at boundary {number}, {boundaries[number - 1]}: {error}") from None


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_killed_at_every_boundary_of_finishing(when: str) -> None:
    assert walk(simulation, finishing, when) >= 4


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_killed_at_every_boundary_of_cancelling(when: str) -> None:
    assert walk(simulation, cancelling, when, complete=False) >= 3


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_killed_at_every_boundary_of_taking_over(when: str) -> None:
    assert walk(simulation, taking_over, when) >= 8
