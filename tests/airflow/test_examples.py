"""The example DAGs on the local backend, each run as it stands, with small inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.examples import EXAMPLES, names, of_its_docstring
from tests.airflow.ran import RunDag

DAGS = Path(__file__).parent / "dags"


def test_every_example_is_run() -> None:
    assert sorted(EXAMPLES) == names()
    assert {f"{name}.py" for name in names()} <= {path.name for path in DAGS.iterdir()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(
    name: str, run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[name]
    if name == "checkpoints":  # under the connection that it shows
        connection = of_its_docstring("checkpoints.py", r"AIRFLOW_CONN_SPOTBATCH_DEFAULT='(.*?)'")
        connection["extra"]["path"] = str(tmp_path / "root")
        monkeypatch.setenv("AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps(connection))
    folder = f"file://{tmp_path}" if example.reads else str(tmp_path)
    example.check(run_dag(name, folder=folder, **example.params), folder)
