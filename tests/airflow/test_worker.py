"""A task that is killed in the worker ends its run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.errors import JobFailed
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.worker import Worker

PATIENCE = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def test_a_kill_stops_the_loop_and_ends_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"path": str(tmp_path / "root")}
    monkeypatch.setenv("AIRFLOW_CONN_SITE", json.dumps({"conn_type": "spotbatch", "extra": extra}))
    said: list[str] = []
    worker = Worker(SpotBatchHook("site").get_settings(), said.append)
    mark = tmp_path / "runs"
    worker.submit(
        JobRequest(
            deployment="here",
            dag_id="d",
            run_id="r",
            task_id="t",
            map_index=-1,
            max_tries=0,
            dag_run_started="now",
            packing=Packing(
                function=None,
                dotted=None,
                command=["sh", "-c", "touch {item}; sleep 600"],
                kwargs={},
                call="item",
                environment=Environment(),
                bundle=None,
                name="sh",
            ),
            items=[str(mark)],
            policy=Policy(),
        )
    )
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            worker.drive()
        except JobFailed as error:
            failed.append(error)

    driving = threading.Thread(target=drive)
    driving.start()
    try:
        until(mark.exists)
    finally:
        started = time.monotonic()
        worker.kill()
        took = time.monotonic() - started
    driving.join(PATIENCE)
    assert not driving.is_alive()
    assert took < 5, "Airflow's SIGKILL would have come first"
    assert "the task was killed" in str(failed[0])
    outcome = worker_after(worker).finish()
    assert outcome.state == "cancelled"
    assert any("ending machine" in line for line in said)


def worker_after(worker: Worker) -> Worker:
    """A later process's hold on the same run."""
    return Worker(SpotBatchHook("site").get_settings(), print, worker.run)
