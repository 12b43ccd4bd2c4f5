"""A program: one job on the local backend, its metrics through Airflow's Stats. Argument: its folder.

Each step of a task is a controller of its own here, as it is in Airflow: the first tick, the drive to the
end, the finish.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import Stats

from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.metrics import AirflowMetrics, airflow_metrics
from airflow_provider_spotbatch.worker import Worker
from tests.support.runs import CONN_ID, job_request, site_in

ITEMS = 30
WRONG = 3


def third(item: int) -> float:
    if item < WRONG:
        raise ValueError("this item is wrong")
    return item / 3


def main(folder: str) -> None:
    assert isinstance(airflow_metrics(), AirflowMetrics), "Airflow collects nothing"
    with pytest.MonkeyPatch.context() as patch:
        site_in(Path(folder), patch)
        metrics = AirflowMetrics(Stats, tagged=False, every=0.1)
        worker = Worker(SpotBatchHook(CONN_ID).get_settings(), lambda line: None, metrics=metrics)
        worker.submit(job_request(third, range(ITEMS), item_retries=1, on_item_error="collect"))
        assert not worker.first_tick()
        worker.drive()
        assert worker.finish().failed == WRONG


if __name__ == "__main__":
    main(sys.argv[1])
