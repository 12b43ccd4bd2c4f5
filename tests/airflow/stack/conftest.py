"""One Airflow for all rows. Rows that leave it alone run side by side, each in a thread; the others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.local_machine import kill, processes_of
from tests.airflow.stack import machines
from tests.airflow.stack.airflow_stack import Stack
from tests.airflow.stack.job_run import Begin, JobRun

DAGS = (
    "plain",
    "in_worker",
    "retried",
    "failing",
    "limited",
    "broken_trigger",
    "held",
    "held_alone",
    "orphans",
)

ORPHAN_AFTER = 15.0

AT_ONCE = 4
"""Rows that run side by side: more make the API server of two cores too slow for Airflow's own good."""

Row = Callable[[Begin], dict[str, Any]]
"""What is done to a job and must come of it; returns what was seen."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("stack")
    stack = Stack(
        home,
        {
            "spotbatch_default": {"path": str(home / "root"), "instances": 2},
            "alone": {"path": str(home / "alone"), "instances": 2},
            "orphans": {"path": str(home / "root"), "instances": 2, "orphan_after": ORPHAN_AFTER},
        },
    )
    stack.migrate()
    try:
        stack.start(DAGS)
        yield stack
    finally:
        stack.stop_all()
        for folder in home.glob("*/machines/*"):
            kill(processes_of(folder.name, []))


@pytest.fixture(scope="session")
def begin(stack: Stack) -> Iterator[Begin]:
    """Starts a DAG run; its machines are watched from then on."""
    watcher = machines.Watcher()
    begun: list[JobRun] = []

    def start(dag_id: str, root: str = "root") -> JobRun:
        folder = stack.home / f"{dag_id}-{len(begun)}"
        run = JobRun(stack, dag_id, folder, stack.home / root, watcher)
        begun.append(run)
        return run.begin()

    yield start
    watcher.stop()
    left = {name for run in begun for name in run.machines()}
    assert left == set(), "machines outlived their jobs"


@pytest.fixture(scope="session")
def under_way(request: pytest.FixtureRequest, begin: Begin) -> Iterator[dict[Row, Future[dict[str, Any]]]]:
    """The rows that were selected, some of them running."""
    rows = [
        item.callspec.params["row"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "row" in getattr(item, "fixturenames", ())
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {row: pool.submit(row, begin) for row in rows}


@pytest.fixture
def undisturbed(under_way: dict[Row, Future[dict[str, Any]]], begin: Begin) -> Begin:
    """For tests that disturb Airflow itself: they begin when no other row needs it any more."""
    wait(under_way.values())
    return begin
