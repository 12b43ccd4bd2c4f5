"""The command line reads a connection as Airflow's own does: from its database too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.cli import main


@pytest.fixture
def stored_connection(dag_bag: Any, tmp_path: Path) -> Iterator[str]:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    extra = json.dumps({"path": str(tmp_path / "site")})
    with create_session() as session:
        session.add(
            Connection(conn_id="stored", conn_type="spotbatch", password="of the database", extra=extra)
        )
    yield "stored"
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id == "stored").delete()


def test_a_connection_of_the_database_is_found(
    stored_connection: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "--conn-id", stored_connection]) == 0
    assert f"there are no jobs in file://{tmp_path}/site/store" in capsys.readouterr().err


def test_one_that_is_nowhere_is_one_clear_line(dag_bag: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--conn-id", "nowhere"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: the connection 'nowhere' does not exist")
    assert len(shown.err.splitlines()) == 1
