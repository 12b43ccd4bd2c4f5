"""A job on the local backend without Airflow's task around it: the parts that a task's time goes into."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch import Environment, MapResult
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.drive import drive
from airflow_provider_spotbatch.control.finish import finish
from airflow_provider_spotbatch.control.site import Site, open_site
from airflow_provider_spotbatch.control.submit import JobRequest, submit
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.spec import CALL_ITEM

ROOT = Path(__file__).parents[1]


@contextmanager
def local_connection(**extra: Any) -> Iterator[Settings]:
    """A connection to a local backend in a folder of its own, which is removed afterwards; ``extra``:
    more of its fields."""
    with tempfile.TemporaryDirectory(prefix="spotbatch-bench-") as folder:
        os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(
            {"conn_type": "spotbatch", "extra": {"backend": "local", "path": folder, **extra}}
        )
        yield SpotBatchHook("bench").get_settings()


def submit_job(
    settings: Settings,
    function: Callable[..., Any],
    items: Iterable[Any],
    policy: Policy | None = None,
    run_id: str = "bench",
) -> Run:
    """Store a job and its run; nothing is launched yet. A DAG run of another ``run_id`` is another job."""
    request = job_request(function, items, policy or Policy(), run_id)

    async def stored() -> Run:
        submitted = await submit(open_site(settings), request, silent)
        assert submitted.run is not None
        return submitted.run

    return asyncio.run(stored())


def job_request(
    function: Callable[..., Any], items: Iterable[Any], policy: Policy, run_id: str = "bench"
) -> JobRequest:
    return JobRequest(
        deployment="bench",
        dag_id="bench",
        run_id=run_id,
        task_id=function.__name__,
        map_index=-1,
        max_tries=0,
        dag_run_started="",
        packing=Packing(
            function=function,
            dotted=None,
            command=None,
            kwargs={},
            call=CALL_ITEM,
            environment=Environment(),
            bundle=str(ROOT),
            name=function.__name__,
        ),
        items=items,
        policy=policy,
    )


def run_job(settings: Settings, run: Run) -> MapResult:
    """Drive a submitted run to its end; its results."""

    async def driven() -> MapResult:
        site: Site = open_site(settings)
        await drive(Controller(site, run, silent), silent)
        outcome = await finish(site, run, silent)
        if outcome.failed:
            raise SystemExit(f"the measured job failed: {outcome.message}")
        return MapResult.of(outcome, settings.conn_id, site.store.uri)

    return asyncio.run(driven())


def silent(line: str) -> None:
    """The narration of a measured job is nobody's."""
