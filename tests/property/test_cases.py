"""Histories that went wrong in other systems of this kind, each with what is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.control.offers import INTERRUPTIONS, SPOT_WAIT_SECONDS
from airflow_provider_spotbatch.job.errors import NoCapacity, QuotaExceeded, Refusal
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, SPOT_THEN_ON_DEMAND, Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_outcome import FAILED, SUCCEEDED, Outcome
from tests.property.boundaries import AFTER, BEFORE, kill_at_call
from tests.property.scripted import FROZEN, GONE, NOTICE, Script
from tests.property.simulation import Simulation

UNFORGIVING = Policy(concurrency=2, item_retries=0, early_stop=None)


class TestALostMachine:
    def test_gone_without_notice_its_item_runs_again_elsewhere(self) -> None:
        told = Simulation(policy=UNFORGIVING, script=Script(mishaps={0: [GONE]}))
        told.check(told.play(told.whole_job()))
        assert len({run.instance for run in told.runs if run.item == 0}) == 2

    def test_a_late_failure_of_an_earlier_attempt_changes_nothing(self) -> None:
        """The item fails on a machine that is frozen before it can say so; elsewhere it succeeds."""
        script = Script(
            mishaps={0: [FROZEN]},
            fails_frozen=frozenset({0}),
            seconds=(0.2, 0.2, 120.0, 0.2),
            frozen_seconds=60.0,
        )
        policy = Policy(concurrency=3, item_retries=0, early_stop=None)
        told = Simulation(items=4, policy=policy, script=script, slots=1)
        told.check(told.play(told.whole_job()))
        assert sorted(run.done for run in told.runs if run.item == 0) == [True, True]

    def test_two_interruptions_in_a_row_spend_no_retries(self) -> None:
        told = Simulation(policy=UNFORGIVING, script=Script(mishaps={2: [NOTICE, GONE]}))
        outcome = told.play(told.whole_job())
        told.check(outcome)
        assert outcome.state == SUCCEEDED
        assert len([run for run in told.runs if run.item == 2]) == 3

    def test_reclaimed_while_booting_is_no_failure_of_the_job(self) -> None:
        told = Simulation(policy=UNFORGIVING, boot_seconds=30.0)

        async def story() -> Outcome:
            run = await told.begin_run()
            asyncio.get_running_loop().call_later(150.0, lambda: told.use_faults(Faults()))
            told.use_faults(Faults(die_booting=1.0))
            await told.drive(run)
            return await told.finish(run)

        outcome = told.play(story())
        told.check(outcome)
        assert sum(machine.interrupted for machine in told.cloud.machines.values()) >= 3

    def test_a_frozen_machine_is_replaced_and_its_late_result_changes_nothing(self) -> None:
        script = Script(mishaps={0: [FROZEN]}, seconds=(10.0,), frozen_seconds=60.0)
        told = Simulation(items=4, policy=UNFORGIVING, script=script, slots=1)
        told.check(told.play(told.whole_job()))
        runs = [run for run in told.runs if run.item == 0]
        assert len({run.instance for run in runs}) == 2
        woken = told.cloud.machines[runs[0].instance]
        assert woken.ended is not None

    def test_a_machine_that_stays_silent_is_ended_and_replaced(self) -> None:
        script = Script(mishaps={0: [FROZEN]}, seconds=(10.0,), frozen_seconds=5000.0)
        policy = Policy(concurrency=1, item_retries=0, early_stop=None)
        told = Simulation(items=2, policy=policy, script=script, slots=1, end_seconds=10.0)
        told.check(told.play(told.whole_job(), deadline=400.0))


class TestMoney:
    @pytest.mark.parametrize("when", [BEFORE, AFTER])
    @pytest.mark.parametrize("call", ["MemoryFleet.launch", "00001.result.json"])
    def test_killed_between_asking_for_machines_and_recording_the_answer(self, call: str, when: str) -> None:
        told = Simulation()
        outcome = told.play(told.whole_job(kill_at_call(call, when), pause=200.0))
        told.check(outcome)

    def test_of_ten_machines_one_is_refused(self) -> None:
        def refuse(record: LaunchRecord, ordinal: int) -> Refusal | None:
            return NoCapacity("not this one") if (record.number, ordinal) == (1, 4) else None

        told = Simulation(items=20, policy=Policy(concurrency=10, early_stop=None), slots=1)
        told.use_faults(Faults(refuse=refuse))
        told.check(told.play(told.whole_job()))
        first = [machine for machine in told.cloud.machines.values() if machine.boot.launch == 1]
        assert len(first) == 9

    def test_a_terminate_that_failed_is_tried_until_the_machine_is_seen_gone(self) -> None:
        told = Simulation(end_seconds=10.0)

        async def story() -> Outcome:
            run = await told.begin_run()
            told.use_faults(Faults(fail_terminate=1.0))
            asyncio.get_running_loop().call_later(60.0, lambda: told.use_faults(Faults()))
            driving = asyncio.ensure_future(told.drive(run))
            await told.until(lambda: len([each for each in told.runs if each.done]) == told.items)
            await asyncio.sleep(3.0)
            for machine in told.cloud.on():
                told.cloud.freeze(machine.id)  # none ends by itself
            await asyncio.wait_for(driving, 90.0)
            assert not told.cloud.on()
            return await told.finish(run)

        told.check(told.play(story()))
        assert any(line.count("could not be ended") for line in told.said)

    def test_cleared_while_it_runs_the_old_machines_end_before_new_ones_start(self) -> None:
        told = Simulation(script=Script(seconds=(60.0,)), end_seconds=20.0)

        async def story() -> Outcome:
            first = await told.begin_run()
            old = asyncio.ensure_future(told.drive(first))
            await asyncio.sleep(40.0)
            second = await told.begin_run(max_tries=1)
            assert second.number == 2
            assert not told.cloud.on()
            await asyncio.gather(old, told.drive(second))
            return await told.finish(second)

        told.check(told.play(story()))

    def test_the_relaunch_after_an_interruption_is_itself_interrupted_before_it_is_listed(self) -> None:
        script = Script(mishaps={0: [GONE]}, seconds=(100.0,))
        told = Simulation(script=script, visibility_bound=40.0)
        told.use_faults(Faults(hide_fresh=40.0))

        async def story() -> Outcome:
            run = await told.begin_run()
            driving = asyncio.ensure_future(told.drive(run))
            second = await told.until(lambda: [m for m in told.cloud.machines.values() if m.boot.launch == 2])
            told.cloud.reclaim(second[0].id, notice=False)
            await driving
            return await told.finish(run)

        told.check(told.play(story()))


class TestThrottlingAndCapacity:
    def test_describe_refused_for_two_minutes_neither_fails_nor_doubles(self) -> None:
        told = Simulation(items=12, script=Script(seconds=(30.0,)), visibility_bound=10.0)

        async def story() -> Outcome:
            run = await told.begin_run()
            loop = asyncio.get_running_loop()
            loop.call_later(20.0, lambda: told.use_faults(Faults(throttle_describe=1.0)))
            loop.call_later(140.0, lambda: told.use_faults(Faults()))
            await told.drive(run)
            return await told.finish(run)

        told.check(told.play(story()))
        assert len(told.cloud.machines) == 2

    def test_no_capacity_for_ten_minutes_then_some(self) -> None:
        told = Simulation()
        outcome = told.play(self._no_capacity(told))
        told.check(outcome)
        assert any("waiting for machines: none to be had" in line for line in told.said)

    def test_no_capacity_for_longer_than_max_runtime_fails_with_the_reason(self) -> None:
        told = Simulation(policy=Policy(concurrency=4, max_runtime=300.0))
        outcome = told.play(self._no_capacity(told))
        told.check(outcome, complete=False)
        assert outcome.state == FAILED
        assert "max_runtime" in outcome.message
        assert "none to be had" in outcome.message

    async def _no_capacity(self, told: Simulation) -> Outcome:
        told.use_faults(Faults(refuse=lambda record, ordinal: NoCapacity("none to be had", remedy="wait")))
        asyncio.get_running_loop().call_later(600.0, lambda: told.use_faults(Faults()))
        return await told.whole_job()

    def test_a_quota_of_nothing_fails_at_once_and_names_its_cure(self) -> None:
        def refuse(record: LaunchRecord, ordinal: int) -> Refusal | None:
            return QuotaExceeded("your quota is 0", remedy="ask for more", below_one_machine=True)

        told = Simulation()
        told.use_faults(Faults(refuse=refuse))
        outcome = told.play(told.whole_job(), deadline=180.0)
        told.check(outcome, complete=False)
        assert outcome.state == FAILED
        assert not outcome.retryable
        assert "your quota is 0" in outcome.message
        assert "ask for more" in outcome.message


EIGHT, TWO = Offer("spot-8", 8, usd_per_hour=0.4), Offer("spot-2", 2, usd_per_hour=0.12)
DEAR = Offer("on-demand-8", 8, usd_per_hour=1.2, purchase=ON_DEMAND)


def bought(told: Simulation) -> list[tuple[str, str, int]]:
    """The offers that machines came from, in order: way of buying, name, machines."""
    machines = Counter(machine.boot.launch for machine in told.cloud.machines.values())
    records = (
        LaunchRecord.from_bytes(data)
        for name, (data, _) in sorted(told.cloud.store.objects.named.items())
        if "/launches/" in name and name.count(".") == 1
    )
    return [(each.purchase, each.offer, machines[each.number]) for each in records if machines[each.number]]


class TestSeveralOffers:
    def test_the_remainder_comes_from_smaller_machines(self) -> None:
        policy = Policy(concurrency=20, early_stop=None)
        told = Simulation(items=40, policy=policy, script=Script(seconds=(60.0,)), offers=[EIGHT, TWO])
        told.check(told.play(told.whole_job()))
        assert bought(told)[:2] == [(SPOT, "spot-8", 2), (SPOT, "spot-2", 2)]
        assert told.cloud.most_slots == 20

    def test_what_has_no_capacity_is_made_up_from_others_and_asked_for_again_later(self) -> None:
        policy = Policy(concurrency=16, early_stop=None)
        told = Simulation(items=64, policy=policy, script=Script(seconds=(300.0,)), offers=[EIGHT, TWO])

        began = told.clock.now()

        def refuse(record: LaunchRecord, ordinal: int) -> Refusal | None:
            """The large ones come back after a minute; of the small ones there were but two."""
            come_back = record.offer == "spot-8" and told.clock.now() > began + 60.0
            first_two = record.offer == "spot-2" and record.number == 2 and ordinal < 2
            return None if come_back or first_two else NoCapacity("none left")

        told.use_faults(Faults(refuse=refuse))
        told.check(told.play(told.whole_job()))
        assert bought(told) == [(SPOT, "spot-2", 2), (SPOT, "spot-8", 1), (SPOT, "spot-8", 1)]

    def test_without_spot_capacity_the_job_goes_on_on_demand_after_a_wait(self) -> None:
        policy = Policy(concurrency=8, early_stop=None, purchase=SPOT_THEN_ON_DEMAND)
        told = Simulation(items=16, policy=policy, offers=[EIGHT, TWO, DEAR])

        def refuse(record: LaunchRecord, ordinal: int) -> Refusal | None:
            return NoCapacity("no spot") if record.purchase == SPOT else None

        told.use_faults(Faults(refuse=refuse))
        told.check(told.play(told.whole_job(), deadline=SPOT_WAIT_SECONDS + 200.0))
        assert bought(told) == [(ON_DEMAND, "on-demand-8", 1)]

    def test_machines_that_are_taken_back_again_and_again_are_replaced_by_those_that_are_not(self) -> None:
        policy = Policy(concurrency=8, early_stop=None, purchase=SPOT_THEN_ON_DEMAND)
        told = Simulation(
            items=16, policy=policy, script=Script(seconds=(600.0,)), offers=[EIGHT, TWO, DEAR], seed=3
        )
        told.use_faults(Faults(reclaims_per_hour=20.0))
        told.check(told.play(told.whole_job()))
        ways = [way for way, _, _ in bought(told)]
        assert ways == sorted(ways, reverse=True)
        assert ways[-1] == ON_DEMAND
        assert sum(machine.interrupted for machine in told.cloud.machines.values()) == INTERRUPTIONS

    def test_a_spot_quota_of_nothing_is_no_end_where_machines_may_be_bought_on_demand(self) -> None:
        policy = Policy(concurrency=8, early_stop=None, purchase=SPOT_THEN_ON_DEMAND)
        told = Simulation(items=16, policy=policy, offers=[EIGHT, DEAR])

        def refuse(record: LaunchRecord, ordinal: int) -> Refusal | None:
            return QuotaExceeded("0 vCPUs", below_one_machine=True) if record.purchase == SPOT else None

        told.use_faults(Faults(refuse=refuse))
        told.check(told.play(told.whole_job(), deadline=180.0))
        assert bought(told) == [(ON_DEMAND, "on-demand-8", 1)]

    def test_prices_are_those_of_the_hour_in_which_a_machine_is_launched(self) -> None:
        policy = Policy(concurrency=8, early_stop=None)
        script = Script(seconds=(9000.0,), mishaps={0: [GONE]})
        told = Simulation(items=8, policy=policy, script=script, offers=[EIGHT])

        async def story() -> Outcome:
            run = await told.begin_run()
            driving = asyncio.ensure_future(told.drive(run))
            await told.until(lambda: told.cloud.on())
            told.cloud.offers = [replace(EIGHT, usd_per_hour=0.9)]
            await driving
            return await told.finish(run)

        told.check(told.play(story()))
        assert [machine.usd_per_hour for machine in told.cloud.machines.values()] == [0.4, 0.9]


class TestAFinishedRun:
    @pytest.mark.parametrize("gb", [2.0, 4.0])
    def test_it_is_finished_where_nobody_may_ask_for_prices(self, gb: float) -> None:
        """Whether an item that outgrew its memory has failed for good depends on the machines there were."""
        policy = Policy(concurrency=4, early_stop=None)
        script = Script(failures={1: ["memory", "memory", "memory"]})
        told = Simulation(items=4, policy=policy, script=script, largest=Resources(memory_gb=gb))

        async def story() -> Outcome:
            run = await told.begin_run()
            await told.drive(run)
            told.use_faults(Faults(throttle_offers=1.0))
            outcome = await told.finish(run)
            assert await told.site.backend.queues() == []
            return outcome

        outcome = told.play(story())
        assert (outcome.state, outcome.ok, outcome.failed) == (FAILED, 3, 1)
        assert len([run for run in told.runs if run.item == 1]) == gb / 2, "one try in each memory"
