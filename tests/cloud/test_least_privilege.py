"""Whole jobs where everybody may do only what ``spotbatch setup`` and ``grant`` printed, on machines with no
route but to the cloud: Airflow with its policy, machines with their role, items with what they bring."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, MapResult
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet
from airflow_provider_spotbatch.backends.aws.queue import queue_prefix
from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Generation, Run, job_id
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.worker import Worker
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE, DEBIAN_12, DEBIAN_13, Image
from tests.cloud.cloudbox.moto import ACCOUNT as ACCOUNT_ID
from tests.support.machine_rights import look_at_all
from tests.support.runs import REPOSITORY, drive

PYTHONS = {DEBIAN_12: "3.11", DEBIAN_13: "3.13"}
BUCKET, PREFIX = "least-privilege", "team/spot"
STORE = f"s3://{BUCKET}/{PREFIX}"
PACKAGES = ("requests==2.32.5", "requests-aws4auth==1.3.1", "markupsafe==3.0.3")

ALLOWED = {"write below out/", "read the specification", "list the store", "find its queue"}
REFUSED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


@dataclass(frozen=True)
class Account:
    """What set-up made. ``connection``: as it printed it; ``key``: of Airflow's own user."""

    connection: dict[str, Any]
    key: dict[str, str]
    secret: str
    parameter: str
    other: str

    def connections(self, box: Cloudbox, image: Image) -> dict[str, str]:
        amazon = {
            "conn_type": "aws",
            "login": self.key["AccessKeyId"],
            "password": self.key["SecretAccessKey"],
            "extra": {"region_name": box.region, "endpoint_url": box.endpoint_url},
        }
        extra = {**self.connection["extra"], "image": image.id}
        return {
            "AIRFLOW_CONN_AIRFLOWS_OWN": json.dumps(amazon),
            "AIRFLOW_CONN_SPOT": json.dumps({**self.connection, "extra": extra}),
        }


@pytest.fixture(scope="module")
def account(running_box: Cloudbox) -> Iterator[Account]:
    """An account with a set-up, two granted secrets and one that is not; policies are enforced."""
    box = running_box
    secrets = box.client("secretsmanager")
    secret, other = (
        secrets.create_secret(Name=name, SecretString=text)["ARN"]
        for name, text in (("granted", "swordfish"), ("another-team", "hands off"))
    )
    box.client("ssm").put_parameter(Name="/granted/limit", Value="12", Type="SecureString")
    parameter = box.client("ssm").get_parameter(Name="/granted/limit")["Parameter"]["ARN"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in box.environment().items():
            patch.setenv(name, value)
        made = spotbatch("setup", "aws", "--bucket", f"{BUCKET}/{PREFIX}", "--aws-conn-id", "airflows_own")
        spotbatch("grant", "aws", "--secret", secret, "--secret", parameter)
    box.client("s3").put_object(Bucket=BUCKET, Key="else/private", Body=b"of another team")
    iam = box.client("iam")
    iam.create_user(UserName="airflow")
    iam.attach_user_policy(UserName="airflow", PolicyArn=made["airflow_policy_arn"])
    key = iam.create_access_key(UserName="airflow")["AccessKey"]
    box.enforce_policies()
    yield Account(made["connection"], key, secret, parameter, other)
    box.relent()
    box.end_machines()


def spotbatch(*words: str) -> Any:
    """Run a command as an administrator does; its answer."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main([*words, "--json"]) == 0
    return json.loads(told.getvalue())


@pytest.fixture(scope="module", params=[DEBIAN_12, DEBIAN_13], ids=lambda image: image.suite)
def found(
    request: pytest.FixtureRequest,
    running_box: Cloudbox,
    account: Account,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What the one item of a job found on its machine."""
    image: Image = request.param
    folder = tmp_path_factory.mktemp(image.suite)
    (folder / "given.txt").write_text("from the Airflow side")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.getbasetemp() / "airflow"))
        patch.setattr(Ec2Fleet, "visibility_bound", 1.0)  # machines of the box are seen at once
        for name, value in account.connections(running_box, image).items():
            patch.setenv(name, value)
        return {"image": image, "box": running_box, **run_job(running_box, account, image, folder)}


def run_job(box: Cloudbox, account: Account, image: Image, folder: Path) -> dict[str, Any]:
    said: list[str] = []
    worker = Worker(SpotBatchHook("spot").get_settings(), said.append, None)
    names = ("tests", "dag", image.suite, "look", -1)
    run = Run(Generation(job_id(*names), 1), 1)
    there = {
        "region": box.region,
        "endpoint": box.endpoint_url,
        "id": ACCOUNT_ID,
        "bucket": BUCKET,
        "prefix": PREFIX,
        "spec": run.generation.spec,
        "out": run.generation.out,
        "queue": queue_prefix(STORE) + run.queue(0),
        "role": account.connection["extra"]["instance_profile"],
        "secret": account.other,
        "image": image.id,
    }
    importable = PYTHONS[image] != CURRENT_PYTHON  # a function pickled here runs on this Python alone
    environment = Environment(
        python=PYTHONS[image],
        packages=PACKAGES,
        files={"given.txt": str(folder / "given.txt")},
        env={"GREETING": "hello"},
        secrets={"PASSWORD": account.secret, "LIMIT": account.parameter},
        setup="id -un > /etc/set-up",
    )
    packing = Packing(
        function=None if importable else look_at_all,
        dotted=f"{look_at_all.__module__}.look_at_all" if importable else None,
        command=None,
        kwargs={"account": there},
        call="item",
        environment=environment,
        bundle=str(REPOSITORY),
        name="look",
    )
    policy = Policy(concurrency=1, resources=Resources(architectures=(ARCHITECTURE,)))
    assert worker.submit(JobRequest(*names, 0, "", packing, [7], policy)).outcome is None
    outcome = drive(worker)
    assert outcome.state == "succeeded", outcome.message
    [item] = MapResult.of(outcome, "spot", worker.store_uri)
    return {**item, "said": said}


def test_an_item_has_all_that_its_environment_names(found: dict[str, Any]) -> None:
    assert found["machine"] == {
        "python": PYTHONS[found["image"]],
        "root": False,
        "pure package": "2.32.5",
        "command of a package": 0,
        "binary package": ".so",
        "module of the DAG bundle": "travelled",
        "file": "from the Airflow side",
        "env": "hello",
        "secrets": ["swordfish", "12"],
        "set up by": "root",
        "folder": "0o700",
        "oom": 500,
    }


def test_nothing_but_the_cloud_was_in_reach(found: dict[str, Any]) -> None:
    assert found["reached"] == []
    cloud = found["box"].endpoint_url.removeprefix("http://").partition(":")[0]
    assert found["routes"] == [cloud]


def test_an_item_may_write_below_out_and_do_nothing_else_in_the_account(found: dict[str, Any]) -> None:
    rights = dict(found["rights"])
    assert {what for what in ALLOWED if rights.pop(what) == "done"} == ALLOWED
    assert rights
    assert {what: code for what, code in rights.items() if code not in REFUSED} == {}


def test_the_secret_is_nowhere_but_with_the_item(found: dict[str, Any]) -> None:
    assert "swordfish" not in "\n".join(found["said"])
    s3 = found["box"].client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{PREFIX}/jobs/"):
        for each in page["Contents"]:
            assert b"swordfish" not in s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()
