"""What a run may cost, whoever is there to watch it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.decide import CONTROL_SECONDS
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import FAILED, Outcome
from tests.property.boundaries import AFTER, BEFORE, Befall, kill_at, kill_at_call
from tests.property.scripted import GONE, NOTICE, Script
from tests.property.simulation import DEADLINE, Simulation
from tests.property.stories import befalls
from tests.property.test_resume import quietly, to_the_end
from tests.property.test_safety import controllers

USD_PER_SECOND = 0.01

REACTION = CONTROL_SECONDS + 10.0 + 5.0
"""Seconds until agents read a new control.json, and until machines that were told to end are gone."""


def dear(budget_usd: float, concurrency: int = 4, **rest: Any) -> Simulation:
    """A cent a second for each machine of one slot, and work for an hour."""
    return Simulation(
        **{
            "items": 60,
            "policy": Policy(concurrency=concurrency, early_stop=None, budget_usd=budget_usd),
            "script": Script(seconds=(240.0,)),
            "slots": 1,
            "usd_per_hour": USD_PER_SECOND * 3600,
            **rest,
        }
    )


def check_cost(told: Simulation, budget_usd: float, concurrency: int = 4, more_seconds: float = 0.0) -> None:
    """``more_seconds``: what else the story lets each machine run on without anybody to tell it."""
    most = budget_usd + concurrency * USD_PER_SECOND * (REACTION + more_seconds)
    assert told.cloud.cost() <= most, f"${told.cloud.cost():.2f} of ${budget_usd:.2f}\n{told.log()}"


TWO_SIZES = [Offer(f"spot-{slots}", slots, usd_per_hour=slots * USD_PER_SECOND * 3600) for slots in (3, 1)]


@given(
    budget_usd=st.sampled_from([1.0, 3.0, 12.0]),
    befall=st.lists(befalls(), max_size=4),
    pause=st.sampled_from([1.0, 30.0, 500.0]),
    seed=st.integers(0, 1000),
    offers=st.sampled_from([None, TWO_SIZES]),
)
def test_the_budget_holds_whatever_befalls_the_controllers(
    budget_usd: float, befall: list[Befall], pause: float, seed: int, offers: list[Offer] | None
) -> None:
    told = dear(budget_usd, seed=seed, offers=offers)

    async def story() -> Outcome:
        run = await told.begin_run()
        told.use_faults(Faults(reclaims_per_hour=20.0, own_create=0.05))
        await controllers(told, run, befall, pause)
        return await told.finish_at_last(run)

    outcome = told.play(story())
    told.check(outcome, complete=False)
    assert outcome.state == FAILED
    assert not outcome.retryable
    assert "budget" in outcome.message
    check_cost(told, budget_usd)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("boundary", [4, 8, 12, 16, 20])
def test_agents_keep_to_the_budget_with_nobody_left(boundary: int, when: str) -> None:
    """The one controller dies early; no other comes for an hour, and by then all has ended by itself."""
    told = dear(8.0, settings={"orphan_after": 86_400.0})

    async def story() -> Outcome:
        run = await told.begin_run()
        assert await told.drive_until_killed(run, kill_at(boundary, when))
        await asyncio.sleep(3600.0)
        assert not told.cloud.on(), told.log()
        check_cost(told, 8.0, more_seconds=told.cloud.boot_seconds)
        await told.drive(run)
        return await told.finish(run)

    told.check(told.play(story()), complete=False)


@given(
    budget_usd=st.sampled_from([1.0, 3.0, 12.0]),
    boundary=st.integers(1, 150),
    when=st.sampled_from([BEFORE, AFTER]),
    seed=st.integers(0, 1000),
    offers=st.sampled_from([None, TWO_SIZES]),
)
def test_the_machines_timers_alone_keep_the_budget(
    budget_usd: float, boundary: int, when: str, seed: int, offers: list[Offer] | None
) -> None:
    """The controller is killed at any call, and with it every agent stands still for good."""
    told = dear(budget_usd, seed=seed, offers=offers, script=Script(seconds=(20.0,)))

    async def story() -> None:
        run = await told.begin_run()
        told.use_faults(Faults(reclaims_per_hour=60.0, without_notice=0.5, lose_answer=0.1))
        await told.drive_until_killed(run, kill_at(boundary, when))
        told.use_faults(Faults())
        for machine in told.cloud.on():
            told.cloud.freeze(machine.id)
        await asyncio.sleep(DEADLINE / 2)

    told.play(story())
    assert not told.cloud.on(), told.log()
    one_tick = told.policy.poll_interval * 4 * USD_PER_SECOND
    assert told.cloud.cost() <= budget_usd + one_tick, told.log()


def test_a_larger_fleet_learns_what_is_left_before_it_spends() -> None:
    """The controller dies as the second machine starts: the first must not go by its old share."""
    told = dear(6.0, concurrency=2, script=Script(seconds=(400.0,), mishaps={0: [GONE]}))

    async def story() -> Outcome:
        run = await told.begin_run()
        await told.drive_until_killed(run, kill_at_call("00002.json", AFTER))
        await told.drive_until_killed(run, kill_at_call("00002.result.json", BEFORE))
        await asyncio.sleep(1500.0)
        check_cost(told, 6.0, concurrency=2, more_seconds=told.cloud.boot_seconds)
        await told.drive(run)
        return await told.finish(run)

    told.check(told.play(story()), complete=False)


def test_the_budget_covers_all_runs_of_a_generation() -> None:
    told = dear(6.0)

    async def story() -> Outcome:
        run = await told.begin_run()
        for tries in range(1, 4):
            driving = asyncio.ensure_future(quietly(told.drive(run)))
            await asyncio.sleep(60.0)
            run = await told.begin_run(max_tries=tries)
            await driving
        return await to_the_end(told, run)

    outcome = told.play(story())
    assert "budget" in outcome.message
    check_cost(told, 6.0, more_seconds=30.0)
    assert outcome.cost_usd == pytest.approx(told.cloud.cost(), rel=0.25)


def test_what_was_spent_while_nobody_looked_is_reckoned() -> None:
    told = dear(100.0)

    async def story() -> float:
        run = await told.begin_run()
        await told.drive_until_killed(run, kill_at(40, BEFORE))
        await asyncio.sleep(300.0)
        controller = Controller(told.site, run, told.say)
        await controller.tick()
        return controller.observer.spent_usd

    spent = told.play(story())
    assert spent == pytest.approx(told.cloud.cost(), rel=0.05)


def test_limits_of_the_connection_are_never_passed() -> None:
    told = dear(1000.0, concurrency=8, items=12, settings={"max_usd_per_hour": 3 * USD_PER_SECOND * 3600})
    told.check(told.play(told.whole_job()))
    assert told.cloud.most_slots == 3
    told = dear(1000.0, concurrency=8, items=12, settings={"max_instances": 2})
    told.check(told.play(told.whole_job()))
    assert told.cloud.most_slots == 2


@pytest.mark.parametrize("mishap", [NOTICE, GONE])
def test_the_account_tells_work_loss_and_boot_apart(mishap: str) -> None:
    script = Script(seconds=(240.0,), mishaps={0: [mishap], 5: [mishap]})
    told = dear(1000.0, items=12, script=script, boot_seconds=30.0)
    outcome = told.play(told.whole_job())
    spending = outcome.spending
    assert spending is not None
    assert spending.total_usd == pytest.approx(outcome.cost_usd, rel=0.01)
    assert spending.work_usd == pytest.approx(12 * 240 * USD_PER_SECOND, rel=0.1)
    machines = len(told.cloud.machines)
    assert spending.boot_usd == pytest.approx(machines * 30 * USD_PER_SECOND, rel=0.5)
    assert 0 < spending.lost_usd <= 2 * 240 * USD_PER_SECOND
    assert spending.saving is None
    assert sum("per 1,000 items" in line for line in told.said) == 1
    assert sum("an hour" in line for line in told.said) == 1
