"""The controller killed at every boundary of a run: what comes after it loses, doubles and leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_spotbatch.job.policy import Policy
from tests.property.boundaries import AFTER, BEFORE, Boundaries, kill_at
from tests.property.scripted import GONE, NOTICE, Script
from tests.property.simulation import Simulation

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
