"""The simulated cloud misbehaves as it is told, within the contracts of the ports."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from airflow_provider_spotbatch.backends import open_backend
from airflow_provider_spotbatch.backends.memory import MemoryBackend, MemoryCloud, SimulatedMachine
from airflow_provider_spotbatch.backends.memory_clock import VirtualClock
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import (
    InvalidInput,
    NoCapacity,
    QuotaExceeded,
    Refusal,
    StoreUnavailable,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import PENDING, RUNNING, TERMINATED, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources

RUN = Run(Generation("job-0123456789abcdef", 1), 1)


class World:
    """A cloud under a virtual clock, and one run on it."""

    def __init__(self, seed: int = 0, **cloud: Any) -> None:
        self.clock = VirtualClock()
        self.cloud = MemoryCloud("world", clock=self.clock, chance=random.Random(seed), **cloud)
        self.backend = MemoryBackend(Settings("c", "memory", b"k", options={"cloud": "world"}))
        boot = Boot(
            "memory", self.backend.store_uri, RUN.generation.job, 1, 1, "", backend_options={"cloud": "world"}
        )
        self.fleet = self.backend.fleet(RUN, boot)
        self.queue = self.backend.queue(RUN, 0)
        self.store = open_store(self.backend.store_uri)

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        self.clock.run(story)

    async def launch(self, machines: int = 1, number: int = 1, **rest: Any) -> list[str]:
        record = LaunchRecord(number, slots=(1,) * machines, token=f"t{number}", **rest)
        return [machine.id for machine in (await self.fleet.launch(record)).instances]

    async def states(self) -> dict[str, str]:
        return {machine.id: machine.state for machine in await self.fleet.describe()}


class TestClock:
    def test_a_day_passes_in_no_time(self) -> None:
        clock = VirtualClock()

        async def story() -> list[str]:
            seen: list[str] = []

            async def at(seconds: float, what: str) -> None:
                await clock.sleep(seconds)
                seen.append(what)

            await asyncio.gather(at(86_400, "last"), at(3, "second"), at(1, "first"))
            return seen

        started, before = time.monotonic(), clock.now()
        assert clock.run(story()) == ["first", "second", "last"]
        assert clock.now() - before == pytest.approx(86_400)
        assert time.monotonic() - started < 5

    def test_limits_of_asyncio_go_by_it(self) -> None:
        async def story() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.sleep(1000), 999)
            assert await asyncio.to_thread(lambda: "done") == "done"
            with pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(lambda: 1 / 0)

        VirtualClock().run(story())

    def test_waiting_for_nothing_is_an_error(self) -> None:
        async def story() -> None:
            await asyncio.Event().wait()

        with pytest.raises(RuntimeError, match="nothing will bring about"):
            VirtualClock().run(story())

    def test_the_same_seed_tells_the_same_story(self) -> None:
        def told(seed: int) -> list[Any]:
            world = World(
                seed,
                visibility_bound=30.0,
                faults=Faults(
                    latency=1.0, hide_fresh=30.0, double_message=0.5, shuffle=True, reclaims_per_hour=60
                ),
            )
            seen: list[Any] = []

            async def story() -> None:
                await world.queue.send([str(number) for number in range(20)])
                await world.launch(5)
                for _ in range(30):
                    seen.append(
                        (world.clock.now(), await world.states(), await world.queue.receive(2, wait=1))
                    )
                    await world.clock.sleep(10)

            world.play(story())
            return seen

        assert told(1) == told(1)
        assert told(1) != told(2)


class TestMachines:
    def test_they_boot_run_what_is_installed_and_end_with_it(self) -> None:
        ran: list[str] = []

        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            ran.append(boot.instance)
            await machine.sleep(100)

        world = World(boot_seconds=40.0, on_boot=agent, usd_per_hour=3.6)

        async def story() -> None:
            [machine] = await world.launch()
            assert await world.states() == {machine: PENDING}
            await world.clock.sleep(41)
            assert await world.states() == {machine: RUNNING}
            assert ran == [machine]
            await world.clock.sleep(100)
            assert await world.states() == {machine: TERMINATED}
            await world.clock.sleep(1000)
            assert world.cloud.cost() == pytest.approx(0.14)
            assert world.cloud.on() == []

        world.play(story())

    def test_a_crash_of_the_agent_is_the_reason(self) -> None:
        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            raise OSError("no store")

        world = World(on_boot=agent)

        async def story() -> None:
            await world.launch()
            await world.clock.sleep(1)
            [end] = await world.fleet.describe()
            assert (end.state, end.reason) == (TERMINATED, "the agent ended with OSError: no store")

        world.play(story())

    def test_what_runs_on_a_machine_ends_with_it(self) -> None:
        ended: list[str] = []

        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            try:
                await machine.sleep(10_000)
            finally:
                ended.append(boot.instance)

        world = World(on_boot=agent)

        async def story() -> None:
            killed, terminated, kept = await world.launch(3)
            await world.clock.sleep(1)
            world.cloud.kill(killed)
            await world.fleet.terminate([terminated])
            await world.clock.sleep(1)
            assert ended == [killed, terminated]
            assert (await world.states())[kept] == RUNNING
            assert not any(machine.interrupted for machine in await world.fleet.describe())

        world.play(story())

    def test_the_lifetime_ends_a_machine(self) -> None:
        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            await asyncio.Event().wait()

        world = World(on_boot=agent)

        async def story() -> None:
            await world.launch()
            await world.clock.sleep(24 * 3600 + 1)
            [end] = await world.fleet.describe()
            assert (end.state, end.reason) == (TERMINATED, "its lifetime was over")

        world.play(story())

    def test_a_notice_leaves_its_grace(self) -> None:
        heard: list[float] = []

        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            await machine.notice.wait()
            heard.append(machine.cloud.clock.now())
            await machine.sleep(1000)

        world = World(on_boot=agent)

        async def story() -> None:
            told, untold = await world.launch(2)
            await world.clock.sleep(1)
            world.cloud.reclaim(told)
            world.cloud.reclaim(untold, notice=False)
            await world.clock.sleep(24)
            assert await world.states() == {told: RUNNING, untold: TERMINATED}
            await world.clock.sleep(2)
            assert len(heard) == 1
            assert all(machine.interrupted for machine in await world.fleet.describe())

        world.play(story())

    def test_a_frozen_machine_stands_still_until_it_is_thawed(self) -> None:
        received: list[str] = []

        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            queue = machine.queue(RUN, 0)
            while True:
                received.extend(lease.body for lease in await queue.receive(1, wait=5))

        world = World(on_boot=agent)

        async def story() -> None:
            [machine] = await world.launch()
            await world.clock.sleep(1)
            world.cloud.freeze(machine)
            await world.queue.send(["work"])
            await world.clock.sleep(100)
            assert received == []
            assert await world.states() == {machine: RUNNING}
            world.cloud.thaw(machine)
            await world.clock.sleep(1)
            assert received == ["work"]

        world.play(story())

    def test_the_cloud_forgets_what_ended_long_ago(self) -> None:
        world = World()

        async def story() -> None:
            await world.fleet.terminate(await world.launch())
            assert len(await world.states()) == 1
            await world.clock.sleep(3601)
            assert await world.states() == {}
            assert await world.launch() != []
            assert world.cloud.on() == []

        world.play(story())


class TestFaults:
    @pytest.mark.parametrize("verdict", [NoCapacity("none"), QuotaExceeded("quota", below_one_machine=True)])
    def test_launches_are_refused_in_part_or_whole(self, verdict: Refusal) -> None:
        world = World(faults=Faults(refuse=lambda record, ordinal: None if ordinal == 1 else verdict))

        async def story() -> None:
            outcome = await world.fleet.launch(LaunchRecord(1, slots=(1, 2, 3), token="t"))
            assert [machine.slots for machine in outcome.instances] == [2]
            assert outcome.refusals == (verdict, verdict)
            world.cloud.faults = Faults()
            again = await world.fleet.launch(LaunchRecord(1, slots=(1, 2, 3), token="t"))
            assert [machine.id for machine in again.instances] == [m.id for m in outcome.instances]

        world.play(story())

    def test_no_more_machines_than_its_capacity(self) -> None:
        world = World(capacity=2)

        async def story() -> None:
            outcome = await world.fleet.launch(LaunchRecord(1, slots=(1, 1, 1), token="t"))
            assert len(outcome.instances) == 2
            assert [refusal.kind for refusal in outcome.refusals] == ["no-capacity"]

        world.play(story())

    def test_an_answer_is_lost_but_the_launch_is_done(self) -> None:
        world = World(faults=Faults(lose_answer=1.0))

        async def story() -> None:
            with pytest.raises(ConnectionError):
                await world.launch()
            world.cloud.faults = Faults()
            assert await world.launch() == list(await world.states())

        world.play(story())

    def test_fresh_machines_are_missing_from_describe_for_the_bound_at_most(self) -> None:
        world = World(visibility_bound=60.0, faults=Faults(hide_fresh=600.0))
        assert world.fleet.visibility_bound == 60.0

        async def story() -> None:
            launched = await world.launch(50)
            await world.clock.sleep(30)
            assert 0 < len(await world.states()) < 50
            await world.clock.sleep(30)
            assert sorted(await world.states()) == sorted(launched)

        world.play(story())

    def test_describe_is_throttled(self) -> None:
        world = World(faults=Faults(throttle_describe=1.0))

        async def story() -> None:
            with pytest.raises(Throttled):
                await world.fleet.describe()

        world.play(story())

    def test_a_failed_terminate_names_the_machines_and_ends_the_others(self) -> None:
        world = World(seed=3, faults=Faults(fail_terminate=0.5))

        async def story() -> None:
            machines = await world.launch(20)
            with pytest.raises(Throttled) as failure:
                await world.fleet.terminate(machines)
            left = [machine for machine, state in (await world.states()).items() if state != TERMINATED]
            assert 0 < len(left) < 20
            assert all(machine in str(failure.value) for machine in left)

        world.play(story())

    def test_terminated_machines_run_on_for_a_while(self) -> None:
        world = World(end_seconds=20.0)

        async def story() -> None:
            [machine] = await world.launch()
            await world.fleet.terminate([machine])
            assert (await world.states())[machine] != TERMINATED
            await world.clock.sleep(21)
            assert (await world.states())[machine] == TERMINATED

        world.play(story())

    @pytest.mark.parametrize(
        ("faults", "purchase", "least", "most"),
        [
            (Faults(die_booting=1.0), "spot", 40, 40),
            (Faults(reclaims_per_hour=1.0), "spot", 15, 35),
            (Faults(reclaims_per_hour=1.0, die_booting=1.0), "on-demand", 0, 0),
        ],
        ids=["at boot", "by the hour", "never on demand"],
    )
    def test_spot_machines_are_taken_back(self, faults: Faults, purchase: str, least: int, most: int) -> None:
        async def agent(boot: Boot, machine: SimulatedMachine) -> None:
            await asyncio.Event().wait()

        world = World(faults=faults, on_boot=agent)

        async def story() -> None:
            await world.launch(40, purchase=purchase)
            await world.clock.sleep(3500)
            lost = [machine for machine in await world.fleet.describe() if machine.interrupted]
            assert least <= len(lost) <= most

        world.play(story())

    def test_messages_are_lost_and_doubled(self) -> None:
        world = World(faults=Faults(lose_message=0.3, double_message=0.3, shuffle=True))

        async def story() -> None:
            sent = [str(number) for number in range(200)]
            await world.queue.send(sent)
            bodies = [lease.body for lease in await world.queue.receive(1000, wait=1)]
            assert 0 < len(set(sent) - set(bodies)) < 200
            assert len(bodies) > len(set(bodies))
            assert bodies != sorted(bodies, key=int)

        world.play(story())

    def test_a_send_breaks_off_half_way(self) -> None:
        world = World(faults=Faults(fail_send=1.0))

        async def story() -> None:
            with pytest.raises(ConnectionError):
                await world.queue.send(["x"] * 100)
            assert 0 < len(await world.queue.receive(1000, wait=1)) < 100

        world.play(story())

    def test_a_create_is_told_that_its_own_object_exists(self) -> None:
        world = World(faults=Faults(own_create=1.0))

        async def story() -> None:
            assert not await world.store.create("a", b"mine")
            assert await world.store.read("a") == b"mine"

        world.play(story())

    def test_a_failed_request_may_have_had_its_effect(self) -> None:
        world = World(seed=1, faults=Faults(fail_request=0.3))

        async def story() -> None:
            failed = []
            for number in range(100):
                try:
                    await world.store.write(f"o/{number:03d}", b"x")
                except StoreUnavailable:
                    failed.append(f"o/{number:03d}")
            world.cloud.faults = Faults()
            there = {entry.name for entry in await world.store.list_objects("o")}
            assert 0 < len(there & set(failed)) < len(failed)

        world.play(story())

    def test_a_call_cancelled_on_its_way_may_have_had_its_effect(self) -> None:
        world = World(faults=Faults(latency=1.0))

        async def story() -> None:
            cancelled = []
            for number in range(50):
                name = f"o/{number:03d}"
                try:
                    await asyncio.wait_for(world.store.create(name, b"x"), 0.5)
                except asyncio.TimeoutError:
                    cancelled.append(name)
            world.cloud.faults = Faults()
            there = {entry.name for entry in await world.store.list_objects("o")}
            assert 0 < len(there & set(cancelled)) < len(cancelled)

        world.play(story())

    def test_the_store_has_the_clouds_time(self) -> None:
        world = World()

        async def story() -> None:
            await world.store.write("a", b"")
            await world.clock.sleep(500)
            await world.store.write("b", b"")
            old, new = await world.store.list_objects("")
            assert new.modified - old.modified == pytest.approx(500)

        world.play(story())


class TestBackend:
    def test_a_cloud_that_is_not_there_is_named(self) -> None:
        with pytest.raises(InvalidInput, match="no simulated cloud 'gone'"):
            open_backend(Settings("c", "memory", b"k", options={"cloud": "gone"}))

    def test_it_offers_one_kind_of_machine(self) -> None:
        world = World(slots=4, usd_per_hour=0.5, largest=Resources(cpus=4, memory_gb=16))
        [offer] = asyncio.run(world.backend.offers(Resources(), Policy(), 100))
        assert (offer.slots, offer.usd_per_hour) == (4, 0.5)
        assert world.backend.default_concurrency(Resources(), 1000) == 64
        with pytest.raises(InvalidInput, match="memory_gb=32; the largest machine has 16"):
            asyncio.run(world.backend.offers(Resources(memory_gb=32), Policy(), 100))
