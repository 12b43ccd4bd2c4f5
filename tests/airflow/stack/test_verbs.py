"""What a user does to a task while its job runs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.airflow.stack.conftest import Row
from tests.airflow.stack.job_run import ITEMS, Begin, JobRun

pytestmark = pytest.mark.timeout(400)


def success(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.wait_until_held()
    assert len(run.machines()) == 2
    run.let_go()
    run.succeeds()
    assert run.counts() == dict.fromkeys(range(ITEMS), 1)
    assert run.outcome()
    return {"runs": run.runs(), "machines": len(run.all_machines())}


def resumed(run: JobRun, before: set[int]) -> dict[str, Any]:
    """A later try has begun: it must run what was not finished ``before``, and that alone."""
    run.let_go()
    run.succeeds()
    return run.ran_only_the_rest(before)


def mark_failed(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.wait_until_held()
    before = run.finished()
    run.mark("failed")
    seconds = run.fleet_gone()
    assert run.task()["state"] == "failed"
    assert run.finished() == before
    run.clear_when_over()
    return {"fleet gone after": seconds, **resumed(run, before)}


def mark_success(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.wait_until_held()
    before = run.finished()
    run.mark("success")
    seconds = run.fleet_gone()
    assert run.task()["state"] == "success"
    assert run.finished() == before
    run.clear_when_over()
    return {"fleet gone after": seconds, **resumed(run, before)}


def clear_while_deferred(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.wait_until_held()
    old = run.machines()
    before = run.finished()
    run.clear()
    run.wait_until_held(number=2)
    assert not old & run.machines()
    return resumed(run, before)


def dag_run_marked_failed(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.wait_until_held()
    before = run.finished()
    run.mark_dag_run("failed")
    seconds = run.fleet_gone()
    assert run.task()["state"] == "failed"
    assert run.finished() == before
    run.clear_when_over()
    return {"fleet gone after": seconds, **resumed(run, before)}


def clear_after_success(begin: Begin) -> dict[str, Any]:
    run = begin("plain")
    run.let_go()
    run.succeeds()
    run.clear_when_over()
    run.wait_for("success", tries=2)
    run.succeeds()
    assert run.counts() == dict.fromkeys(range(ITEMS), 2)
    assert (run.runs(generation=1), run.runs(generation=2)) == ([1], [1])
    return {"times begun": len(run.calls())}


def mark_failed_in_the_worker(begin: Begin) -> dict[str, Any]:
    run = begin("in_worker")
    run.wait_for("running")
    run.wait_until(lambda: run.held(1, 1))
    before = run.finished()
    run.mark("failed")
    seconds = run.fleet_gone()
    assert run.finished() == before
    run.clear_when_over()
    return {"fleet gone after": seconds, **resumed(run, before)}


@pytest.mark.parametrize(
    "row",
    [
        success,
        mark_failed,
        mark_success,
        clear_while_deferred,
        dag_run_marked_failed,
        clear_after_success,
        mark_failed_in_the_worker,
    ],
    ids=lambda row: row.__name__,
)
def test_verb(row: Row, under_way: dict[Row, Future[dict[str, Any]]]) -> None:
    print(under_way[row].result())
