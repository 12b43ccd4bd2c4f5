"""Removal of old jobs over the simulated cloud, in virtual time: what is over goes, and whatever a clean
meets or leaves half-way, a later try ends with the right results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airflow_provider_spotbatch.control.blobs import FRESH_SECONDS
from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.control.clean import CleanReport, clean, find_old_jobs
from airflow_provider_spotbatch.control.retention import DAY
from airflow_provider_spotbatch.control.submit import Submitted
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.keys import Generation, Run, catalogue, owner, removed_number
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED, Outcome
from tests.property.boundaries import AFTER, BEFORE, Befall, Boundaries, Killed, kill_at, nothing
from tests.property.simulation import Simulation

KEEP = 7 * DAY
LONG = 100 * DAY


class Story(Simulation):
    """A job that ended, or was cut off, and what a clean finds of it later."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.outcomes: list[Outcome] = []

    async def clean(self, befall: Befall | None = None, keep: float = KEEP) -> CleanReport:
        site = self.site if befall is None else Boundaries(befall).around(self.site)
        return await clean(site, keep, self.say)

    async def finished_job(self) -> Run:
        run = await self.begin_run()
        await self.drive(run)
        assert (await self.finish(run)).state == SUCCEEDED
        return run

    async def cancelled_job(self) -> Run:
        """A run that was cut off when some items were done: what a retry resumes."""
        run = await self.begin_run()
        driving = asyncio.ensure_future(self.drive(run))
        await self.until(lambda: any("/results/" in name for name in self.names))
        await cancel(self.site, run, "tried out", self.say)
        await driving
        await self.finish(run)
        return run

    async def try_again(self, max_tries: int = 1) -> None:
        """Tries of the task until one succeeds, as Airflow's retries would; its results are looked at."""
        for attempt in range(3):
            try:
                submitted = await self.submit(max_tries=max_tries + attempt)
                assert submitted.run is not None
                await self.drive(submitted.run)
                self.outcomes.append(await self.finish(submitted.run))
                return self.check(self.outcomes[-1])
            except SpotBatchError as error:
                self.say(f"this try failed: {error}")
        raise AssertionError("no try succeeded\n" + self.log())

    @property
    def names(self) -> list[str]:
        return list(self.cloud.store.objects.named)

    @property
    def left(self) -> set[str]:
        """What is stored, but for the numbers that are taken for good."""
        return {name for name in self.names if not name.startswith("removed/")}


def test_a_job_goes_with_all_that_it_stored_once_its_retention_is_over() -> None:
    story = Story()

    async def told() -> None:
        run = await story.finished_job()
        stored = set(story.names)
        await asyncio.sleep(KEEP - DAY)
        assert (await story.clean()).jobs == []
        assert set(story.names) == stored
        await asyncio.sleep(DAY)
        report = await story.clean()
        assert report.jobs == [run.generation.job]
        assert (report.blobs, report.kept) == (1, 0)
        assert story.names == [removed_number(run.generation)]
        assert report.objects == len(stored) + 1, "all, and what closed it"

    story.play(told(), deadline=LONG)


def test_a_dry_run_tells_what_would_go_and_changes_nothing() -> None:
    story = Story()

    async def told() -> None:
        run = await story.finished_job()
        await asyncio.sleep(KEEP)
        stored = dict(story.cloud.store.objects.named)
        old = await find_old_jobs(story.site, KEEP)
        assert [(each.job, each.generations) for each in old.jobs] == [(run.generation.job, 1)]
        assert (len(old.blobs), old.kept) == (1, 0)
        assert (await find_old_jobs(story.site, 2 * KEEP)).kept == 1
        assert story.cloud.store.objects.named == stored

    story.play(told(), deadline=LONG)


def test_a_task_that_is_cleared_after_the_removal_gets_a_new_generation() -> None:
    story = Story()

    async def told() -> None:
        first = await story.finished_job()
        await asyncio.sleep(KEEP)
        await story.clean()
        await story.try_again()
        assert story.generation == Generation(first.generation.job, 2)
        assert f"{first.generation.prefix}/spec.json" not in story.names
        # and so on: the number stays taken however often
        await asyncio.sleep(KEEP)
        await story.clean()
        await story.try_again(max_tries=5)
        assert story.generation.number == 3

    story.play(told(), deadline=LONG)


def test_a_run_that_works_is_not_disturbed_by_cleans() -> None:
    story = Story(items=20)

    async def told() -> None:
        run = await story.begin_run()
        working = asyncio.ensure_future(story.drive(run))
        while not working.done():
            assert (await story.clean(keep=0.1)).jobs == []
            await asyncio.sleep(0.5)
        await working
        story.check(await story.finish(run))

    story.play(told())


def test_a_run_that_nobody_drives_is_kept_for_its_max_runtime_and_a_day() -> None:
    story = Story()

    async def told() -> None:
        run = await story.begin_run()
        await asyncio.sleep(story.policy.max_runtime + DAY)
        assert (await story.clean(keep=60.0)).jobs == []
        await asyncio.sleep(61.0)
        assert (await story.clean(keep=60.0)).jobs == [run.generation.job]

    story.play(told(), deadline=LONG)


def test_a_job_that_has_machines_is_kept_whatever_its_records_say() -> None:
    story = Story(boot_seconds=1.0)

    async def lasting(boot: Any, machine: Any) -> None:
        await asyncio.Event().wait()

    async def told() -> None:
        run = await story.begin_run()
        story.cloud.on_boot = lasting
        driving = asyncio.ensure_future(story.drive(run))
        await story.until(story.cloud.on)
        driving.cancel()
        await story.site.store.create(run.outcome, b"{}")
        await asyncio.sleep(1.0)
        assert (await story.clean(keep=0.5)).jobs == []
        for machine in story.cloud.on():
            story.cloud.kill(machine.id)
        await asyncio.sleep(30.0)
        assert (await story.clean(keep=0.5)).jobs == [run.generation.job]

    story.play(told())


def test_what_a_late_machine_writes_for_a_removed_job_goes_with_the_next_clean() -> None:
    story = Story()

    async def told() -> None:
        run = await story.finished_job()
        await asyncio.sleep(KEEP)
        await story.clean()
        late = [run.generation.log("i-1", 7), run.report("i-1"), catalogue("dag", run.generation.job)]
        for name in late:
            await story.site.store.write(name, b"{}")
        await story.clean()
        assert story.left == set()

    story.play(told(), deadline=LONG)


class TestBlobs:
    def test_one_that_another_job_names_stays(self) -> None:
        story = Story()

        async def told() -> None:
            await story.finished_job()
            await asyncio.sleep(KEEP)
            await story.try_again()  # another generation, by the same blob
            [blob] = [name for name in story.names if name.startswith("blobs/")]
            await asyncio.sleep(KEEP - DAY)
            assert (await story.clean()).blobs == 0
            assert blob in story.names

        story.play(told(), deadline=LONG)

    def test_a_submission_renews_one_that_is_older_than_a_day(self) -> None:
        story = Story()

        def written() -> float:
            [entry] = [
                entry for name, (_, entry) in story.cloud.store.objects.named.items() if "blobs" in name
            ]
            return entry.modified

        async def told() -> None:
            await story.finished_job()
            first = written()
            await asyncio.sleep(FRESH_SECONDS / 2)
            await story.try_again()
            assert written() == first
            await asyncio.sleep(FRESH_SECONDS)
            await story.try_again(max_tries=2)
            assert written() > first + FRESH_SECONDS

        story.play(told(), deadline=LONG)

    def test_a_young_one_stays_though_nobody_names_it_yet(self) -> None:
        story = Story()

        async def told() -> None:
            await story.site.store.write("blobs/" + "a" * 64, b"about to be named")
            assert (await story.clean(keep=1.0)).blobs == 0
            await asyncio.sleep(2 * DAY + 1)
            assert (await story.clean(keep=10 * DAY)).blobs == 0
            assert (await story.clean(keep=1.0)).blobs == 1

        story.play(told(), deadline=LONG)

    def test_one_that_is_renewed_while_a_clean_removes_others_stays(self) -> None:
        story = Story()
        first, renewed = "blobs/" + "a" * 64, "blobs/" + "b" * 64

        async def renew(number: int, when: str, name: str) -> None:
            if (number, when) == (1, BEFORE):
                await story.site.store.write(renewed, b"about to be named")

        async def told() -> None:
            for name in (first, renewed):
                await story.site.store.write(name, b"about to be named")
            await asyncio.sleep(KEEP + 1)
            assert (await story.clean(renew)).blobs == 1
            assert story.names == [renewed]

        story.play(told(), deadline=LONG)

    def test_a_job_that_lost_one_is_not_resumed_but_begins_afresh(self) -> None:
        story = Story()

        async def told() -> None:
            await story.cancelled_job()
            await story.site.store.delete([name for name in story.names if name.startswith("blobs/")])
            await story.try_again()
            assert story.generation.number == 2

        story.play(told(), deadline=LONG)


# --- a clean that is cut off, and tries that come meanwhile -------------------------------------------

MOST_BOUNDARIES = 60

FINISHED, CANCELLED, REMOVED = "finished", "cancelled", "owner alone"
STATES = pytest.mark.parametrize("state", [FINISHED, CANCELLED, REMOVED])


async def old_job(story: Story, state: str) -> str:
    run = await (story.cancelled_job() if state == CANCELLED else story.finished_job())
    await asyncio.sleep(KEEP)
    if state == REMOVED:
        stored = await story.site.store.read(owner(run.generation.job))
        await story.clean()
        await story.site.store.write(owner(run.generation.job), stored or b"")
        await asyncio.sleep(KEEP)
    return run.generation.job


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@STATES
def test_a_clean_that_was_killed_anywhere_is_ended_by_the_next_and_no_try_is_harmed(
    when: str, state: str
) -> None:
    """A try after it resumes what is whole or begins afresh."""

    async def told(story: Story, boundary: int) -> bool:
        await old_job(story, state)
        try:
            await story.clean(kill_at(boundary, when))
        except Killed:
            await story.try_again()
            await asyncio.sleep(KEEP + 2 * DAY)
            await story.clean()
            assert story.left == set(), f"killed {when} boundary {boundary}"
            return True
        return False

    at_every_boundary(told)


@pytest.mark.parametrize("to_its_end", [False, True], ids=["submitted", "to its end"])
@STATES
def test_a_try_that_comes_in_the_midst_of_a_clean_ends_with_the_right_results(
    state: str, to_its_end: bool
) -> None:
    """It goes on from what is whole, begins afresh, or fails at once and the next one does. The clean
    stands still meanwhile, and goes on when the try has submitted, or has ended."""

    async def told(story: Story, boundary: int) -> bool:
        tries: list[Any] = []

        async def come(number: int, when: str, name: str) -> None:
            if (number, when) == (boundary, BEFORE):
                tries.append(await submitted_or_refused(story))
                if to_its_end:
                    await end_well(story, tries[0])

        job = await old_job(story, state)
        await story.clean(come)
        if tries and not to_its_end:
            await end_well(story, tries[0])
        if tries:
            await still_whole(story, job)
        return bool(tries)

    at_every_boundary(told)


@STATES
def test_a_clean_that_comes_in_the_midst_of_a_submission_does_not_harm_it(state: str) -> None:
    async def told(story: Story, boundary: int) -> bool:
        cleaned: list[CleanReport] = []

        async def clean_now(number: int, when: str, name: str) -> None:
            if (number, when) == (boundary, BEFORE):
                cleaned.append(await story.clean())

        job = await old_job(story, state)
        tried = await submitted_or_refused(story, clean_now)
        if cleaned:
            await end_well(story, tried)
            await still_whole(story, job)
        return bool(cleaned)

    at_every_boundary(told)


def at_every_boundary(told: Callable[[Story, int], Coroutine[Any, Any, bool]]) -> None:
    """Tell the story with each boundary in turn, until it has no such boundary any more."""
    for boundary in range(1, MOST_BOUNDARIES):
        story = Story(items=4)
        if not story.play(told(story, boundary), deadline=LONG):
            assert boundary > 1, "nothing was ever met"
            return
    raise AssertionError(f"there are more than {MOST_BOUNDARIES} boundaries")


async def submitted_or_refused(story: Story, befall: Befall = nothing) -> Submitted | SpotBatchError:
    try:
        return await story.submit(max_tries=1, befall=befall)
    except SpotBatchError as error:
        return error


async def end_well(story: Story, tried: Submitted | SpotBatchError) -> None:
    """What was submitted ends with the right results; a try that was refused is followed by another."""
    if isinstance(tried, SpotBatchError):
        story.say(f"this try failed: {tried}")
        return await story.try_again(max_tries=2)
    assert tried.run is not None
    await story.drive(tried.run)
    story.outcomes.append(await story.finish(tried.run))
    return story.check(story.outcomes[-1])


async def still_whole(story: Story, job: str) -> None:
    """What ended last can be read, and is listed, after the clean and after another."""
    story.check(story.outcomes[-1])
    assert catalogue("dag", job) in story.names
    await story.clean()
    story.check(story.outcomes[-1])
    assert catalogue("dag", job) in story.names
