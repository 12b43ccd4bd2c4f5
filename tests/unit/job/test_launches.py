from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job import launches
from airflow_provider_spotbatch.job.errors import FormatMismatch, NoCapacity, QuotaExceeded
from airflow_provider_spotbatch.job.launches import Instance, LaunchOutcome, LaunchRecord

RECORD = LaunchRecord(
    number=3,
    memory_class=1,
    slots=(4, 4, 2),
    token="job-1-3",
    purchase="on-demand",
    request={"usd_per_hour": 0.25, "types": ["c7g.large"]},
    reason="10 items wait, 4 slots run",
)
OUTCOME = LaunchOutcome(
    (
        Instance("i-1", 3, launches.RUNNING, 4, 0.25),
        Instance("i-2", 3, launches.TERMINATED, 4, 0.25, interrupted=True, reason="reclaimed"),
    ),
    (
        NoCapacity("no c7g.large in zone a", remedy="another zone", code="Insufficient"),
        QuotaExceeded("4 vCPU", below_one_machine=True),
    ),
)


@pytest.mark.parametrize("record", [RECORD, LaunchRecord(4, closed=True)], ids=["launch", "closed"])
def test_a_record_reads_back(record: LaunchRecord) -> None:
    assert LaunchRecord.from_bytes(record.to_bytes()) == record


def test_equal_records_have_equal_bytes() -> None:
    turned = LaunchRecord(**{**RECORD.__dict__, "request": dict(reversed(RECORD.request.items()))})

    assert turned.to_bytes() == RECORD.to_bytes()


def test_an_outcome_reads_back_with_its_verdicts() -> None:
    read = LaunchOutcome.from_bytes(OUTCOME.to_bytes())

    assert read.instances == OUTCOME.instances
    assert [type(refusal) for refusal in read.refusals] == [NoCapacity, QuotaExceeded]
    assert [refusal.to_json() for refusal in read.refusals] == [
        refusal.to_json() for refusal in OUTCOME.refusals
    ]


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_format_is_refused(version: int | None) -> None:
    with pytest.raises(FormatMismatch, match="record"):
        LaunchRecord.from_bytes(json.dumps({**json.loads(RECORD.to_bytes()), "format": version}).encode())
    with pytest.raises(FormatMismatch, match="outcome"):
        LaunchOutcome.from_bytes(json.dumps({**json.loads(OUTCOME.to_bytes()), "format": version}).encode())
