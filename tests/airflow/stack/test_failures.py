"""Tries that fail: the next one finds what the last one finished, and no machine beside its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest

from tests.airflow.stack.conftest import Row
from tests.airflow.stack.job_run import ITEMS, Begin, JobRun

pytestmark = pytest.mark.timeout(400)


def retried(run: JobRun, before: set[int]) -> dict[str, Any]:
    """The second try comes by itself and runs what was not finished ``before``, and that alone."""
    run.succeeds()
    assert run.task()["try_number"] == 2
    return run.ran_only_the_rest(before)


def failed_items(begin: Begin) -> dict[str, Any]:
    """Only the item that failed runs again."""
    run = begin("failing")
    run.wait_until(lambda: run.outcome(1) is not None)
    outcome = run.outcome(1)
    assert outcome is not None
    assert (outcome["state"], outcome["ok"], outcome["failed"]) == ("failed", ITEMS - 1, 1)
    assert run.machines() == frozenset()
    run.let_go("mended")
    run.succeeds()
    assert run.counts() == {**dict.fromkeys(range(ITEMS), 1), 3: 2}
    return {"times begun": len(run.calls())}


def execution_timeout_while_deferred(begin: Begin) -> dict[str, Any]:
    run = begin("limited")
    run.wait_until_held()
    before = run.finished()
    run.wait_until(lambda: run.outcome(1) is not None or run.task()["state"] != "deferred")
    seconds = run.first_fleet_gone()
    run.let_go()
    return {"fleet gone after": seconds, **retried(run, before)}


def trigger_that_raises(begin: Begin) -> dict[str, Any]:
    run = begin("broken_trigger")
    run.wait_until_held()
    before = run.finished()
    run.let_go("raise")
    seconds = run.first_fleet_gone()
    run.let_go()
    return {"fleet gone after": seconds, **retried(run, before)}


def trigger_that_gives_up(begin: Begin) -> dict[str, Any]:
    """The store holds what this release cannot read: the trigger says so in its event."""
    run = begin("retried")
    run.wait_until_held()
    before = run.finished()
    foreign = run.stored(run.run().batch(9999))
    foreign.write_text(json.dumps({"format": 99}))
    run.wait_until(lambda: run.task()["state"] != "deferred")
    foreign.unlink()
    seconds = run.first_fleet_gone()
    run.let_go()
    return {"fleet gone after": seconds, **retried(run, before)}


def worker_killed_before_deferring(begin: Begin) -> dict[str, Any]:
    run = begin("held")
    pid = run.held_process("deferring")
    assert run.runs() == [1]
    run.wait_until(run.finished)
    before = run.finished()
    assert run.task()["state"] == "running"
    os.kill(pid, signal.SIGKILL)
    run.wait_for("deferred", tries=2)
    run.wait_until(lambda: run.held(2, 1))
    run.let_go("finishing.go")
    run.let_go()
    return retried(run, before)


def worker_killed_while_finishing(begin: Begin) -> dict[str, Any]:
    """Between its index and its outcome: what is finished stands, nothing is run again."""
    run = begin("held_alone", root="alone")
    run.let_go()
    run.let_go("deferring.go")
    pid = run.held_process("finishing")
    assert run.finished() == set(range(ITEMS))
    index = run.stored(run.run().index)
    with closing(sqlite3.connect(run.root / "queue.sqlite", isolation_level=None)) as queues:
        queues.execute("BEGIN EXCLUSIVE")  # so that the queue cannot be deleted, which comes between the two
        run.let_go("finishing.go")
        run.wait_until(index.exists)
        assert run.outcome(1) is None
        os.kill(pid, signal.SIGKILL)
        queues.execute("ROLLBACK")
    run.succeeds()
    assert run.task()["try_number"] == 2
    assert run.counts() == dict.fromkeys(range(ITEMS), 1)
    assert run.runs() == [1]
    return {"times begun": len(run.calls())}


@pytest.mark.parametrize(
    "row",
    [
        failed_items,
        execution_timeout_while_deferred,
        trigger_that_raises,
        trigger_that_gives_up,
        worker_killed_before_deferring,
        worker_killed_while_finishing,
    ],
    ids=lambda row: row.__name__,
)
def test_failure(row: Row, under_way: dict[Row, Future[dict[str, Any]]]) -> None:
    print(under_way[row].result())
