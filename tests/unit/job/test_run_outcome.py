from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job import run_outcome
from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.job.signing import Signer

OUTCOME = Outcome(
    state=run_outcome.FAILED,
    message="2 of 10 items failed",
    retryable=True,
    job="job",
    generation=1,
    run=2,
    items=10,
    ok=8,
    failed=2,
    causes={"error": 1, "timeout": 1},
    started=1.5,
    ended=4.0,
    cost_usd=0.25,
)


def test_it_reads_back(signer: Signer) -> None:
    assert Outcome.from_bytes(signer, 2, OUTCOME.to_bytes(signer)) == OUTCOME


def test_it_names_its_run() -> None:
    assert OUTCOME.of_run == Run(Generation("job", 1), 2)


def test_it_is_refused_as_another_runs(signer: Signer) -> None:
    with pytest.raises(SignatureMismatch):
        Outcome.from_bytes(signer, 1, OUTCOME.to_bytes(signer))


def test_an_unknown_format_is_refused_though_signed(signer: Signer) -> None:
    body = {**json.loads(OUTCOME.to_bytes(signer))["body"], "format": 2}

    with pytest.raises(FormatMismatch, match=r"outcome\.json"):
        Outcome.from_bytes(signer, 2, signer.sign_json("outcome", "outcome/2", body))
