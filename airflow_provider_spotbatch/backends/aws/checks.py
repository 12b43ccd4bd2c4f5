"""What jobs need of an account, looked at without starting or changing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_spotbatch.backends.aws.clients import ErrorCode
from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG, tag_list
from airflow_provider_spotbatch.backends.base import Check
from airflow_provider_spotbatch.job.errors import InvalidInput, Refusal, SpotBatchError

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup
    from airflow_provider_spotbatch.backends.aws.regions import Region

ALLOWED = frozenset({"DryRunOperation", "InvalidLaunchTemplateName.NotFoundException"})
"""What EC2 answers to a dry run once the permission is there."""

TRIAL = "spotbatch-check"


async def check_region(
    region: Region, setup: MachineSetup, subnets: Sequence[str], images: Sequence[str]
) -> list[Check]:
    """Every check, at once; refusals as failed ones."""
    looks = _Looks(region, setup, subnets, images)
    return list(await asyncio.gather(*(_checked(name, look) for name, look in looks.all.items())))


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

    def __init__(
        self, region: Region, setup: MachineSetup, subnets: Sequence[str], images: Sequence[str]
    ) -> None:
        self._region = region
        self._clients = region.clients
        self._setup = setup
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
            "ec2:CreateLaunchTemplate": self._create_template,
            "ec2:CreateFleet": self._create_fleet,
            "ec2:RunInstances": self._run_instances,
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

    async def _create_template(self) -> str:
        return await self._dry_run(
            "CreateLaunchTemplate",
            LaunchTemplateName=TRIAL,
            LaunchTemplateData={"InstanceInitiatedShutdownBehavior": "terminate"},
            TagSpecifications=[self._tagged("launch-template")],
        )

    async def _create_fleet(self) -> str:
        return await self._dry_run(
            "CreateFleet",
            Type="instant",
            TargetCapacitySpecification={
                "TotalTargetCapacity": 1,
                "DefaultTargetCapacityType": "spot",
            },
            LaunchTemplateConfigs=[
                {"LaunchTemplateSpecification": {"LaunchTemplateName": TRIAL, "Version": "1"}}
            ],
        )

    async def _run_instances(self) -> str:
        """Also asks for what comes with it: tagging, and handing the machines their role."""
        image = next(iter((await self._region.images(self._images)).items()))
        subnet = next(iter((await self._region.subnets(self._subnets)).values()))[0]
        profile = "Arn" if self._setup.instance_profile.startswith("arn:") else "Name"
        return await self._dry_run(
            "RunInstances",
            MinCount=1,
            MaxCount=1,
            ImageId=image[1]["id"],
            InstanceType="m6g.medium" if image[0] == "arm64" else "m5.large",
            IamInstanceProfile={profile: self._setup.instance_profile},
            NetworkInterfaces=[
                {
                    "DeviceIndex": 0,
                    "SubnetId": subnet,
                    **({"Groups": list(self._setup.security_groups)} if self._setup.security_groups else {}),
                }
            ],
            TagSpecifications=[self._tagged("instance"), self._tagged("volume")],
        )

    async def _queues(self) -> str:
        await self._clients.call("sqs", "ListQueues", MaxResults=1)
        return "queues can be listed"

    def _tagged(self, kind: str) -> dict[str, Any]:
        return {
            "ResourceType": kind,
            "Tags": tag_list({**self._setup.tags, STORE_TAG: self._setup.store}),
        }

    async def _dry_run(self, operation: str, **parameters: Any) -> str:
        ask = partial(self._clients.call, "ec2", operation, answers=ALLOWED, DryRun=True)
        try:
            await ask(**parameters)
        except ErrorCode:
            return "would be allowed"
        return "was answered without an error"
