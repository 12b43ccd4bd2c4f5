"""A connection that stands in Airflow's database, as ``airflow connections add`` leaves it there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DAG = """
from airflow.sdk import dag, task


@task.spot_map(conn_id="of_the_database")
def double(number: int) -> int:
    return 2 * number


@dag(schedule=None)
def by_a_stored_connection():
    double([1, 2, 3])


by_a_stored_connection()
"""


@pytest.fixture
def stored_connection(dag_bag: Any, tmp_path: Path) -> Iterator[Path]:
    """Where it leads: a site of its own."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    site = tmp_path / "site"
    with create_session() as session:
        extra = json.dumps({"path": str(site)})
        session.add(Connection(conn_id="of_the_database", conn_type="spotbatch", extra=extra))
    yield site
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id == "of_the_database").delete()


def test_a_deferred_job_goes_on_where_a_stored_connection_leads(
    stored_connection: Path, add_dags: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "stored.py").write_text(DAG)

    run = add_dags(folder).get_dag("by_a_stored_connection").test()

    assert run.state == "success"
    assert list((stored_connection / "store" / "out").iterdir()), "its results are elsewhere"
