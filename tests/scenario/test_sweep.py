"""The sweep over the simulated cloud, in virtual time: what is over ends, what may be alive is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.control.sweep import ITEMS_SECONDS, LATE_SECONDS, SweepReport, sweep
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keys import Generation, Run, removed_number
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_record import RunRecord
from tests.property.simulation import Simulation

HOUR = 3600.0


async def lasting(boot: Any, machine: Any) -> None:
    """An agent that ends by nothing of its own."""
    await asyncio.Event().wait()


class Story(Simulation):
    """Runs whose agents do nothing, each with a machine and a message in its queue."""

    def __init__(self, **cloud: Any) -> None:
        super().__init__(end_seconds=2.0, **cloud)
        self.cloud.on_boot = lasting

    async def run_with_a_machine(self, job: str, *, lifetime: float = 100 * HOUR) -> Run:
        run = Run(Generation(f"{job}-0123456789abcdef", 1), 1)
        record = RunRecord(1, Policy(max_runtime=HOUR), 1, 0, "", created=self.clock.now())
        await self.site.store.create(run.run, record.to_bytes(self.site.signer(run.generation)))
        await self.launch(run, lifetime)
        await self.site.backend.queue(run, 0).send(["a message"])
        return run

    async def launch(self, run: Run, lifetime: float = 100 * HOUR) -> None:
        from airflow_provider_spotbatch.job.boot import Boot

        boot = Boot("memory", "memory://", run.generation.job, 1, 1, "", lifetime=lifetime)
        await self.site.backend.fleet(run, boot).launch(LaunchRecord(1, slots=(1,), token="t"))

    async def sweep(self, **options: Any) -> SweepReport:
        return await sweep(self.site, self.say, **options)

    @property
    def runs_with_machines(self) -> set[Run]:
        return {machine.run for machine in self.cloud.on()}


@pytest.mark.parametrize("over", ["outcome", "cancel"])
def test_machines_and_queues_of_a_run_that_is_over_are_ended(over: str) -> None:
    story = Story()

    async def told() -> None:
        alive, ended = await story.run_with_a_machine("alive"), await story.run_with_a_machine("ended")
        await story.site.store.create(getattr(ended, over), b"{}")
        report = await story.sweep()
        assert story.runs_with_machines == {alive}
        assert await story.site.backend.queues() == [alive.queue(0)]
        assert (report.alive, report.queues) == (1, (ended.queue(0),))
        assert len(report.machines) == 1

    story.play(told())


def test_a_run_that_nobody_drives_for_hours_is_left_alone() -> None:
    story = Story()

    async def told() -> None:
        alive = await story.run_with_a_machine("alive")
        await asyncio.sleep(HOUR + LATE_SECONDS / 2)
        report = await story.sweep()
        assert story.runs_with_machines == {alive}
        assert report == SweepReport((), (), (), 0, alive=1)

    story.play(told())


def test_machines_past_the_time_of_their_run_are_ended() -> None:
    story = Story()

    async def told() -> None:
        await story.run_with_a_machine("late")
        await asyncio.sleep(HOUR + LATE_SECONDS + 1)
        assert len((await story.sweep()).machines) == 1
        assert story.cloud.on() == []

    story.play(told())


def test_machines_of_a_run_that_the_store_does_not_know_are_ended() -> None:
    story = Story()

    async def told() -> None:
        run = Run(Generation("cleaned-0123456789abcdef", 1), 1)
        await story.launch(run)
        await story.site.backend.queue(run, 0).send(["perhaps another connection's"])
        await story.sweep()
        assert story.cloud.on() == []
        assert await story.site.backend.queues() == [run.queue(0)]

    story.play(told())


def test_queues_of_a_job_that_was_cleaned_away_are_removed() -> None:
    story = Story()

    async def told() -> None:
        run = Run(Generation("cleaned-0123456789abcdef", 1), 1)
        await story.site.backend.queue(run, 0).send(["left"])
        await story.site.store.create(removed_number(run.generation), b"")
        await story.site.store.create(run.queue_deleted(0), b"")  # as clouds do that forget deleted queues
        assert (await story.sweep()).queues == (run.queue(0),)
        assert await story.site.backend.queues() == []
        assert await story.site.store.list_objects("jobs") == []

    story.play(told())


def test_a_run_signed_with_another_key_is_left_alone_and_named() -> None:
    story = Story()

    async def told() -> None:
        alive = await story.run_with_a_machine("alive")
        record = RunRecord(1, Policy(), 1, 0, "")
        other = story.site.signer(Generation("other", 9))
        await story.site.store.write(alive.run, record.to_bytes(other))
        await story.sweep()
        assert story.runs_with_machines == {alive}
        assert any(alive.tag in line and "left alone" in line for line in story.said)

    story.play(told())


def test_a_terminate_that_failed_is_tried_again_until_the_machine_is_seen_gone() -> None:
    story = Story(seed=1)

    async def told() -> None:
        ended = await story.run_with_a_machine("ended")
        await story.site.store.create(ended.outcome, b"{}")
        story.use_faults(Faults(fail_terminate=0.8, throttle_describe=0.3, latency=0.2))
        await story.sweep()
        assert story.cloud.on() == []
        assert any("ERROR: machines" in line and "could not be ended" in line for line in story.said)

    story.play(told())


def test_a_machine_said_to_have_ended_is_ended_though_the_run_is_over_in_our_records() -> None:
    """The controller's own terminate failed, its run was closed all the same, its agent reports no more."""
    story = Story()

    async def told() -> None:
        ended = await story.run_with_a_machine("ended")
        [machine] = story.cloud.on()
        story.use_faults(Faults(fail_terminate=1.0))
        await story.site.store.create(ended.loss(machine.id), b"{}")
        await story.site.store.create(ended.outcome, b"{}")
        with pytest.raises(
            SpotBatchError, match=f"not seen gone within 60 s and may cost money: {machine.id}"
        ):
            await story.sweep(deadline=60.0)
        assert await story.site.backend.queues() == [], "all else was done"
        story.use_faults(Faults())
        assert (await story.sweep()).machines == (machine.id,)
        assert story.cloud.on() == []

    story.play(told())


def test_only_items_that_no_specification_names_are_removed_and_only_after_a_day() -> None:
    story = Story()

    async def told() -> None:
        run = await story.begin_run()
        mine = {e.name for e in await story.site.store.list_objects("jobs") if "/items/" in e.name}
        dead = [
            run.generation.item_part("dead", 0),
            run.generation.item_offsets("dead", 0),
            Generation("never-specified-0123456789abcdef", 1).item_part("dead", 0),
        ]
        for name in dead:
            await story.site.store.write(name, b"items")
        assert (await story.sweep()).submissions == ()
        await asyncio.sleep(ITEMS_SECONDS)
        fresh = run.generation.item_part("fresh", 0)
        await story.site.store.write(fresh, b"items")
        assert len((await story.sweep()).submissions) == 2
        left = {e.name for e in await story.site.store.list_objects("jobs") if "/items/" in e.name}
        assert left == mine | {fresh}

    story.play(told(), deadline=30 * HOUR)


def test_a_second_sweep_finds_nothing_to_do() -> None:
    story = Story()

    async def told() -> None:
        ended = await story.run_with_a_machine("ended")
        await story.site.store.create(ended.outcome, b"{}")
        await story.sweep()
        assert await story.sweep() == SweepReport((), (), (), 0, alive=0)

    story.play(told())


def test_a_run_that_works_is_not_disturbed_by_sweeps() -> None:
    story = Simulation(items=40)

    async def told() -> None:
        run = await story.begin_run()
        working = asyncio.ensure_future(story.drive(run))
        while not working.done():
            report = await sweep(story.site, story.say)
            assert (report.machines, report.queues) == ((), ())
            await asyncio.sleep(0.5)
        await working
        story.check(await story.finish(run))

    story.play(told())
