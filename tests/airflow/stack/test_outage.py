"""All of Airflow is away for longer than machines wait for it."""

from __future__ import annotations

import time

import pytest

from tests.airflow.stack.airflow_stack import Stack
from tests.airflow.stack.conftest import DAGS, ORPHAN_AFTER
from tests.airflow.stack.job_run import ITEMS, Begin
from tests.airflow.stack.waiting import until

pytestmark = pytest.mark.timeout(400)


def test_machines_end_by_themselves_and_the_job_is_picked_up(undisturbed: Begin, stack: Stack) -> None:
    run = undisturbed("orphans")
    run.wait_until_held()
    before = run.finished()
    old = run.machines()
    assert old
    stack.kill_all()
    away = time.monotonic()
    assert run.machines() == old, "the end of Airflow is no reason for machines to end"
    until(lambda: not run.machines(), 3 * ORPHAN_AFTER, run.machines)
    print({"fleet gone after": round(time.monotonic() - away, 1)})
    assert run.finished() == before
    stack.start(DAGS)
    run.let_go()
    run.succeeds()
    assert run.runs() == [1]
    assert not run.cancelled()
    counts = run.counts()
    assert {item: counts[item] for item in before} == dict.fromkeys(before, 1)
    assert set(counts) == set(range(ITEMS))
    assert not old & {instance for item, instance in run.calls()[-1:]}
