"""``spotbatch estimate`` where nothing is paid, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_spotbatch.cli import main


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    extra = {"backend": "local", "path": str(tmp_path)}
    monkeypatch.setenv(
        "AIRFLOW_CONN_HERE", json.dumps({"conn_type": "spotbatch", "password": "k" * 32, "extra": extra})
    )


def test_a_job_on_this_machine_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--conn-id", "here", "--items", "50", "--item-seconds", "4", "--concurrency", "2"]
    assert main(["estimate", *words]) == 0
    assert capsys.readouterr().out == "nothing is paid for these machines\n50 items take about 2 min\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_items_take_some_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--conn-id", "here", "--items", "5", f"--item-seconds={seconds}"]
    assert main(["estimate", *words]) == 1
    assert "--item-seconds must be above 0" in capsys.readouterr().err


def test_an_item_that_fits_nowhere_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--conn-id", "here", "--items", "5", "--gpus", "1", "--memory-gb", "0"]) == 1
    assert "memory_gb must be a number above 0" in capsys.readouterr().err
