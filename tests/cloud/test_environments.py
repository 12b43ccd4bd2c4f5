"""Whole jobs in the box, for what their machines must bring: packages, secrets, a setup script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, MapResult
from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.worker import Worker
from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE
from tests.support.machine_work import look_around, version_of_six
from tests.support.runs import REPOSITORY, drive

CONN_ID = "spotbatch_default"


@pytest.fixture(scope="session")
def box_connections(running_box: Cloudbox) -> dict[str, dict[str, Any]]:
    return connections(running_box, make_account(running_box, "environments"))


class Jobs:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def results(self, function: Any, items: list[Any], **environment: Any) -> list[Any]:
        worker = Worker(SpotBatchHook(CONN_ID).get_settings(), self.said.append, None)
        packing = Packing(
            function=function,
            dotted=None,
            command=None,
            kwargs={},
            call="item",
            environment=Environment(**environment),
            bundle=str(REPOSITORY),
            name=function.__name__,
        )
        policy = Policy(concurrency=1, resources=Resources(architectures=(ARCHITECTURE,)))
        names = ("tests", "dag", "run", function.__name__, -1, 0, "")
        assert worker.submit(JobRequest(*names, packing, items, policy)).outcome is None
        outcome = drive(worker)
        assert outcome.state == "succeeded", outcome.message
        return list(MapResult.of(outcome, CONN_ID, worker.store_uri))


@pytest.fixture
def jobs(
    box: Cloudbox,
    box_connections: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Jobs:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.getbasetemp() / "airflow"))
    for name, connection in box_connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    return Jobs([])


def test_a_job_has_packages_secrets_and_its_setup_script(box: Cloudbox, jobs: Jobs) -> None:
    secret = box.client("secretsmanager").create_secret(Name="db", SecretString="swordfish")["ARN"]
    box.client("ssm").put_parameter(Name="/limit", Value="12", Type="SecureString")
    parameter = box.client("ssm").get_parameter(Name="/limit")["Parameter"]["ARN"]
    [found] = jobs.results(
        look_around,
        [7],
        packages=["python-dateutil==2.9.0", "jmespath"],
        secrets={"PASSWORD": secret, "LIMIT": parameter},
        setup="id -un > /etc/set-up",
    )
    assert found == {
        "item": 7,
        "root": False,
        "password": "swordfish",
        "limit": "12",
        "set up by": "root",
        "dateutil": "2.9.0",
        "command": 0,
        "oom": 500,
    }
    assert "swordfish" not in "\n".join(jobs.said)


def test_without_packages_it_has_what_the_function_imports_as_it_is_here(jobs: Jobs) -> None:
    import six  # type: ignore[import-untyped]

    assert jobs.results(version_of_six, [0]) == [six.__version__]
    [told] = [line for line in jobs.said if line.startswith("machines get what the function imports")]
    assert f"six=={six.__version__}" in told
