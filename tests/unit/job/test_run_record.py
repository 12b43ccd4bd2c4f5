from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer

RECORD = RunRecord(
    run=2,
    policy=Policy(item_retries=0, resources=Resources(memory_gb=8), max_failures=0.5),
    concurrency=64,
    max_tries=1,
    dag_run_started="2024-02-29T12:00:00+00:00",
    previous=1,
    created=1.5,
)


def test_it_reads_back(signer: Signer) -> None:
    assert RunRecord.from_bytes(signer, 2, RECORD.to_bytes(signer)) == RECORD


def test_it_is_refused_as_another_runs(signer: Signer) -> None:
    with pytest.raises(SignatureMismatch):
        RunRecord.from_bytes(signer, 3, RECORD.to_bytes(signer))


def test_an_unknown_format_is_refused_though_signed(signer: Signer) -> None:
    body = {**json.loads(RECORD.to_bytes(signer))["body"], "format": 2}

    with pytest.raises(FormatMismatch, match=r"run\.json"):
        RunRecord.from_bytes(signer, 2, signer.sign_json("run", "run/2", body))
