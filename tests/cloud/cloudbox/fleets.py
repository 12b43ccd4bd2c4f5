"""CreateFleet of type instant, more finely than moto does it.

- The same client token twice is one fleet; with other parameters it is refused
  (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html). moto launches again.
- Any override may be used, as capacity allows, and what a pool refuses is told in ``Errors`` beside
  the machines that others gave
  (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html). moto uses the first.
- Weighted capacity is filled up to the target or above it
  (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-instance-weighting.html). moto rounds down.
- A request may not name two subnets of one zone
  (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/manage-ec2-fleet.html, "EC2 Fleet limitations"; the
  error as in https://github.com/aws-samples/aws-plugin-for-slurm/issues/19). moto takes them.
- All of the launch template counts (moto's fleets leave out the role, the shutdown behaviour, metadata).
"""

from __future__ import annotations

import base64
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from tests.cloud.cloudbox.calls import Answer, Call, Forward
from tests.cloud.cloudbox.moto import Moto
from tests.cloud.cloudbox.pools import Pools
from tests.cloud.cloudbox.refusals import message_of

_FROM_TEMPLATE = (
    "BlockDeviceMappings",
    "IamInstanceProfile",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceType",
    "MetadataOptions",
    "NetworkInterfaces",
    "SecurityGroupIds",
)
"""What moto's RunInstances is given of the template. Tags it takes from there itself."""


@dataclass
class _Once:
    """One client token's call."""

    parameters: dict[str, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: Answer | None = None


@dataclass(frozen=True)
class _Choice:
    """One override of one launch template, and the pool that it is about."""

    template: dict[str, Any]
    data: dict[str, Any]
    override: dict[str, Any]
    zone: str

    @property
    def machine_type(self) -> str:
        return str(self.override.get("InstanceType") or self.data["InstanceType"])

    @property
    def weight(self) -> float:
        return float(self.override.get("WeightedCapacity", 1))

    @property
    def shown(self) -> dict[str, Any]:
        zone = {"AvailabilityZone": self.zone} if self.zone else {}
        return {"LaunchTemplateSpecification": self.template, "Overrides": {**self.override, **zone}}


class Fleets:
    """``launched`` is told of each new instance: region and id."""

    def __init__(self, moto: Moto, pools: Pools, launched: Callable[[str, str], None]) -> None:
        self._moto = moto
        self._pools = pools
        self._launched = launched
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], _Once] = {}
        self._random = random.Random(0)

    def create_fleet(self, call: Call, forward: Forward) -> Answer:
        if call.parameters.get("DryRun"):
            return forward(call)
        if call.parameters.get("Type") != "instant":
            return call.refuse("InvalidParameterValue", "the box has fleets of type instant only")
        token = call.parameters.get("ClientToken", str(uuid.uuid4()))
        with self._lock:
            once = self._calls.setdefault((call.region, token), _Once(call.parameters))
        if once.parameters != call.parameters:
            return call.refuse(
                "IdempotentParameterMismatch",
                "The request uses the same client token as a previous, but non-identical request.",
            )
        with once.lock:
            if once.answer is None:
                try:
                    once.answer = call.answer(self._create(call))
                except ClientError as error:
                    return call.refuse(error.response["Error"]["Code"], error.response["Error"]["Message"])
            return once.answer

    def _create(self, call: Call) -> dict[str, Any]:
        choices = self._choices(call)
        _check_subnets(choices, call.operation)
        instances: dict[int, dict[str, Any]] = {}
        errors: dict[tuple[int, str], dict[str, Any]] = {}
        for lifecycle, target in _targets(call.parameters["TargetCapacitySpecification"]).items():
            left = dict(enumerate(choices))
            while target > 0 and left:
                index = self._random.choice(sorted(left))
                try:
                    instance = self._launch(call, left[index], lifecycle)
                except ClientError as error:
                    code, message = _as_ec2_says(error)
                    errors[index, lifecycle] = {
                        "LaunchTemplateAndOverrides": left.pop(index).shown,
                        "Lifecycle": lifecycle,
                        "ErrorCode": code,
                        "ErrorMessage": message,
                    }
                    continue
                target -= left[index].weight
                shown = {
                    "LaunchTemplateAndOverrides": left[index].shown,
                    "Lifecycle": lifecycle,
                    "InstanceType": left[index].machine_type,
                    "InstanceIds": [],
                }
                instances.setdefault(index, shown)["InstanceIds"].append(instance)
        return {
            "FleetId": f"fleet-{uuid.uuid4()}",
            "Errors": list(errors.values()),
            "Instances": list(instances.values()),
        }

    def _choices(self, call: Call) -> list[_Choice]:
        ec2 = self._moto.client("ec2", call.region)
        subnets = ec2.describe_subnets()["Subnets"]
        zones = {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in subnets}
        choices = []
        for config in call.parameters["LaunchTemplateConfigs"]:
            asked = config["LaunchTemplateSpecification"]
            by = {name: asked[name] for name in ("LaunchTemplateId", "LaunchTemplateName") if name in asked}
            versions = ec2.describe_launch_template_versions(
                **by, Versions=[asked.get("Version", "$Default")]
            )
            [found] = versions["LaunchTemplateVersions"]
            template = {"LaunchTemplateId": found["LaunchTemplateId"], "Version": str(found["VersionNumber"])}
            for override in config.get("Overrides") or [{}]:
                zone = zones.get(override.get("SubnetId", ""), override.get("AvailabilityZone", ""))
                choices.append(_Choice(template, found["LaunchTemplateData"], override, zone))
        return choices

    def _launch(self, call: Call, choice: _Choice, lifecycle: str) -> str:
        refused = self._pools.take(choice.machine_type, choice.zone)
        if refused:
            error = {"Code": refused, "Message": message_of(refused, call.operation)}
            raise ClientError({"Error": error}, call.operation)
        try:
            reservation = self._moto.client("ec2", call.region).run_instances(
                **_run_parameters(call.parameters, choice, lifecycle), MinCount=1, MaxCount=1
            )
        except BaseException:
            self._pools.give_back(choice.machine_type, choice.zone)
            raise
        instance = str(reservation["Instances"][0]["InstanceId"])
        self._pools.held_by(instance, choice.machine_type, choice.zone)
        self._launched(call.region, instance)
        return instance


def _check_subnets(choices: list[_Choice], operation: str) -> None:
    subnets: dict[str, str] = {}
    for choice in choices:
        subnet = choice.override.get("SubnetId", "")
        if subnet and subnets.setdefault(choice.zone, subnet) != subnet:
            words = "The fleet configuration contains duplicate instance pools."
            raise ClientError({"Error": {"Code": "InvalidFleetConfig", "Message": words}}, operation)


def _as_ec2_says(error: ClientError) -> tuple[str, str]:
    """Code and message; moto passes on what IAM says of an instance profile that does not exist
    (EC2's words: https://github.com/hashicorp/terraform-provider-aws/issues/24281)."""
    told = error.response["Error"]
    if told["Code"] != "NoSuchEntity":
        return told["Code"], told["Message"]
    words = "Value (…) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    return "InvalidParameterValue", words


def _targets(specification: dict[str, Any]) -> dict[str, float]:
    """Capacity wanted by lifecycle. What is not said to be either is of the default kind."""
    targets = {
        "on-demand": float(specification.get("OnDemandTargetCapacity", 0)),
        "spot": float(specification.get("SpotTargetCapacity", 0)),
    }
    rest = float(specification["TotalTargetCapacity"]) - sum(targets.values())
    targets[specification.get("DefaultTargetCapacityType", "on-demand")] += max(rest, 0)
    return targets


def _run_parameters(fleet: dict[str, Any], choice: _Choice, lifecycle: str) -> dict[str, Any]:
    run: dict[str, Any] = {name: choice.data[name] for name in _FROM_TEMPLATE if name in choice.data}
    run["LaunchTemplate"] = choice.template
    run["InstanceType"] = choice.machine_type
    run["TagSpecifications"] = [
        tags for tags in fleet.get("TagSpecifications", []) if tags["ResourceType"] in ("instance", "volume")
    ]
    if "UserData" in choice.data:
        run["UserData"] = base64.b64decode(choice.data["UserData"])
    if "ImageId" in choice.override:
        run["ImageId"] = choice.override["ImageId"]
    if lifecycle == "spot":
        run["InstanceMarketOptions"] = {"MarketType": "spot"}
    _place(run, choice)
    return run


def _place(run: dict[str, Any], choice: _Choice) -> None:
    """A subnet belongs to the network interface where the template has one, else to the instance."""
    if subnet := choice.override.get("SubnetId"):
        if interfaces := run.get("NetworkInterfaces"):
            run["NetworkInterfaces"] = [{**interfaces[0], "SubnetId": subnet}, *interfaces[1:]]
        else:
            run["SubnetId"] = subnet
    elif choice.zone:
        run["Placement"] = {"AvailabilityZone": choice.zone}
