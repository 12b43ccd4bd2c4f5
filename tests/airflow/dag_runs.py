"""Fixtures for tests that run DAGs, in an Airflow of this session's own: sqlite in the temporary
AIRFLOW_HOME, the DAGs beside this file. A conftest imports them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.ran import Ran, RunDag

DAGS = Path(__file__).parent / "dags"
BUNDLE = "dags-folder"

# Read by Airflow when it is first imported or asked, which is after this.
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(DAGS)
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"


@pytest.fixture(scope="session")
def dag_bag() -> Any:
    """The DAGs of the tests, known to an initialised database."""
    from airflow import settings
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Airflow's own libraries say of each other when imported
        import airflow.api_fastapi.execution_api.app  # noqa: F401
    if settings.Session is None:
        settings.configure_orm()
    initdb()
    DagBundlesManager().sync_bundles_to_db()
    bag = _dag_bag()
    assert bag.import_errors == {}
    _sync(bag)
    return bag


@pytest.fixture
def add_dags(dag_bag: Any) -> Callable[[Path], Any]:
    """Make the DAGs of another folder known to the same database; their bag."""

    def add(folder: Path) -> Any:
        bag = _dag_bag(folder)
        assert bag.import_errors == {}
        _sync(bag)
        return bag

    return add


def _dag_bag(folder: Path = DAGS) -> Any:
    try:
        from airflow.dag_processing.dagbag import BundleDagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import BundleDagBag
    return BundleDagBag(dag_folder=str(folder), bundle_path=folder)


def _sync(bag: Any) -> None:
    try:
        from airflow.dag_processing.dagbag import sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import sync_bag_to_db
    sync_bag_to_db(bag, BUNDLE, None)


@pytest.fixture
def days() -> Iterator[datetime]:
    """Logical dates that no other test uses."""
    return _DAYS


def _all_days() -> Iterator[datetime]:
    day = datetime(2026, 1, 1, tzinfo=timezone.utc)
    while True:
        yield day
        day += timedelta(days=1)


_DAYS = _all_days()


@pytest.fixture
def run_dag(
    dag_bag: Any, days: Iterator[datetime], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> RunDag:
    """Run a DAG to its end with ``dag.test()``; ``params`` reach its tasks. The day of an earlier run
    (``again``) makes a new try of the same task instances."""

    def run(dag_id: str, *, again: Ran | None = None, **params: Any) -> Ran:
        dag = dag_bag.get_dag(dag_id)
        day = next(days) if again is None else again.run.logical_date
        dag_run = dag.test(run_after=day, logical_date=day, run_conf={"folder": str(tmp_path), **params})
        log = capsys.readouterr().out
        print(log)  # shown if the test fails
        return Ran(dag, dag_run, tmp_path, log)

    return run


@pytest.fixture
def clear(dag_bag: Any) -> Callable[[Ran], Ran]:
    """Clear all tasks of a DAG run, as a user does, and run them again."""
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState

    def clear_and_run(ran: Ran) -> Ran:
        with create_session() as session:
            run = session.merge(ran.run)
            clear_task_instances(run.get_task_instances(session=session), session)
            run.state = DagRunState.RUNNING
            session.commit()
            run.dag = _scheduler_dag(ran.dag)
            while run.state == DagRunState.RUNNING:
                session.expire_all()
                ready, _ = run.update_state(session=session)
                for ti in ready:
                    ti.try_number += 1
                    ti.state = TaskInstanceState.SCHEDULED
                session.commit()
                for ti in ready:
                    _run_task(ti=ti, task=ran.dag.task_dict[ti.task_id], run_triggerer=True)
            session.expunge_all()
        return Ran(ran.dag, run, ran.folder)

    return clear_and_run


def _scheduler_dag(dag: Any) -> Any:
    try:
        from airflow.serialization.serialized_objects import DagSerialization
    except ImportError:  # Airflow 3.1
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
