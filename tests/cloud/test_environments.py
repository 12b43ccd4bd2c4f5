"""Whole jobs in the box, by what their machines bring: the distributions that the function imports; and what
the task says where machines cannot have what they need."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, MapResult
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet
from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.worker import Worker
from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE
from tests.support.machine_work import greet, version_of_six
from tests.support.runs import REPOSITORY, drive

CONN_ID = "spotbatch_default"
BUCKET = "environments"


@pytest.fixture(scope="session")
def box_connections(running_box: Cloudbox) -> dict[str, dict[str, Any]]:
    return connections(running_box, make_account(running_box, BUCKET))


class Jobs:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def outcome(
        self,
        function: Callable[..., Any],
        items: list[Any],
        *,
        run_id: str = "run",
        before: Callable[[], None] = lambda: None,
        **environment: Any,
    ) -> Outcome:
        """Run a job, each item on a machine of its own. ``before``: what is done between its submission and
        the first launch."""
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
        resources = Resources(instance_types=("m5.large",), cpus=2, architectures=(ARCHITECTURE,))
        policy = Policy(concurrency=len(items), resources=resources)
        names = ("tests", "dag", run_id, function.__name__, -1, 0, "")
        assert worker.submit(JobRequest(*names, packing, items, policy)).outcome is None
        before()
        return drive(worker)

    def results(self, function: Callable[..., Any], items: list[Any], **environment: Any) -> list[Any]:
        outcome = self.outcome(function, items, **environment)
        assert outcome.state == "succeeded", outcome.message
        store = SpotBatchHook(CONN_ID).get_settings().store
        return list(MapResult.of(outcome, CONN_ID, store))


@pytest.fixture
def jobs(
    box: Cloudbox,
    box_connections: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Jobs:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.getbasetemp() / "airflow"))
    monkeypatch.setattr(Ec2Fleet, "visibility_bound", 1.0)  # machines of the box are seen at once
    for name, connection in box_connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    return Jobs([])


def test_without_packages_it_has_what_the_function_imports_as_it_is_here(jobs: Jobs) -> None:
    import six  # type: ignore[import-untyped]

    assert jobs.results(version_of_six, [0]) == [six.__version__]
    [told] = [line for line in jobs.said if line.startswith("machines get what the function imports")]
    assert f"six=={six.__version__}" in told


def test_a_setup_script_that_fails_stops_the_job_with_what_it_printed(box: Cloudbox, jobs: Jobs) -> None:
    before = len(box.instances())
    outcome = jobs.outcome(greet, [0, 1, 2], setup="echo no such driver\nexit 3\n")
    assert outcome.state == "failed"
    assert "machines in a row ended before they ran an item" in outcome.message
    assert "no such driver" in outcome.message
    assert "environment.setup failed with exit code 3" in outcome.message
    assert len(box.instances()) <= before + 5  # two may be replaced before the third is seen to have failed
    assert box.machines() == []
    assert any("environment.setup failed with exit code 3" in line for line in jobs.said)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("removed", "is missing in the store: clear the task to submit it again"),
        ("changed", "was changed after it was written: clear the task to submit it again"),
    ],
)
def test_a_damaged_blob_stops_the_job_with_its_name(
    box: Cloudbox, jobs: Jobs, damage: str, reason: str
) -> None:
    """All that a submission stores for machines to unpack is there when it ends."""
    s3 = box.client("s3")

    def spoil() -> None:
        for each in s3.list_objects_v2(Bucket=BUCKET, Prefix="spotbatch/blobs/")["Contents"]:
            if damage == "removed":
                s3.delete_object(Bucket=BUCKET, Key=each["Key"])
            else:
                s3.put_object(Bucket=BUCKET, Key=each["Key"], Body=b"something else")

    outcome = jobs.outcome(greet, [0, 1, 2], run_id=damage, before=spoil)
    assert outcome.state == "failed"
    assert "blobs/" in outcome.message
    assert reason in outcome.message


def test_boot_data_that_ec2_would_not_take_fails_the_job_before_anything_starts(
    box: Cloudbox, jobs: Jobs, box_connections: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "".join(random.Random(0).choices(string.ascii_letters, k=8000))
    options = {"client_options": {"allow_http": True, "user_agent": noise}}
    connection = box_connections[CONN_ID]
    extra = {**connection["extra"], "store_options": options}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps({**connection, "extra": extra}))
    before = len(box.instances())
    with pytest.raises(InvalidInput, match="EC2 allows 16384: shorten 'store_options' of the connection"):
        jobs.outcome(greet, [0], run_id="long")
    assert len(box.instances()) == before
