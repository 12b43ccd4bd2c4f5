"""Every hour: end machines that outlived their run, remove queues and items that belong to nobody, and
jobs that were over for longer than the connection's ``retention_days`` (without it none is removed).

One such DAG for each connection. A task that fails names the machines that could not be ended.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from airflow.sdk import dag, task

CONN_ID = "spotbatch_default"


@task(retries=2)
def sweep(conn_id: str) -> dict[str, int]:
    """How much was ended and removed, by kind."""
    from airflow_provider_spotbatch.control.site import open_site
    from airflow_provider_spotbatch.control.sweep import sweep as sweep_site
    from airflow_provider_spotbatch.hooks import SpotBatchHook

    settings = SpotBatchHook(conn_id).get_settings()
    swept = asyncio.run(sweep_site(open_site(settings), print))
    return {
        "machines": len(swept.machines),
        "queues": len(swept.queues),
        "submissions": len(swept.submissions),
        "forgotten": swept.forgotten,
        "alive": swept.alive,
    }


@task(retries=2)
def clean(conn_id: str) -> int:
    """How many jobs were removed."""
    from airflow_provider_spotbatch.control.clean import clean as clean_site
    from airflow_provider_spotbatch.control.site import open_site
    from airflow_provider_spotbatch.hooks import SpotBatchHook

    settings = SpotBatchHook(conn_id).get_settings()
    if settings.retention_days is None:
        return 0
    kept_seconds = settings.retention_days * 24 * 3600
    return len(asyncio.run(clean_site(open_site(settings), kept_seconds, print)).jobs)


@dag(
    schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False, tags=["example"]
)
def hourly_sweep() -> None:
    sweep(CONN_ID)
    clean(CONN_ID)


hourly_sweep()
