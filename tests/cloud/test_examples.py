"""From an account to running DAGs, as a newcomer goes: set-up, connection, check, estimate, the example DAGs,
sweep, clean, removal. Everybody may do only what set-up and grant allow."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet
from airflow_provider_spotbatch.backends.aws.instances import LAUNCH_TAG, RUN_TAG, SLOTS_TAG, STORE_TAG
from airflow_provider_spotbatch.cli import main
from tests.airflow.examples import EXAMPLES, names
from tests.airflow.ran import RunDag
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import BY_PYTHON, DEBIAN_12
from tests.cloud.cloudbox.moto import ACCOUNT

NAME = "newcomer"
BUCKET = f"{NAME}-{ACCOUNT}-{{}}"
"""Of the set-up; of its bucket in a region."""

DATA = "newcomers-data"
"""The bucket that the examples read from."""

MOST_USD_PER_HOUR = 0.12
"""Limit of the connection, for two machines or three: the host has few cores."""


@dataclass(frozen=True)
class Account:
    """``connection``: as set-up printed it; ``key``: of the user whose rights Airflow has."""

    connection: dict[str, Any]
    key: dict[str, str]

    def environment(self, box: Cloudbox) -> dict[str, str]:
        """Of Airflow's processes."""
        amazon = {"conn_type": "aws", "extra": {"region_name": box.region, "endpoint_url": box.endpoint_url}}
        extra = {**self.connection["extra"], "max_usd_per_hour": MOST_USD_PER_HOUR}
        if sys.version_info[:2] not in BY_PYTHON:  # machines are sent an interpreter then
            extra["image"] = DEBIAN_12.id
        return {
            "AIRFLOW_CONN_AWS_BOX": json.dumps(amazon),
            "AIRFLOW_CONN_SPOTBATCH_DEFAULT": json.dumps({**self.connection, "extra": extra}),
            **box.environment(),
            "AWS_ACCESS_KEY_ID": self.key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": self.key["SecretAccessKey"],
        }


def spotbatch(*words: str) -> Any:
    """A command's answer."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = main([*words, "--json"])
    assert code == 0, told.getvalue()
    return json.loads(told.getvalue())


@pytest.fixture(scope="module")
def account(running_box: Cloudbox) -> Iterator[Account]:
    box = running_box
    box.client("s3").create_bucket(Bucket=DATA, CreateBucketConfiguration={"LocationConstraint": box.region})
    with pytest.MonkeyPatch.context() as administrator:
        for name, value in box.environment().items():
            administrator.setenv(name, value)
        made = spotbatch("setup", "aws", "--name", NAME, "--aws-conn-id", "aws_box")
        spotbatch("grant", "aws", "--name", NAME, "--read", f"s3://{DATA}")
    iam = box.client("iam")
    iam.create_user(UserName=NAME)
    iam.attach_user_policy(UserName=NAME, PolicyArn=made["airflow_policy_arn"])
    iam.put_user_policy(UserName=NAME, PolicyName="data", PolicyDocument=json.dumps(OWN_DATA))
    key = iam.create_access_key(UserName=NAME)["AccessKey"]
    box.enforce_policies()
    yield Account(made["connection"], key)
    box.relent()


OWN_DATA = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"arn:aws:s3:::{DATA}/*"},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{DATA}"},
    ],
}
"""What Airflow's tasks themselves do with the data is no matter of the set-up."""


@pytest.fixture(autouse=True)
def airflow(running_box: Cloudbox, account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in account.environment(running_box).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Ec2Fleet, "visibility_bound", 0.5)  # machines of the box are seen at once
    monkeypatch.setattr(AwsBackend, "lease", 6.0)  # what a machine had that vanished is waited for so long
    yield
    running_box.end_machines()


def test_check_finds_all_well() -> None:
    checks = spotbatch("check")
    assert [check["name"] for check in checks if not check["ok"]] == []
    assert {"store: create only once", "image", "ec2:RunInstances"} <= {check["name"] for check in checks}


def test_the_estimate_is_in_dollars() -> None:
    expected = spotbatch("estimate", "--items", "10000", "--item-seconds", "30")
    assert 0 < expected["usd"] < 10


def test_every_example_is_run() -> None:
    assert sorted(EXAMPLES) == names()


@pytest.mark.timeout(300)  # four jobs one after the other, on a busy host
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(
    name: str, running_box: Cloudbox, run_dag: RunDag, tmp_path: Any
) -> None:
    example = EXAMPLES[name]
    folder = f"s3://{DATA}/{name}" if example.reads else str(tmp_path)
    before = len(running_box.instances())
    with first_machine_is_taken_back(running_box) if name == "checkpoints" else contextlib.nullcontext():
        ran = run_dag(name, folder=folder, **example.params)
    example.check(ran, folder)
    assert len(running_box.instances()) - before >= (0 if name == "hourly_sweep" else 2)
    assert running_box.machines() == []


@contextlib.contextmanager
def first_machine_is_taken_back(box: Cloudbox) -> Iterator[None]:
    """With its notice, once its item has saved something."""
    over = threading.Event()
    before = set(box.instances())

    def watch() -> None:
        while not over.wait(0.1):
            for machine in set(box.machines()) - before:
                if has_checkpoints(box):
                    box.notice(machine, 3)
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def has_checkpoints(box: Cloudbox) -> bool:
    listed = box.client("s3").list_objects_v2(Bucket=BUCKET.format(box.region), Prefix="out/checkpoints-")
    return any("/checkpoints/" in each["Key"] for each in listed.get("Contents", []))


def test_sweep_ends_a_machine_of_nobody(running_box: Cloudbox) -> None:
    store = f"s3://{BUCKET.format(running_box.region)}"
    marks = {STORE_TAG: store, RUN_TAG: "gone-0123456789abcdef/1/1", LAUNCH_TAG: "1", SLOTS_TAG: "1"}
    tags = [{"Key": key, "Value": value} for key, value in marks.items()]
    [orphan] = running_box.client("ec2").run_instances(
        ImageId=DEBIAN_12.id,
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    swept = spotbatch("sweep")
    assert swept["machines"] == [orphan["InstanceId"]]
    assert running_box.machines() == []


def test_clean_removes_what_is_over() -> None:
    jobs = {job["job"] for job in spotbatch("jobs")}
    cleaned = spotbatch("clean", "--older-than", "1e-7", "--yes")
    assert set(cleaned["jobs"]) == jobs != set()


def test_the_set_up_is_taken_away_but_for_results(
    running_box: Cloudbox, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in running_box.environment().items():
        monkeypatch.setenv(name, value)
    removed = spotbatch("setup", "aws", "--name", NAME, "--remove")["removed"]
    assert [what.split(f" {NAME}")[0].split(" sg-")[0] for what in removed] == [
        "instance profile",
        "role",
        "security group",
        "policy",
    ]
    assert spotbatch("setup", "aws", "--name", NAME, "--remove")["removed"] == []
