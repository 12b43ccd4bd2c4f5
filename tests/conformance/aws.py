"""The aws backend on a moto server: EC2, SQS and S3 as far as it plays them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.backends.settings import Settings
from tests.cloud.cloudbox.moto import Moto
from tests.conformance.place import LIVE_MACHINES, MANY_MESSAGES, ONE_DELIVERY, ONE_TOKEN, Place
from tests.support.aws import REGION, aws_settings

COARSER = {
    ONE_TOKEN: "to moto, the same client token of CreateFleet twice is two fleets",
    LIVE_MACHINES: "moto's machines run nothing",
    ONE_DELIVERY: "SQS delivers at least once, and moto may give two askers the same message",
    MANY_MESSAGES: "moto looks at all messages for every request",
}


def aws_place(moto: Moto, monkeypatch: pytest.MonkeyPatch, name: str) -> Place:
    settings = aws_settings(moto, name)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "machine")  # what an instance profile gives a machine
    return Place(
        AwsBackend(settings),
        idle_agents=_nothing,
        brief_agents=_nothing,
        interrupt=_impossible,
        advise=_impossible,
        request=_request(moto, settings),
        coarser=COARSER,
    )


def _request(moto: Moto, settings: Settings) -> dict[str, Any]:
    """What sizing chooses and the backend pins, of one type in one zone."""
    ec2 = moto.client("ec2", REGION)
    [subnet] = ec2.describe_subnets(SubnetIds=[settings.options["subnets"][0]])["Subnets"]
    return {
        "offer": "spot-3",
        "usd_per_hour": 0.05,
        "pools": [["m5.xlarge", subnet["AvailabilityZone"], 0.04, "x86_64"]],
        "disk_gb": 8.0,
        "least_vcpus": 2,
        "subnets": {subnet["AvailabilityZone"]: [subnet["SubnetId"]]},
        "images": {"x86_64": {"id": settings.options["image"][0], "root_device": "/dev/xvda"}},
    }


def _nothing() -> None:
    """moto's machines are idle and never end, whatever is asked of them."""


def _impossible(instance: str) -> None:
    raise AssertionError("moto's machines hear nothing")
