"""Crashes, limits, and that nothing an item started is left."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_spotbatch.job.policy import Policy
from tests.support.jobs import PATIENCE, failure_of, function_job, outcomes_of, processes_with, value_of


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def crash(how: str) -> Callable[[int], int]:
    def work(x: int) -> int:
        if x == 1:
            print("last words")
            if how == "exit":
                os._exit(0)
            os.kill(os.getpid(), 11)
        return x

    return work


@pytest.mark.parametrize(("how", "told"), [("exit", "exit code 0"), ("signal", "SIGSEGV")])
def test_a_crash_costs_only_its_item(tmp_path: Path, how: str, told: str) -> None:
    outcomes = outcomes_of(function_job(tmp_path, crash(how), [0, 1, 2]))
    assert [outcome.cause for outcome in outcomes] == ["ok", "crash", "ok"]
    failure = failure_of(outcomes[1])
    assert told in failure.message
    assert "last words" in failure.output_tail
    assert value_of(outcomes[2]) == 2


def test_a_forked_child_that_returns_does_not_speak_for_the_item(tmp_path: Path) -> None:
    def work(x: int) -> str:
        return "parent" if os.fork() else "child"

    outcomes = outcomes_of(function_job(tmp_path, work, range(5)))
    assert [value_of(outcome) for outcome in outcomes] == ["parent"] * 5


def test_a_forked_child_that_raises_does_not_speak_for_the_item(tmp_path: Path) -> None:
    def work(x: int) -> str:
        if os.fork() == 0:
            sys.exit(3)
        return "parent"

    outcomes = outcomes_of(function_job(tmp_path, work, [0, 1]))
    assert [value_of(outcome) for outcome in outcomes] == ["parent", "parent"]


def test_nothing_that_an_item_started_outlives_its_worker(tmp_path: Path) -> None:
    def work(x: int) -> list[int]:
        plain = subprocess.Popen(["sleep", "600"])
        detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
        read, write = os.pipe()
        if os.fork() == 0:  # a daemon by double fork, in an environment of its own
            os.setsid()
            if os.fork() == 0:
                os.write(write, str(os.getpid()).encode())
                os.execve("/bin/sleep", ["sleep", "600"], {})
            os._exit(0)
        return [plain.pid, detached.pid, int(os.read(read, 20))]

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    pids = value_of(outcome)
    assert len(pids) == 3
    assert [pid for pid in pids if not gone(pid)] == []


def test_nothing_that_a_crashed_item_started_outlives_it(tmp_path: Path) -> None:
    where = str(tmp_path)

    def work(x: int) -> None:
        for detached in (True, False):
            subprocess.Popen(["sleep", "600"], start_new_session=detached, env={**os.environ, "OF": where})
        os._exit(1)

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    assert outcome.cause == "crash"
    assert list(processes_with(f"OF={tmp_path}")) == []


def test_an_item_over_its_time_is_ended_alone(tmp_path: Path) -> None:
    def work(x: int) -> int:
        if x == 1:
            print("hanging")
            subprocess.run(["sleep", "600"], check=True)
        return x

    policy = Policy(item_timeout=0.5)
    outcomes = outcomes_of(function_job(tmp_path, work, [0, 1, 2], policy=policy))
    assert [outcome.cause for outcome in outcomes] == ["ok", "timeout", "ok"]
    failure = failure_of(outcomes[1])
    assert "item_timeout=0.5 s" in failure.message
    assert failure.output_tail == "hanging"
    assert failure.label == "ItemTimeout: ran longer than item_timeout=0.5 s"
    assert 0.5 <= outcomes[1].end - outcomes[1].start < 5


def test_an_item_over_its_memory_is_ended_and_its_neighbour_is_not(tmp_path: Path) -> None:
    def work(x: int) -> int:
        if x == 0:
            hoard = bytearray(300 * 2**20)
            time.sleep(600)
            return len(hoard)
        return x

    outcomes = outcomes_of(function_job(tmp_path, work, [0, 1], memory_mb=200.0))
    assert [outcome.cause for outcome in outcomes] == ["memory", "ok"]
    failure = failure_of(outcomes[0])
    assert (
        failure.label
        == "OutOfMemory: used more than its limit of 200 MB of memory (item_resources.memory_gb)"
    )
    assert re.search(r"It had [23]\d\d MB", failure.message)
    assert (outcomes[0].peak_mb or 0) > 200


def test_memory_of_children_counts(tmp_path: Path) -> None:
    def work(x: int) -> None:
        hoard = "import time; hoard = bytearray(300 * 2**20); time.sleep(600)"
        subprocess.run([sys.executable, "-c", hoard], check=True)

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0], memory_mb=200.0))
    assert outcome.cause == "memory"


def test_cpu_and_memory_of_an_item_are_told(tmp_path: Path) -> None:
    def work(x: int) -> int:
        block = bytearray(80 * 2**20)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return len(block)

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    assert 0.25 < (outcome.cpu_seconds or 0) < 3
    assert 80 < (outcome.peak_mb or 0) < 500


def test_workers_die_with_a_killed_agent(tmp_path: Path) -> None:
    marker = tmp_path / "pid"

    def work(x: int) -> None:
        marker.write_text(str(os.getpid()))
        time.sleep(600)

    job = function_job(tmp_path, work, [0])
    asyncio.run(job.submit())
    agent = job.start_agent()
    try:
        wait_until(lambda: marker.exists() and bool(marker.read_text()), "the item's start")
        worker = int(marker.read_text())
        agent.kill()
        wait_until(lambda: gone(worker), "the worker's end")
    finally:
        agent.kill()
        agent.communicate()
