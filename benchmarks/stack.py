"""DAG runs on a real Airflow: scheduler with LocalExecutor, triggerer, dag-processor and API server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Generation, job_id
from benchmarks.dags.maps import EXPANDED, ITEMS
from benchmarks.spans import span_of
from tests.airflow.stack.airflow_stack import DEPLOYMENT, Stack
from tests.airflow.stack.waiting import until

DAGS = Path(__file__).parent / "dags"
CONN_ID = "spotbatch_default"
LONGEST = 600.0
"""Seconds that a DAG run may take: some 90 were seen for 200 mapped tasks."""


class DagRuns(NamedTuple):
    """Seconds of both DAG runs, for as many items; and from ``execute()`` to the first item's start."""

    ours: float
    expand: float
    first_item: float


def run_dags(home: Path) -> DagRuns:
    """Both DAGs, one after the other, on one Airflow in the folder ``home``."""
    with _stack(home) as stack:
        ours = _run(stack, "by_spotbatch", {"folder": str(home)})
        expand = _run(stack, "by_expand", {})
    generation = Generation(job_id(DEPLOYMENT, "by_spotbatch", "bench", "work", -1), 1)
    span = span_of(SpotBatchHook(CONN_ID).get_settings(), generation)
    begun = float((home / "execute").read_text())
    return DagRuns(ours, expand * ITEMS / EXPANDED, span.first_start - begun)


@contextmanager
def _stack(home: Path) -> Iterator[Stack]:
    extra = {"path": str(home / "root")}
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = json.dumps({"conn_type": "spotbatch", "extra": extra})
    stack = Stack(home, {CONN_ID: extra}, dags=DAGS)
    stack.migrate()
    try:
        stack.start(["by_spotbatch", "by_expand"])
        yield stack
    finally:
        stack.stop_all()


def _run(stack: Stack, dag_id: str, params: dict[str, str]) -> float:
    """Seconds from a DAG run's start to its end, by Airflow's own times."""
    stack.api.post(f"dags/{dag_id}/dagRuns", {"dag_run_id": "bench", "logical_date": None, "conf": params})
    path = f"dags/{dag_id}/dagRuns/bench"
    run = until(lambda: _ended(stack.api.get(path)), LONGEST, lambda: stack.api.get(path))
    if run is None or run["state"] != "success":
        raise SystemExit(f"the measured DAG run failed: {run}")
    begun, ended = (datetime.fromisoformat(run[date]) for date in ("start_date", "end_date"))
    return (ended - begun).total_seconds()


def _ended(run: dict[str, str]) -> dict[str, str] | None:
    return run if run["state"] in ("success", "failed") else None
