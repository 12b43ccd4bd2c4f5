"""A job on machines whose connection rehearses interruptions: the user sees it survive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_spotbatch import MapResult, Resources
from tests.support.runs import CONN_ID, drive, site_in

SCRIPT = [
    {"after": 4, "how": "notice", "machine": 0},
    {"after": 4.5, "how": "vanish", "machine": 1},
    {"after": 3, "how": "freeze", "machine": 2, "seconds": 13},
]


def test_all_results_come_once_and_interrupted_machines_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(item: int) -> int:
        time.sleep(0.25)
        return item * item

    site = site_in(tmp_path / "root", monkeypatch, instances=3, rehearse=SCRIPT)
    small = Resources(cpus=0.1, memory_gb=0.1)
    worker = site.submit(work, range(90), item_retries=0, concurrency=3, resources=small)
    outcome = drive(worker)

    assert (outcome.ok, outcome.failed, outcome.causes) == (90, 0, {})
    assert list(MapResult.of(outcome, CONN_ID, worker.store_uri)) == [n * n for n in range(90)]
    assert site.processes == []
    log = "\n".join(site.said)
    ends = [line for line in site.said if "ended: " in line]
    assert len(site.machines) >= 5, log
    assert any("interrupted without notice" in line for line in ends), log
    assert log.count(" was interrupted with ") >= 1, log
