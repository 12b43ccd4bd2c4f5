"""The aws backend: on the cloudbox, whose machines run, or on moto alone where no box can run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.backends.aws.notices import ENDPOINT_VARIABLE
from airflow_provider_spotbatch.job.keys import blob
from tests.cloud.cloudbox.account import make_account
from tests.cloud.cloudbox.images import ARCHITECTURE, DEBIAN_12
from tests.conformance.place import LIVE_MACHINES, MANY_MESSAGES, ONE_DELIVERY, ONE_TOKEN, Place
from tests.support.aws import AMAZON_LINUX, REGION, aws_settings, box_settings, bucket_name, one_pool
from tests.support.machine_archives import agent_archive

if TYPE_CHECKING:
    from tests.cloud.cloudbox.box import Cloudbox
    from tests.cloud.cloudbox.moto import Moto

BOX_COARSER = {
    ONE_DELIVERY: "SQS delivers at least once, and moto may give two askers the same message",
    MANY_MESSAGES: "moto looks at all messages for every request",
}
MOTO_COARSER = {
    **BOX_COARSER,
    ONE_TOKEN: "to moto, the same client token of CreateFleet twice is two fleets",
    LIVE_MACHINES: "moto's machines run nothing",
}

NOTICE_SECONDS = 3.0
"""From the notice to the end, for 120: more than the agent's pause between two looks."""

DEBIAN_PYTHON = "3.11"

IDLE_AGENT = agent_archive("import time; time.sleep(60)", DEBIAN_PYTHON)
BRIEF_AGENT = agent_archive("pass", DEBIAN_PYTHON)


def box_place(box: Cloudbox, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Place]:
    """Machines boot the backend's own user data; only the agent in it is another."""
    account = make_account(box, bucket_name(name))
    orders: dict[str, Any] = {"python_version": DEBIAN_PYTHON, "lifetime": 120.0}

    def agents(archive: bytes) -> None:
        digest = hashlib.sha256(archive).hexdigest()
        box.client("s3").put_object(Bucket=account.bucket, Key=f"prefix/{blob(digest)}", Body=archive)
        orders["archives"] = {ARCHITECTURE: {"agent": digest}}

    _as_on_a_machine(monkeypatch)
    yield Place(
        AwsBackend(box_settings(box, account, name)),
        idle_agents=lambda: agents(IDLE_AGENT),
        brief_agents=lambda: agents(BRIEF_AGENT),
        interrupt=lambda instance: box.notice(instance, NOTICE_SECONDS),
        advise=box.recommend_rebalance,
        enter=lambda instance: monkeypatch.setenv(ENDPOINT_VARIABLE, box.metadata_url(instance)),
        orders=orders,
        request=one_pool(box.client("ec2"), DEBIAN_12.id),
        coarser=BOX_COARSER,
    )
    box.end_machines()


def moto_place(moto: Moto, monkeypatch: pytest.MonkeyPatch, name: str) -> Place:
    _as_on_a_machine(monkeypatch)
    return Place(
        AwsBackend(aws_settings(moto, name)),
        idle_agents=_nothing,
        brief_agents=_nothing,
        interrupt=_impossible,
        advise=_impossible,
        request=one_pool(moto.client("ec2", REGION), AMAZON_LINUX[0].id),
        coarser=MOTO_COARSER,
    )


def _as_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an instance profile gives a machine: both clouds take any credentials."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "machine")


def _nothing() -> None:
    """moto's machines are idle and never end, whatever is asked of them."""


def _impossible(instance: str) -> None:
    raise AssertionError("moto's machines hear nothing")
