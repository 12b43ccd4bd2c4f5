"""The triggerer dies, is restarted, stalls, is doubled: the job goes on with the machines that it has."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.airflow.stack.airflow_stack import TRIGGERER, Stack
from tests.airflow.stack.job_run import ITEMS, STEP_SECONDS, Begin, JobRun
from tests.airflow.stack.waiting import until

pytestmark = pytest.mark.timeout(400)

SECOND = "triggerer-2"


@pytest.fixture
def two_triggerers(stack: Stack) -> Iterator[None]:
    """A second triggerer for one test."""
    try:
        stack.start_triggerer(SECOND)
        yield
    finally:
        if stack.runs(SECOND):
            stack.stop(SECOND)
        if not stack.runs(TRIGGERER):
            stack.start_triggerer()


def at_work(begin: Begin) -> tuple[JobRun, frozenset[str]]:
    """A job whose last items are held, and its machines."""
    run = begin("plain")
    run.wait_until_held()
    machines = run.machines()
    assert len(machines) == 2
    return run, machines


def goes_on(run: JobRun, machines: frozenset[str]) -> None:
    """The job ends well on the machines that it had, and each item began once."""
    assert run.machines() == machines
    assert run.task()["state"] == "deferred"
    run.let_go()
    run.succeeds()
    assert run.all_machines() == machines
    assert run.counts() == dict.fromkeys(range(ITEMS), 1)
    assert run.runs() == [1]
    assert not run.cancelled()


def test_killed(undisturbed: Begin, stack: Stack) -> None:
    run, machines = at_work(undisturbed)
    stack.kill(TRIGGERER)
    beat = run.beat()
    stack.start_triggerer()
    run.wait_until(lambda: run.beat() != beat)
    goes_on(run, machines)


def test_restarted(undisturbed: Begin, stack: Stack) -> None:
    run, machines = at_work(undisturbed)
    stack.stop(TRIGGERER)
    beat = run.beat()
    stack.start_triggerer()
    run.wait_until(lambda: run.beat() != beat)
    goes_on(run, machines)


def test_killed_while_another_runs(undisturbed: Begin, two_triggerers: None, stack: Stack) -> None:
    run, machines = at_work(undisturbed)
    first = stack.triggerer_of(run.task())
    stack.kill(first)
    run.wait_until(lambda: stack.triggerer_of(run.task()) not in (None, first))
    beat = run.beat()
    run.wait_until(lambda: run.beat() != beat)
    goes_on(run, machines)


def test_stalled_and_woken(undisturbed: Begin, two_triggerers: None, stack: Stack) -> None:
    """Longer than its health threshold: another drives the run, and the woken one must let it be."""
    run, machines = at_work(undisturbed)
    first = stack.triggerer_of(run.task())
    assert first is not None
    stack.signal(first, signal.SIGSTOP)
    try:
        run.wait_until(lambda: stack.triggerer_of(run.task()) not in (None, first))
        beat = run.beat()
        run.wait_until(lambda: run.beat() != beat)
    finally:
        stack.signal(first, signal.SIGCONT)
    until(lambda: len(stack.triggerers_alive()) == 2, STEP_SECONDS, stack.triggerers_alive)
    beats = {run.beat()}
    run.wait_until(lambda: beats.add(run.beat()) or len(beats) > 2)  # 20 s, in which a wrong kill would show
    goes_on(run, machines)
