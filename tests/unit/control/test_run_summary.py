"""How long a run took, as lists and pictures tell it."""

from __future__ import annotations

import pytest

from airflow_provider_spotbatch.control.run_summary import RUNNING, UNFINISHED, RunSummary
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.run_outcome import CANCELLED

RUN = Run(Generation("shop-total-608a5cac608c5c2b", 1), 1)


@pytest.mark.parametrize(("state", "seconds"), [(RUNNING, 900.0), (CANCELLED, 22.0), (UNFINISHED, 22.0)])
def test_only_a_run_that_somebody_drives_goes_on_counting_its_time(state: str, seconds: float) -> None:
    summary = RunSummary(RUN, {}, state, items=40, ok=4, failed=0, started=100.0, last_seen=122.0)

    assert summary.duration(now=1000.0) == seconds


def test_a_run_with_an_outcome_took_until_then() -> None:
    summary = RunSummary(RUN, {}, "succeeded", items=40, ok=40, failed=0, started=100.0, ended=130.0)

    assert summary.duration(now=1000.0) == 30.0
