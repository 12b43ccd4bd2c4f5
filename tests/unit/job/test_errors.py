from __future__ import annotations

import pytest

from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    NoCapacity,
    QuotaExceeded,
    Refusal,
    Throttled,
    refusal_from_json,
)


@pytest.mark.parametrize(
    ("verdict", "fatal"),
    [
        (NoCapacity("m"), False),
        (Throttled("m"), False),
        (QuotaExceeded("m"), False),
        (QuotaExceeded("m", below_one_machine=True), True),
        (AccessDenied("m"), True),
        (BadRequest("m"), True),
    ],
)
def test_only_what_waiting_cannot_cure_is_fatal(verdict: Refusal, fatal: bool) -> None:
    assert verdict.fatal is fatal


@pytest.mark.parametrize("verdict", [NoCapacity, Throttled, QuotaExceeded, AccessDenied, BadRequest])
def test_a_verdict_reads_back(verdict: type[Refusal]) -> None:
    refusal = verdict("what happened", remedy="what to do", code="Cloud.Code")

    read = refusal_from_json(refusal.to_json())

    assert type(read) is verdict
    assert read.to_json() == refusal.to_json()
    assert str(read) == "what happened. what to do"
    assert str(verdict("what happened")) == "what happened"
