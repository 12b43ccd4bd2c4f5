"""Stories in which one process is killed, wherever it touches the world, and others go on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.run_outcome import CANCELLED, Outcome
from tests.property.boundaries import AFTER, BEFORE, Befall, Boundaries, Killed, kill_at, nothing
from tests.property.simulation import Simulation
from tests.property.test_resume import quietly, take_over, to_the_end

Story = Callable[..., Coroutine[Any, Any, Outcome]]
"""Told of a simulation, and of what befalls one process after the other."""


async def driving(told: Simulation, *befall: Befall) -> Outcome:
    return await told.whole_job(*befall)


async def finishing(told: Simulation, *befall: Befall) -> Outcome:
    run = await told.begin_run()
    await told.drive(run)
    for each in befall:
        try:
            return await told.finish(run, each)
        except Killed:
            continue
    return await told.finish(run)


async def cancelling(told: Simulation, *befall: Befall) -> Outcome:
    """Nobody drives the run any more, and its machines hear of nothing. Who is killed has a successor."""
    run = await told.begin_run()
    earlier = asyncio.ensure_future(quietly(told.drive(run)))
    await asyncio.sleep(20.0)
    for machine in told.cloud.on():
        told.cloud.freeze(machine.id)
    earlier.cancel()
    for each in (*befall, nothing):
        try:
            assert await cancel(Boundaries(each).around(told.site), run, "marked failed", told.say)
            break
        except Killed:
            await asyncio.sleep(5.0)
    outcome = await told.finish(run)
    assert outcome.state == CANCELLED
    return outcome


async def taking_over(told: Simulation, *befall: Befall) -> Outcome:
    """A cleared task's next try: it cancels and finishes the run before, and begins its own."""
    first = await told.begin_run()
    earlier = asyncio.ensure_future(quietly(told.drive(first)))
    await asyncio.sleep(25.0)
    run: Run | Outcome = await take_over(told, 1, *befall)
    await earlier
    return await to_the_end(told, run)


def walk(simulation: Callable[[], Simulation], story: Story, when: str, *, complete: bool = True) -> int:
    """Tell the story once for each boundary that its process crosses, killed there; how many there were."""
    number = 0
    while True:
        number += 1
        told, met = simulation(), []
        killing = kill_at(number, when)

        async def befall(
            at: int, moment: str, name: str, met: list[str] = met, killing: Befall = killing
        ) -> None:
            met.append(name)
            await killing(at, moment, name)

        outcome = told.play(story(told, befall))
        if len(met) < 2 * number - 1:
            return number - 1
        _check(told, outcome, complete, f"killed {when} boundary {number}, {met[-1]}")


def walk_once(
    simulation: Callable[[], Simulation],
    story: Story,
    walked: set[str],
    *,
    at_once: int = 4,
    complete: bool = True,
) -> None:
    """Kill one process before each call that is not ``walked``, whatever its object's number, and the next
    one after it: so many calls in one telling of the story."""
    while True:
        told, met = simulation(), []
        befall = [each for place in range(at_once) for each in _around(place, met, walked)]
        outcome = told.play(story(told, *befall))
        _check(told, outcome, complete, f"killed before and after each of {met}")
        if len(met) < at_once:
            return


def _around(place: int, met: list[str], walked: set[str]) -> tuple[Befall, Befall]:
    """What befalls two processes: the first call that is not walked is ``met[place]`` from then on."""

    async def before(number: int, when: str, name: str) -> None:
        if when == BEFORE and _kind(name) not in walked:
            met.append(_kind(name))
            walked.add(_kind(name))
            raise Killed

    async def after(number: int, when: str, name: str) -> None:
        if when == AFTER and met[place:] and _kind(name) == met[place]:
            raise Killed

    return before, after


def _kind(name: str) -> str:
    return re.sub("[0-9a-f]{6,}|[0-9]+", "#", name)


def _check(told: Simulation, outcome: Outcome, complete: bool, what: str) -> None:
    try:
        told.check(outcome, complete=complete)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None
