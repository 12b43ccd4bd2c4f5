"""``check``: every permission that a launch needs is asked for, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from airflow_provider_spotbatch.backends.aws.checks import check_region
from airflow_provider_spotbatch.backends.aws.images import ask_images
from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup
from airflow_provider_spotbatch.backends.base import Check
from airflow_provider_spotbatch.backends.machine_sizing import Price
from tests.unit.backends.aws.sdk import Sdk

LAUNCH = ("ec2:CreateLaunchTemplate", "ec2:CreateFleet", "ec2:RunInstances", "ec2:DeleteLaunchTemplate")
SETUP = MachineSetup("s3://bucket/prefix", "machines", ("sg-1",), tags={"team": "film"})


class Region:
    """As the checks use one: its clients are the SDK's stand-in."""

    def __init__(self, sdk: Sdk, estimated: Sequence[str]) -> None:
        self.clients = sdk.clients()
        self.instances = self
        self.estimated = estimated

    async def all(self) -> list[Any]:
        return []

    async def types(self) -> list[Any]:
        return []

    async def estimated_types(self) -> frozenset[str]:
        return frozenset(self.estimated)

    async def prices(self, purchase: str) -> list[Price]:
        return [Price(type_, "us-east-2a", purchase, 0.1) for type_ in ("m5.large", "m6i.large")]

    async def subnets(self, ids: Any) -> dict[str, list[str]]:
        return {"us-east-2a": ["subnet-a"]}

    async def images(self, names: Any) -> Any:
        return await ask_images(self.clients, names)


def checks(estimated: Sequence[str] = (), **answers: Any) -> tuple[Sdk, dict[str, Check]]:
    image = {"ImageId": "ami-1", "Architecture": "x86_64", "RootDeviceName": "/dev/xvda", "Name": "own"}
    sdk = Sdk(
        **{
            "DescribeImages": {"Images": [image]},
            "GetCallerIdentity": {"Arn": "arn:aws:iam::123456789012:user/airflow"},
            "CreateFleet": "DryRunOperation",
            "RunInstances": "DryRunOperation",
            **answers,
        }
    )
    region: Any = Region(sdk, estimated)
    found = asyncio.run(check_region(region, SETUP, [], ["ami-1"]))
    return sdk, {check.name: check for check in found}


def test_a_launch_is_tried_with_a_template_as_jobs_have_it_and_the_template_is_removed() -> None:
    sdk, found = checks()
    assert all(check.ok for check in found.values()), found
    [template] = sdk.asked("CreateLaunchTemplate")
    name = template["LaunchTemplateName"]
    [marked] = template["TagSpecifications"]
    assert {"Key": "spotbatch:store", "Value": "s3://bucket/prefix"} in marked["Tags"]
    assert template["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"
    [fleet], [run] = sdk.asked("CreateFleet"), sdk.asked("RunInstances")
    assert fleet["DryRun"] is run["DryRun"] is True
    asked = fleet["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]
    assert asked == run["LaunchTemplate"] == {"LaunchTemplateName": name, "Version": "1"}
    assert [each["LaunchTemplateName"] for each in sdk.asked("DeleteLaunchTemplate")] == [name]


@pytest.mark.parametrize("refused", LAUNCH)
def test_a_missing_permission_is_the_check_that_fails(refused: str) -> None:
    operation = refused.partition(":")[2]
    sdk, found = checks(**{operation: "UnauthorizedOperation"})
    assert [name for name, check in found.items() if not check.ok] == [refused]
    assert refused in found[refused].remedy
    made = operation != "CreateLaunchTemplate"
    assert bool(sdk.asked("DeleteLaunchTemplate")) is made


def test_an_instance_profile_that_does_not_exist_is_told_before_any_job() -> None:
    """EC2 says so to a dry run too: Karpenter meets it (pkg/controllers/nodeclass/validation.go)."""
    _, found = checks(RunInstances="InvalidParameterValue")
    assert "'instance_profile' of the connection" in found["ec2:RunInstances"].remedy


@pytest.mark.parametrize(
    ("estimated", "told"),
    [
        (["m6i.large"], "of 1 machine types, 1 are estimated by size"),
        (["m5.large", "m6i.large"], "on-demand prices are estimated by size: the price list may not be read"),
    ],
)
def test_prices_that_are_estimated_are_said_to_be(estimated: list[str], told: str) -> None:
    _, found = checks(estimated)
    assert told in found["pricing:GetProducts"].found
