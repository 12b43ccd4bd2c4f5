"""The contract of :class:`airflow_provider_spotbatch.backends.base.Backend` beyond one run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from airflow_provider_spotbatch.job.keys import Generation, Run, run_of_queue
from airflow_provider_spotbatch.job.launches import TERMINATED
from tests.conformance.place import Place, until, until_state

OTHER = Run(Generation("other-0123456789abcdef", 2), 3)


class TestMachinesOfAllRuns:
    def test_machines_are_listed_with_the_run_they_are_of(self, place: Place) -> None:
        async def main() -> None:
            assert await place.backend.machines() == []
            [mine] = (await place.fleet.launch(place.record(machines=1))).instances
            boot = replace(place.boot, job=OTHER.generation.job, generation=2, run=3)
            others = place.backend.fleet(OTHER, boot)
            theirs = (await others.launch(place.record(machines=2))).instances

            async def all_listed() -> bool:
                return len(await place.backend.machines()) == 3

            await until(all_listed)
            runs = {machine.instance.id: machine.run for machine in await place.backend.machines()}
            assert runs == {mine.id: place.run.tag, **{machine.id: OTHER.tag for machine in theirs}}
            await place.backend.terminate([machine.id for machine in theirs])
            for machine in theirs:
                await until_state(others, machine.id, TERMINATED)

        asyncio.run(main())

    def test_a_machine_of_any_run_is_terminated(self, place: Place) -> None:
        async def main() -> None:
            gone, kept = (await place.fleet.launch(place.record())).instances
            await place.backend.terminate([gone.id, "never-was-1"])
            await until_state(place.fleet, gone.id, TERMINATED)
            on = {m.instance.id for m in await place.backend.machines() if m.instance.state != TERMINATED}
            assert on == {kept.id}

        asyncio.run(main())

    def test_machines_that_ended_just_now_are_remembered(self, place: Place) -> None:
        async def main() -> None:
            [machine] = (await place.fleet.launch(place.record(machines=1))).instances
            await place.backend.terminate([machine.id])
            await until_state(place.fleet, machine.id, TERMINATED)
            assert await place.backend.forget_ended() == 0
            again = await place.fleet.launch(place.record(machines=1))
            assert [m.id for m in again.instances] == [machine.id]

        asyncio.run(main())


class TestQueuesOfAllRuns:
    def test_a_queue_is_named_until_it_is_deleted(self, place: Place) -> None:
        async def main() -> None:
            assert await place.backend.queues() == []
            mine, theirs = place.queue(), place.backend.queue(OTHER, 1)
            await mine.send(["one"])
            await theirs.send(["two"])
            assert [run_of_queue(name) for name in await place.backend.queues()] == [
                (place.run, 0),
                (OTHER, 1),
            ]
            await mine.delete()
            assert [run_of_queue(name) for name in await place.backend.queues()] == [(OTHER, 1)]

        asyncio.run(main())


class TestCheck:
    def test_a_place_that_works_passes_each_check_and_is_left_as_it_was(self, place: Place) -> None:
        async def main() -> None:
            checks = await place.backend.check()
            assert checks
            assert [check for check in checks if not check.ok] == []
            assert all(check.name and check.found for check in checks)
            assert await place.backend.machines() == []
            assert await place.backend.queues() == []

        asyncio.run(main())
