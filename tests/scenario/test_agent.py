"""An agent's life: what it leases, when it ends, and what becomes of its chunks when things go wrong."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import item_context
from airflow_provider_spotbatch.agent import agent as agent_module
from airflow_provider_spotbatch.agent.agent import MachineFailed
from airflow_provider_spotbatch.backends.base import Lease
from airflow_provider_spotbatch.backends.local import LocalBackend, LocalMachine, machine_folder
from airflow_provider_spotbatch.backends.local_machine import MARK
from airflow_provider_spotbatch.backends.local_queue import LocalQueue
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.errors import Throttled
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.launches import TERMINATED, LaunchRecord
from airflow_provider_spotbatch.job.outcome import ItemOutcome, encode_result
from airflow_provider_spotbatch.job.report import DRAINING, ENDED, RUNNING, SEAL_AFTER, Report
from tests.support.jobs import (
    GENERATION,
    RUN,
    SIGNER,
    Job,
    chunk,
    eventually,
    function_job,
    processes_with,
    value_of,
)


def noting_job(
    root: Path, items: int, *, seconds: float = 0.0, until: Path | None = None, **options: Any
) -> Job:
    """Each call of the function leaves a line in a file, and takes its time, or until a file is there."""
    notes = str(root / "notes")
    awaited = str(until or "")

    def work(x: int) -> int:
        with open(notes, "a") as file:
            file.write(f"{x}\n")
        time.sleep(seconds)
        while awaited and not Path(awaited).exists():
            time.sleep(0.02)
        return x

    return function_job(root, work, range(items), **options)


def notes(job: Job) -> list[int]:
    path = job.root / "notes"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def started(job: Job) -> bool:
    return bool(notes(job))


async def drains(job: Job) -> bool:
    return (await job.report()).state == DRAINING


def test_a_chunk_is_stored_reported_and_acked(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 5, slots=2)
        await job.submit([chunk(0, (0, 2)), chunk(1, (2, 3), (4, 5)), chunk(2, (3, 4), attempt=2)])
        await job.run_agent()
        report = await job.report()
        assert (report.state, report.items_ok, report.items_failed, report.held) == (ENDED, 5, 0, ())
        assert {ended.chunk: ended.items for ended in report.ended} == {
            "0001-0000001-00000": 2,
            "0001-0000001-00001": 2,
            "0001-0000001-00002": 1,
        }
        assert await job.queue_is_empty()
        assert [outcome.item for outcome in await job.outcomes(ChunkId(1, 1, 1))] == [2, 4]
        assert [outcome.attempt for outcome in await job.outcomes(ChunkId(1, 1, 2))] == [2]
        assert sorted(notes(job)) == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_a_redelivered_chunk_with_a_result_is_not_run_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 3)
        await job.submit()
        await job.run_agent("i-1")
        await job.send([chunk(0, (0, 3))])
        await job.run_agent("i-2")
        assert notes(job) == [0, 1, 2]
        (ended,) = await job.ended("i-2")
        assert (ended.chunk, ended.found) == ("0001-0000001-00000", True)
        assert await job.queue_is_empty()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [RUN.cancel, RUN.outcome, RUN.stop, RUN.loss("i-1")])
def test_what_is_over_before_the_first_lease_runs_nothing(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 3)
        await job.submit()
        await job.store.write(name, b"{}")
        await job.run_agent()
        assert notes(job) == []
        assert (await job.report()).state == ENDED
        assert not await job.queue_is_empty()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [RUN.cancel, RUN.loss("i-1")])
def test_a_cancelled_run_ends_what_runs_and_gives_it_back(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600)
        await job.submit()
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        await job.store.write(name, b"{}")
        await asyncio.wait_for(agent, 20)
        report = await job.report()
        assert (report.state, report.held, report.interrupted) == (ENDED, ("0001-0000001-00000",), False)
        (lease,) = await LocalMachine(job.boot_of("i-2")).queue(RUN, 0).receive(1, 0)
        assert lease.deliveries == 2, "released, not left to lapse"

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_a_stopped_run_finishes_what_runs_and_leases_nothing_more(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 2, seconds=1.5)
        await job.submit([chunk(0, (0, 1)), chunk(1, (1, 2))])
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        if how == "stop":
            await job.store.write(RUN.stop, b"{}")
        else:
            await job.tell(Control(beat=2, report_every=0.2, drain=True))
        await asyncio.wait_for(agent, 20)
        assert len(notes(job)) == 1
        report = await job.report()
        assert (report.items_ok, report.held) == (1, ())

    asyncio.run(scenario())


def test_an_idle_agent_tells_for_how_long_and_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, idle_timeout=0.6)
        await job.submit([])
        await job.run_agent()
        report = await job.report()
        assert report.state == ENDED
        assert "nothing to do" in report.reason
        assert report.empty_seconds is not None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "control", "reason"),
    [
        ({"lifetime": 0.5}, Control(beat=1), "lifetime"),
        ({"orphan_after": 0.5}, Control(beat=1), "no controller was seen"),
        ({}, Control(beat=1, spend_for=0.5), "budget"),
    ],
)
def test_an_agent_ends_by_its_own_limits(
    tmp_path: Path, options: dict[str, Any], control: Control, reason: str
) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600, **options)
        await job.submit()
        await job.tell(control)
        await asyncio.wait_for(job.run_agent(), 20)
        report = await job.report()
        assert reason in report.reason
        assert report.held == ("0001-0000001-00000",)

    asyncio.run(scenario())


def test_an_agent_ends_when_its_queue_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, idle_timeout=60.0)
        await job.submit([])
        await LocalMachine(job.boot).queue(RUN, 0).delete()
        await asyncio.wait_for(job.run_agent(), 20)
        assert "queue is gone" in (await job.report()).reason

    asyncio.run(scenario())


def test_an_agent_that_its_queue_never_answers_says_so_and_ends_as_a_broken_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "NO_QUEUE_SECONDS", 4.0)

    async def scenario() -> None:
        job = noting_job(tmp_path, 1, idle_timeout=60.0)
        await job.submit()
        await asyncio.to_thread(_take_away, Path(LocalMachine(job.boot).queue(RUN, 0).path))
        agent = asyncio.ensure_future(job.run_agent())

        async def told() -> bool:
            data = await job.store.read(RUN.report("i-1"))
            return data is not None and b"no chunk can be leased" in bytes(data)

        await eventually(told, "word of the queue")
        with pytest.raises(MachineFailed, match="cannot be used"):
            await asyncio.wait_for(agent, 20)
        report = await job.report()
        assert (report.state, report.held) == (ENDED, ())
        assert "cannot be used" in report.boot_log

    asyncio.run(scenario())


def test_a_queue_that_is_busy_for_a_moment_after_a_long_item_ends_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its slots are busy an agent does not ask: that is no silence of the queue's."""
    monkeypatch.setattr(agent_module, "NO_QUEUE_SECONDS", 3.0)
    done, busy = tmp_path / "done", tmp_path / "busy"
    receive = LocalQueue.receive
    refusals = 0

    async def receive_unless_busy(queue: LocalQueue, most: int, wait: float) -> list[Lease]:
        nonlocal refusals
        if busy.exists():
            refusals += 1
            raise Throttled("asked too often")
        return await receive(queue, most, wait)

    monkeypatch.setattr(LocalQueue, "receive", receive_unless_busy)

    async def scenario() -> None:
        job = noting_job(tmp_path, 2, until=done, idle_timeout=60.0)
        await job.submit([chunk(0, (0, 1))])
        agent = asyncio.ensure_future(job.run_agent())

        async def long_at_it() -> bool:
            data = await job.store.read(RUN.report("i-1"))
            return data is not None and Report.from_bytes(bytes(data)).up_seconds > 3.5

        async def refused_twice() -> bool:
            return refusals > 1  # the first time it still held the item's lease

        async def works_again() -> bool:
            return agent.done() or notes(job) == [0, 1]

        await eventually(long_at_it, "a long item")
        busy.touch()
        done.touch()
        await eventually(refused_twice, "refusals of the queue")
        busy.unlink()
        await job.send([chunk(1, (1, 2))])
        await eventually(works_again, "the next item")
        assert not agent.done()
        agent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await agent

    asyncio.run(scenario())


def test_an_agent_that_could_not_ask_its_queue_was_not_idle(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, idle_timeout=2.0)
        await job.submit([])
        queue = Path(LocalMachine(job.boot).queue(RUN, 0).path)
        await asyncio.to_thread(_take_away, queue)
        agent = asyncio.ensure_future(job.run_agent())

        async def cut_off() -> bool:
            data = await job.store.read(RUN.report("i-1"))
            return data is not None and Report.from_bytes(bytes(data)).up_seconds > 2.5

        async def answered() -> bool:
            return "no chunk can be leased" not in (await job.report()).reason

        await eventually(cut_off, "an outage longer than idle_timeout")
        await asyncio.to_thread(queue.rmdir)
        await eventually(answered, "the queue's answer")
        assert (await job.report()).state == RUNNING
        agent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await agent

    asyncio.run(scenario())


def _take_away(queue: Path) -> None:
    for file in queue.parent.glob(f"{queue.name}*"):
        file.unlink()
    queue.mkdir()


def test_many_ended_chunks_are_sealed_and_none_is_told_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        count = SEAL_AFTER + 100
        job = function_job(tmp_path, lambda x: x, range(count), slots=2)
        await job.submit([chunk(number, (number, number + 1)) for number in range(count)])
        await job.run_agent()
        ended = await job.ended()
        assert sorted(chunk.chunk for chunk in ended) == [
            str(ChunkId(1, 1, number)) for number in range(count)
        ]
        assert (await job.report()).sealed >= 1
        assert len((await job.report()).ended) <= SEAL_AFTER

    asyncio.run(scenario())


def notice(job: Job, instance: str = "i-1", *, name: str = "interrupt") -> None:
    folder = Path(machine_folder(str(job.root), instance))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()


def test_advice_to_leave_only_stops_leasing(tmp_path: Path) -> None:
    async def scenario() -> None:
        go_on = tmp_path / "go on"
        job = noting_job(tmp_path, 2, until=go_on)
        await job.submit([chunk(0, (0, 1)), chunk(1, (1, 2))])
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        notice(job, name="leave")
        await eventually(lambda: drains(job), "the end of leasing")
        go_on.touch()
        await asyncio.wait_for(agent, 10)
        report = await job.report()
        assert (report.state, report.interrupted, report.items_ok) == (ENDED, False, 1)
        assert len(notes(job)) == 1
        assert len(await LocalMachine(job.boot_of("i-2")).queue(RUN, 0).receive(2, 0)) == 1

    asyncio.run(scenario())


def test_an_interrupted_item_that_ends_in_time_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        begun = str(tmp_path / "notes")

        def work(x: int) -> str:
            Path(begun).write_text("0")
            return "told" if item_context.interrupted.wait(30) else "never told"

        job = function_job(tmp_path, work, [0], grace=10.0)
        await job.submit()
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        notice(job)
        await asyncio.wait_for(agent, 10)
        assert value_of((await job.outcomes())[0]) == "told"
        report = await job.report()
        assert (report.state, report.interrupted, report.held) == (ENDED, True, ())
        assert await job.queue_is_empty()

    asyncio.run(scenario())


def test_an_interrupted_item_that_does_not_end_is_given_back_within_the_grace(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600, grace=2.0)
        await job.submit()
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        notice(job)
        before = time.monotonic()
        await asyncio.wait_for(agent, 10)
        assert time.monotonic() - before < 2.5
        report = await job.report()
        assert (report.interrupted, report.held) == (True, ("0001-0000001-00000",))
        (lease,) = await LocalMachine(job.boot_of("i-2")).queue(RUN, 0).receive(1, 0)
        assert lease.deliveries == 2

    asyncio.run(scenario())


def test_a_checkpoint_lets_an_item_go_on_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        begun = str(tmp_path / "notes")

        def work(x: int) -> list[str]:
            if saved := item_context.checkpoint.load():
                return ["went on from", saved.decode()]
            item_context.checkpoint.save(b"half-way")
            Path(begun).write_text("0")
            time.sleep(600)
            return ["unreachable"]

        job = function_job(tmp_path, work, [0], grace=1.0)
        await job.submit()
        agent = asyncio.create_task(job.run_agent("i-1"))
        await eventually(lambda: started(job), "the checkpoint")
        notice(job)
        await asyncio.wait_for(agent, 10)
        await job.run_agent("i-2")
        assert value_of((await job.outcomes())[0]) == ["went on from", "half-way"]

    asyncio.run(scenario())


def test_a_frozen_agent_leaves_its_chunk_to_the_one_that_finished_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600, lease=1.0, idle_timeout=2.0)
        await job.submit()
        frozen = job.start_agent("i-1")
        try:
            await eventually(lambda: started(job), "the item's start")
            frozen.send_signal(signal.SIGSTOP)
            await finish_elsewhere(job)
            frozen.send_signal(signal.SIGCONT)
            _, errors = await asyncio.to_thread(frozen.communicate, None, 30)
            assert frozen.returncode == 0, errors.decode()
            assert "finished by another agent" in errors.decode()
            report = await job.report("i-1")
            assert (report.state, report.held, report.items_ok) == (ENDED, (), 0)
            assert await job.queue_is_empty()
        finally:
            frozen.kill()
            await asyncio.to_thread(frozen.communicate)

    asyncio.run(scenario())


async def finish_elsewhere(job: Job) -> None:
    """Another agent takes the chunk, whose lease has lapsed, and its item ends this time."""
    queue = LocalMachine(job.boot_of("i-2")).queue(RUN, 0)

    async def lapsed() -> Any:
        return await queue.receive(1, 0.1)

    (lease,) = await eventually(lapsed, "the lapse of the lease")
    outcome = ItemOutcome(0, 1, "ok", "json", b'"by another"', time.time(), time.time())
    assert await job.store.create(
        GENERATION.result(ChunkId(1, 1, 0)), encode_result(SIGNER, ChunkId(1, 1, 0), [outcome], {})
    )
    await queue.ack(lease)


def test_results_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        begun, go = tmp_path / "notes", tmp_path / "go"

        def work(x: int) -> int:
            begun.write_text("0")
            while not go.exists():
                time.sleep(0.01)
            return x

        job = function_job(tmp_path, work, [0], lease=60.0)
        await job.submit()
        agent = asyncio.create_task(job.run_agent())
        await eventually(lambda: started(job), "the item's start")
        results = tmp_path / "store" / GENERATION.results
        results.write_text("in the way: no result can be stored")
        go.touch()

        async def told() -> bool:
            return "could not write" in (await job.report()).reason

        await eventually(told, "the trouble in the report")
        results.unlink()
        await asyncio.wait_for(agent, 30)
        assert value_of((await job.outcomes())[0]) == 0
        assert (await job.report()).items_ok == 1

    asyncio.run(scenario())


def test_a_missing_blob_is_the_machines_failure_with_its_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1)
        job.blobs.clear()
        await job.submit()
        with pytest.raises(MachineFailed, match=r"blobs/.* is missing"):
            await job.run_agent()
        report = await job.report()
        assert report.state == ENDED
        assert "is missing" in report.reason
        assert "Traceback" in report.boot_log

    asyncio.run(scenario())


def test_a_bad_interpreter_is_the_machines_failure_and_gives_its_chunks_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, python="/no/such/python")
        await job.submit()
        with pytest.raises(MachineFailed, match="/no/such/python cannot be started"):
            await job.run_agent()
        assert (await job.report()).state == ENDED
        assert not await job.queue_is_empty()

    asyncio.run(scenario())


def test_a_forged_item_is_not_unpickled(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1)
        await job.submit()
        part = GENERATION.item_part("first", 0)
        data = await job.store.read(part)
        assert data is not None
        await job.store.write(part, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(MachineFailed, match="not signed"):
            await job.run_agent()
        assert notes(job) == []

    asyncio.run(scenario())


def test_sigterm_ends_an_agent_at_once_and_gives_its_chunks_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600)
        await job.submit()
        agent = job.start_agent()
        try:
            await eventually(lambda: started(job), "the item's start")
            agent.terminate()
            _, errors = await asyncio.to_thread(agent.communicate, None, 30)
            assert agent.returncode == 0, errors.decode()
            assert (await job.report()).held == ("0001-0000001-00000",)
        finally:
            agent.kill()
            await asyncio.to_thread(agent.communicate)

    asyncio.run(scenario())


def test_two_agents_share_the_work_and_run_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 40, seconds=0.02)
        await job.submit([chunk(number, (number, number + 1)) for number in range(40)])
        await asyncio.gather(job.run_agent("i-1"), job.run_agent("i-2"))
        assert sorted(notes(job)) == list(range(40))
        assert min(len(await job.ended("i-1")), len(await job.ended("i-2"))) > 0

    asyncio.run(scenario())


def test_no_more_items_run_at_once_than_there_are_slots(tmp_path: Path) -> None:
    """Chunks are leased ahead where they are short; they wait for a slot all the same."""
    running = tmp_path / "running"
    running.mkdir()

    def work(x: int) -> int:
        mark = running / str(x)
        mark.touch()
        count = len(list(running.iterdir()))
        time.sleep(0.01)
        mark.unlink()
        return count

    async def scenario() -> None:
        job = function_job(tmp_path, work, range(60), slots=3)
        await job.submit([chunk(number, (number, number + 1)) for number in range(60)])
        await job.run_agent()
        counts = [value_of((await job.outcomes(ChunkId(1, 1, number)))[0]) for number in range(60)]
        assert max(counts) <= 3

    asyncio.run(scenario())


def test_what_waits_behind_a_long_item_goes_to_an_agent_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "AHEAD_SECONDS", 4.0)  # thrice in a row is longer than they wait
    folder = tmp_path / "met"
    folder.mkdir()

    def meet(item: int) -> int:
        (folder / str(item)).touch()
        until = time.monotonic() + 15
        while item and not all((folder / str(other)).exists() for other in (1, 2)):
            if time.monotonic() > until:
                raise TimeoutError("the other item did not come to run beside this one")
            time.sleep(0.02)
        return item

    async def scenario() -> None:
        job = function_job(tmp_path, meet, range(3), idle_timeout=60.0)
        await job.submit([chunk(number, (number, number + 1)) for number in range(3)])
        agents = [asyncio.create_task(job.run_agent("i-1"))]

        async def a_long_item_runs() -> bool:
            return any((folder / str(item)).exists() for item in (1, 2))

        await eventually(a_long_item_runs, "a long item")
        agents.append(asyncio.create_task(job.run_agent("i-2")))
        await eventually(job.queue_is_empty, "the end of all items")
        for agent in agents:
            agent.cancel()
        await asyncio.wait(agents)
        outcomes = [(await job.outcomes(ChunkId(1, 1, number)))[0] for number in range(3)]
        assert [outcome.cause for outcome in outcomes] == ["ok"] * 3

    asyncio.run(scenario())


def test_an_agent_that_is_idle_for_a_lease_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, lease=0.5, idle_timeout=2.0)
        await job.submit([])
        await job.tell(Control(beat=2, report_every=600.0))
        agent = asyncio.create_task(job.run_agent())

        async def told() -> bool:
            data = await job.store.read(RUN.report("i-1"))
            return data is not None and ((await job.report()).empty_seconds or 0) >= 0.5

        await eventually(told, "the report of an empty queue")
        assert not agent.done()
        await agent

    asyncio.run(scenario())


def test_running_items_are_in_the_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 1, seconds=600)
        await job.submit()
        agent = asyncio.create_task(job.run_agent())

        async def told() -> bool:
            data = await job.store.read(RUN.report("i-1"))
            return data is not None and bool((await job.report()).running)

        await eventually(told, "the running item")
        report = await job.report()
        (running,) = report.running
        assert (running.item, running.attempt, running.chunk) == (0, 1, "0001-0000001-00000")
        assert report.held == ("0001-0000001-00000",)
        agent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await agent
        assert (await job.report()).state == ENDED

    asyncio.run(scenario())


def test_a_machine_of_the_local_backend_lives_and_ends_with_its_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = noting_job(tmp_path, 4)
        await job.submit([chunk(0, (0, 2)), chunk(1, (2, 4))])
        settings = Settings("test", "local", b"key", options={"path": str(tmp_path)})
        fleet = LocalBackend(settings).fleet(RUN, job.boot)
        launched = await fleet.launch(LaunchRecord(1, slots=(2,), token="one"))
        (machine,) = launched.instances

        async def ended() -> bool:
            return [instance.state for instance in await fleet.describe()] == [TERMINATED]

        await eventually(ended, "the machine's end")
        assert sorted(notes(job)) == [0, 1, 2, 3]
        report = await job.report(machine.id)
        assert (report.state, report.launch, report.items_ok) == (ENDED, 1, 4)
        assert list(processes_with(f"{MARK}={machine_folder(str(tmp_path), machine.id)}")) == []

    asyncio.run(scenario())
