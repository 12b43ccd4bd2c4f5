"""What jobs need of an account, looked at without starting or changing anything."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_spotbatch.backends.aws.clients import ErrorCode
from airflow_provider_spotbatch.backends.aws.instances import tag_list
from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup, machine_tags, template_data
from airflow_provider_spotbatch.backends.base import Check
from airflow_provider_spotbatch.job.errors import InvalidInput, Refusal, SpotBatchError
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import ON_DEMAND

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.aws.regions import Region

TRIAL_RUN = Run(Generation("check", 1), 1)
TRIAL_RECORD = LaunchRecord(1, slots=(1,))
TRIAL_DISK_GB = 8.0

ALLOWED = frozenset({"DryRunOperation"})
"""What EC2 answers to a dry run once the permission is there."""


async def check_region(
    region: Region, setup: MachineSetup, subnets: Sequence[str], images: Sequence[str]
) -> list[Check]:
    """Every check, at once; refusals as failed ones."""
    looks = _Looks(region, subnets, images)
    launch = asyncio.ensure_future(_TrialLaunch(region, setup, subnets, images).checks())
    looked = await asyncio.gather(*(_checked(name, look) for name, look in looks.all.items()))
    return [*looked, *await launch]


async def _checked(name: str, look: Callable[[], Awaitable[str]]) -> Check:
    try:
        return Check(name, True, await look())
    except Refusal as refusal:
        return Check(name, False, refusal.message, refusal.remedy)
    except InvalidInput as wrong:
        return Check(name, False, str(wrong))
    except SpotBatchError as wrong:
        return Check(name, False, str(wrong), "try again later")


class _Looks:
    """Each tells what it found, or raises."""

    def __init__(self, region: Region, subnets: Sequence[str], images: Sequence[str]) -> None:
        self._region = region
        self._clients = region.clients
        self._subnets = subnets
        self._images = images

    @property
    def all(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {
            "credentials": self._identity,
            "subnets": self._where,
            "image": self._what,
            "ec2:DescribeInstances": self._machines,
            "ec2:DescribeInstanceTypes": self._types,
            "ec2:DescribeSpotPriceHistory": self._prices,
            "pricing:GetProducts": self._on_demand_prices,
            "sqs:ListQueues": self._queues,
        }

    async def _identity(self) -> str:
        answer = await self._clients.call("sts", "GetCallerIdentity")
        return f"{answer['Arn']} in {self._clients.region}"

    async def _where(self) -> str:
        zones = await self._region.subnets(self._subnets)
        return f"{sum(map(len, zones.values()))} subnets in {', '.join(sorted(zones))}"

    async def _what(self) -> str:
        found = await self._region.images(self._images)
        return ", ".join(f"{image['id']} ({architecture})" for architecture, image in sorted(found.items()))

    async def _machines(self) -> str:
        return f"{len(await self._region.instances.all())} machines of this store, ended ones included"

    async def _types(self) -> str:
        return f"{len(await self._region.types())} machine types"

    async def _prices(self) -> str:
        return f"{len(await self._region.prices('spot'))} spot prices"

    async def _on_demand_prices(self) -> str:
        """Jobs run without them: only limits and reports go by these prices."""
        sold = {price.type for price in await self._region.prices(ON_DEMAND)}
        listed = sold - await self._region.estimated_types()
        if not listed:
            return "on-demand prices are estimated by size: the price list may not be read"
        return f"on-demand prices of {len(listed)} machine types, {len(sold - listed)} are estimated by size"

    async def _queues(self) -> str:
        await self._clients.call("sqs", "ListQueues", MaxResults=1)
        return "queues can be listed"


class _TrialLaunch:
    """A launch as a job asks for it, up to the last word: EC2 only tells whether it would be allowed.

    The launch template is a real one, removed at once. A fleet may use those with the store's tag alone, and
    of one that does not exist EC2 says that the fleet is not allowed
    (https://github.com/kubernetes-sigs/karpenter/issues/2813).
    """

    def __init__(
        self, region: Region, setup: MachineSetup, subnets: Sequence[str], images: Sequence[str]
    ) -> None:
        self._region = region
        self._clients = region.clients
        self._setup = setup
        self._subnets = subnets
        self._images = images
        self._name = f"spotbatch-check-{uuid.uuid4().hex}"

    async def checks(self) -> list[Check]:
        """One for each permission, as far as one leads to the next; none without a subnet and an image."""
        try:
            zones = await self._region.subnets(self._subnets)
            images = await self._region.images(self._images)
        except SpotBatchError:
            return []  # their own checks tell
        architecture, image = next(iter(images.items()))
        type_ = "m6g.large" if architecture == "arm64" else "m5.large"
        subnet = next(iter(zones.values()))[0]
        made = await _checked("ec2:CreateLaunchTemplate", partial(self._make_template, image))
        if not made.ok:
            return [made]
        try:
            fleet = await _checked("ec2:CreateFleet", partial(self._create_fleet, type_, subnet))
            run = await _checked("ec2:RunInstances", partial(self._run_instances, type_, subnet))
        finally:
            removed = await _checked("ec2:DeleteLaunchTemplate", self._remove_template)
        return [made, fleet, run, removed]

    async def _make_template(self, image: Mapping[str, str]) -> str:
        await self._clients.call(
            "ec2",
            "CreateLaunchTemplate",
            LaunchTemplateName=self._name,
            LaunchTemplateData=template_data(self._setup, TRIAL_RUN, TRIAL_RECORD, image, TRIAL_DISK_GB, ""),
            TagSpecifications=[
                {
                    "ResourceType": "launch-template",
                    "Tags": tag_list(machine_tags(self._setup, TRIAL_RUN, TRIAL_RECORD)),
                }
            ],
        )
        return "made one"

    async def _create_fleet(self, type_: str, subnet: str) -> str:
        return await self._dry_run(
            "CreateFleet",
            Type="instant",
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": self._template,
                    "Overrides": [{"InstanceType": type_, "SubnetId": subnet}],
                }
            ],
        )

    async def _run_instances(self, type_: str, subnet: str) -> str:
        """Also asks for what comes with it: image, tags, and handing the machines their role."""
        groups = self._setup.security_groups
        return await self._dry_run(
            "RunInstances",
            MinCount=1,
            MaxCount=1,
            LaunchTemplate=self._template,
            InstanceType=type_,
            NetworkInterfaces=[
                {"DeviceIndex": 0, "SubnetId": subnet, **({"Groups": list(groups)} if groups else {})}
            ],
        )

    async def _remove_template(self) -> str:
        await self._clients.call("ec2", "DeleteLaunchTemplate", LaunchTemplateName=self._name)
        return "removed it"

    @property
    def _template(self) -> dict[str, str]:
        return {"LaunchTemplateName": self._name, "Version": "1"}

    async def _dry_run(self, operation: str, **parameters: Any) -> str:
        ask = partial(self._clients.call, "ec2", operation, answers=ALLOWED, DryRun=True)
        try:
            await ask(**parameters)
        except ErrorCode:
            return "would be allowed"
        return "was answered without an error"
