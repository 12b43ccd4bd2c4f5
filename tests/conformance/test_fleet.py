"""The contract of :class:`airflow_provider_spotbatch.backends.base.Fleet`, and of the notices."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import RUNNING, TERMINATED
from tests.conformance.place import LIVE_MACHINES, ONE_TOKEN, Place, described, until_state


class TestFleet:
    def test_a_launch_gives_the_machines_of_its_record(self, place: Place) -> None:
        async def main() -> None:
            outcome = await place.fleet.launch(place.record(number=4, machines=3))
            assert outcome.refusals == ()
            assert len({machine.id for machine in outcome.instances}) == 3
            assert {(machine.launch, machine.slots) for machine in outcome.instances} == {(4, 3)}
            for machine in outcome.instances:
                shown = await until_state(place.fleet, machine.id, RUNNING)
                assert (shown.launch, shown.slots, shown.interrupted) == (4, 3, False)

        asyncio.run(main())

    def test_names_of_machines_fit_everywhere(self, place: Place) -> None:
        async def main() -> None:
            for machine in (await place.fleet.launch(place.record())).instances:
                assert len(machine.id) <= 63
                assert set(machine.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")

        asyncio.run(main())

    def test_a_repeated_launch_starts_no_others(self, place: Place) -> None:
        async def main() -> None:
            first = await place.fleet.launch(place.record())
            second = await place.fleet.launch(place.record())
            assert {m.id for m in first.instances} == {m.id for m in second.instances}
            assert len(await place.fleet.describe()) == 2

        asyncio.run(main())

    def test_launches_of_one_record_at_once_are_one_launch(self, place: Place) -> None:
        place.needs(ONE_TOKEN)

        async def main() -> None:
            outcomes = await asyncio.gather(*(place.fleet.launch(place.record()) for _ in range(4)))
            assert len({frozenset(m.id for m in outcome.instances) for outcome in outcomes}) == 1
            assert all(outcome.refusals == () for outcome in outcomes)
            assert len(await place.fleet.describe()) == 2

        asyncio.run(main())

    def test_a_launch_repeated_after_the_end_starts_nothing(self, place: Place) -> None:
        async def main() -> None:
            ids = [m.id for m in (await place.fleet.launch(place.record())).instances]
            await place.fleet.terminate(ids)
            for instance in ids:
                await until_state(place.fleet, instance, TERMINATED)
            again = await place.fleet.launch(place.record())
            assert sorted(m.id for m in again.instances) == sorted(ids)
            assert {m.state for m in await place.fleet.describe()} == {TERMINATED}

        asyncio.run(main())

    def test_another_record_is_another_launch(self, place: Place) -> None:
        async def main() -> None:
            first = await place.fleet.launch(place.record(1))
            second = await place.fleet.launch(place.record(2))
            assert not {m.id for m in first.instances} & {m.id for m in second.instances}
            assert len(await place.fleet.describe()) == 4

        asyncio.run(main())

    def test_a_fleet_knows_only_its_own_run(self, place: Place) -> None:
        async def main() -> None:
            later = place.backend.fleet(Run(place.run.generation, 11), place.boot)
            assert await later.describe() == []
            await place.fleet.launch(place.record())
            assert await later.describe() == []

        asyncio.run(main())

    def test_terminated_machines_are_seen_gone(self, place: Place) -> None:
        async def main() -> None:
            gone, kept = (await place.fleet.launch(place.record())).instances
            await place.fleet.terminate([gone.id])
            end = await until_state(place.fleet, gone.id, TERMINATED)
            assert not end.interrupted
            assert (await described(place.fleet, kept.id)).state != TERMINATED

        asyncio.run(main())

    def test_terminating_is_harmless_for_the_gone_and_the_unknown(self, place: Place) -> None:
        async def main() -> None:
            await place.fleet.terminate([])
            await place.fleet.terminate(["never-was-1"])
            [machine] = (await place.fleet.launch(place.record(machines=1))).instances
            for _ in range(3):
                await place.fleet.terminate([machine.id, "never-was-1"])
            await until_state(place.fleet, machine.id, TERMINATED)
            await place.fleet.terminate([machine.id])

        asyncio.run(main())

    def test_a_machine_ends_with_its_agent(self, place: Place) -> None:
        place.needs(LIVE_MACHINES)

        async def main() -> None:
            outcome = await place.brief_fleet.launch(place.record(machines=1))
            assert outcome.refusals == ()
            [machine] = outcome.instances
            end = await until_state(place.brief_fleet, machine.id, TERMINATED)
            assert not end.interrupted
            assert end.reason == "the agent ended"

        asyncio.run(main())

    def test_a_machine_ends_at_the_lifetime_of_its_launch(self, place: Place) -> None:
        place.needs(LIVE_MACHINES)

        async def main() -> None:
            short = replace(place.record(1, machines=1), lifetime_seconds=1.0)
            [brief] = (await place.fleet.launch(short)).instances
            [lasting] = (await place.fleet.launch(place.record(2, machines=1))).instances
            assert not (await until_state(place.fleet, brief.id, TERMINATED)).interrupted
            assert (await described(place.fleet, lasting.id)).state != TERMINATED

        asyncio.run(main())

    def test_a_notice_is_heard_and_the_machine_ends_as_interrupted(self, place: Place) -> None:
        place.needs(LIVE_MACHINES)

        async def main() -> None:
            [launched] = (await place.fleet.launch(place.record(machines=1))).instances
            await until_state(place.fleet, launched.id, RUNNING)
            hearing = asyncio.ensure_future(place.machine(launched).notices().wait())
            place.interrupt(launched.id)
            assert await asyncio.wait_for(hearing, 10)
            end = await until_state(place.fleet, launched.id, TERMINATED)
            assert end.interrupted

        asyncio.run(main())

    def test_advice_to_leave_is_heard_and_is_no_notice(self, place: Place) -> None:
        place.needs(LIVE_MACHINES)

        async def main() -> None:
            [launched] = (await place.fleet.launch(place.record(machines=1))).instances
            await until_state(place.fleet, launched.id, RUNNING)
            notices = place.machine(launched).notices()
            hearing = asyncio.ensure_future(notices.wait())
            place.advise(launched.id)
            assert await asyncio.wait_for(notices.wait_for_advice(), 10)
            assert not hearing.done()
            hearing.cancel()
            assert (await described(place.fleet, launched.id)).state == RUNNING

        asyncio.run(main())

    def test_a_closed_fleet_keeps_its_machines(self, place: Place) -> None:
        async def main() -> None:
            await place.fleet.close()
            [machine] = (await place.fleet.launch(place.record(machines=1))).instances
            await place.fleet.close()
            await place.fleet.close()
            assert (await described(place.fleet, machine.id)).state != TERMINATED

        asyncio.run(main())

    def test_an_empty_record_launches_nothing(self, place: Place) -> None:
        async def main() -> None:
            outcome = await place.fleet.launch(place.record(machines=0))
            assert (outcome.instances, outcome.refusals) == ((), ())
            assert await place.fleet.describe() == []

        asyncio.run(main())
