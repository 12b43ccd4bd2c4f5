from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job import report
from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.report import (
    SEAL_AFTER,
    EndedChunk,
    Report,
    RunningItem,
    seal_from_bytes,
    seal_to_bytes,
)

ENDED = (
    EndedChunk("0001-0000001-00000", 10, 1, 3.25, 4096),
    EndedChunk("0001-0000001-00001", 0, 0, 0.0, 0, found=True),
)
REPORT = Report(
    instance="i-1",
    launch=2,
    memory_class=1,
    slots=4,
    sequence=9,
    state=report.DRAINING,
    reason="interruption notice",
    interrupted=True,
    ended=ENDED,
    sealed=3,
    held=("0001-0000001-00002",),
    running=(RunningItem(17, 2, "0001-0000001-00002", 1.5),),
    empty_seconds=2.5,
    items_ok=9,
    items_failed=1,
    item_seconds=3.25,
    boot_log="booted\n",
    use={"cpu": 0.5},
)


def test_a_report_reads_back() -> None:
    assert Report.from_bytes(REPORT.to_bytes()) == REPORT


def test_a_first_report_reads_back() -> None:
    first = Report("i-1", 0, 0, 1, 0, report.BOOTING)

    assert Report.from_bytes(first.to_bytes()) == first


def test_a_seal_reads_back() -> None:
    assert seal_from_bytes(seal_to_bytes(ENDED)) == ENDED


def test_a_report_about_to_be_sealed_stays_small() -> None:
    full = Report("i-1", 1, 0, 8, 1, report.RUNNING, ended=ENDED[:1] * SEAL_AFTER)

    assert len(full.to_bytes()) < 40_000


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_format_is_refused(version: int | None) -> None:
    with pytest.raises(FormatMismatch, match="report"):
        Report.from_bytes(json.dumps({**json.loads(REPORT.to_bytes()), "format": version}).encode())
    with pytest.raises(FormatMismatch, match="seal"):
        seal_from_bytes(json.dumps({**json.loads(seal_to_bytes(ENDED)), "format": version}).encode())
