"""The machines of one run: EC2 fleets of type instant, one for each launch record."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.backends.aws.instances import (
    RUN_TAG,
    STORE_TAG,
    Instances,
    instance_of,
    tag_list,
)
from airflow_provider_spotbatch.backends.aws.launch_template import (
    MachineSetup,
    machine_tags,
    template_data,
    template_name,
)
from airflow_provider_spotbatch.backends.aws.pools import (
    architectures,
    on_demand_price,
    overrides,
    price,
    zone_of,
)
from airflow_provider_spotbatch.backends.aws.refusals import (
    override_of,
    refusal_of_launch,
    refusals_of_pools,
)
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import (
    CloudUnavailable,
    NoCapacity,
    Refusal,
    SpotBatchError,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import PENDING, Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import SPOT

VISIBILITY_SECONDS = 30.0
"""Listings of EC2 are eventually consistent: usually within a second or two; a minute was never seen."""

TERMINATED_AT_ONCE = 500

TEMPLATE_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"
TEMPLATE_GONE = frozenset({"InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"})
OTHER_PARAMETERS = "IdempotentParameterMismatch"
NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})


class Ec2Fleet:
    """See :class:`~airflow_provider_spotbatch.backends.base.Fleet`."""

    visibility_bound = VISIBILITY_SECONDS

    def __init__(
        self,
        clients: Clients,
        instances: Instances,
        setup: MachineSetup,
        run: Run,
        boot: Boot,
        user_data: Callable[[Boot], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._instances = instances
        self._setup = setup
        self._run = run
        self._boot = boot
        self._user_data = user_data
        self._clock = clock
        self._asked_otherwise_at: dict[int, float] = {}
        self._templates: dict[int, list[str]] = {}

    async def launch(self, record: LaunchRecord, within: float = math.inf) -> LaunchOutcome:
        if not record.slots:
            return LaunchOutcome()
        until = time.monotonic() + within
        asked_before = False
        try:
            await self._remove_earlier_templates(record)
            asked_before = await self._make_templates(record)
            answer = await self._create_fleet(record, until)
        except ErrorCode:
            return await self._asked_otherwise(record)
        except Refusal as refusal:
            if asked_before and isinstance(refusal, Throttled):
                raise CloudUnavailable(
                    f"launch {record.number} could not be asked for again: {refusal}"
                ) from None
            return LaunchOutcome(refusals=(await refusal_of_launch(self._clients, record, refusal),))
        finally:
            self._instances.forget()
        machines = _machines_of(record, answer)
        if len(machines) == len(record.slots):
            return LaunchOutcome(machines)  # what some pools refused, others had
        errors = answer.get("Errors", [])
        refusals = await refusals_of_pools(self._clients, record, errors, len(machines))
        return LaunchOutcome(machines, tuple(refusals))

    async def describe(self) -> list[Instance]:
        return [machine.instance for machine in await self._instances.all() if machine.run == self._run.tag]

    async def terminate(self, instances: Sequence[str]) -> None:
        await terminate(self._clients, instances)
        self._instances.forget()

    async def close(self) -> None:
        templates = await self._clients.pages(
            "ec2",
            "DescribeLaunchTemplates",
            "LaunchTemplates",
            Filters=[
                {"Name": f"tag:{STORE_TAG}", "Values": [self._setup.store]},
                {"Name": f"tag:{RUN_TAG}", "Values": [self._run.tag]},
            ],
        )
        await delete_templates(self._clients, [each["LaunchTemplateName"] for each in templates])

    # --- a launch ------------------------------------------------------------------------------------

    async def _asked_otherwise(self, record: LaunchRecord) -> LaunchOutcome:
        """The record was asked for before, as the connection was then: what EC2 gave is known from listings
        alone, so it is the answer only once all of it is sure to be listed."""
        told_at = self._asked_otherwise_at.setdefault(record.number, self._clock())
        bound_is_over = self._clock() - told_at >= self.visibility_bound
        machines = await self._listed(record)
        if not bound_is_over and len(machines) < len(record.slots):
            raise CloudUnavailable(
                f"launch {record.number} was asked for before, by another connection's terms, and EC2 does "
                "not show its machines yet"
            )
        refusals = (
            () if machines else (NoCapacity(f"launch {record.number} gave no machines when it was asked"),)
        )
        return LaunchOutcome(tuple(machines), refusals)

    async def _listed(self, record: LaunchRecord) -> list[Instance]:
        """The record's machines as far as EC2 lists them."""
        try:
            found = await self._instances.of_launch(self._run.tag, record.number)
        except Refusal as refusal:  # of the look, not of the launch
            raise CloudUnavailable(f"what launch {record.number} gave is not known: {refusal}") from refusal
        return [
            replace(
                instance_of(each, price(record, each["InstanceType"], each["Placement"]["AvailabilityZone"])),
                on_demand_usd_per_hour=on_demand_price(record, each["InstanceType"]),
            )
            for each in found
        ]

    async def _make_templates(self, record: LaunchRecord) -> bool:
        """One for each architecture; those that are there from an earlier asking stay as they are. Whether
        there were any."""
        were_there = False
        names = self._templates.setdefault(record.number, [])
        boot = self._boot.for_machine(
            "", record.number, record.slots[0], record.memory_class, "", record.lifetime_seconds
        )
        for architecture in architectures(record):
            name = template_name(self._setup.store, self._run, record, architecture)
            try:
                await self._clients.call(
                    "ec2",
                    "CreateLaunchTemplate",
                    answers={TEMPLATE_EXISTS},
                    LaunchTemplateName=name,
                    LaunchTemplateData=template_data(
                        self._setup,
                        self._run,
                        record,
                        record.request["images"][architecture],
                        record.request["disk_gb"],
                        self._user_data(boot),
                    ),
                    TagSpecifications=[
                        {
                            "ResourceType": "launch-template",
                            "Tags": tag_list(machine_tags(self._setup, self._run, record)),
                        }
                    ],
                )
            except ErrorCode:
                were_there = True
            names.append(name)
        return were_there

    async def _remove_earlier_templates(self, record: LaunchRecord) -> None:
        """Those of launches before: their answers are in the store, since a launch needs that of the last. A
        region holds few thousand templates. What cannot be removed now goes when the fleet is closed."""
        for number in [each for each in self._templates if each < record.number]:
            for name in self._templates.pop(number):
                with contextlib.suppress(SpotBatchError):
                    await delete_templates(self._clients, [name])

    async def _create_fleet(self, record: LaunchRecord, until: float) -> dict[str, Any]:
        """Raises ErrorCode if the record's token was used with other parameters."""
        spot = record.purchase == SPOT
        count = len(record.slots)
        options: dict[str, Any] = (
            {
                "SpotOptions": {
                    "AllocationStrategy": "price-capacity-optimized",
                    "InstanceInterruptionBehavior": "terminate",
                }
            }
            if spot
            else {"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}
        )
        return await self._clients.call(
            "ec2",
            "CreateFleet",
            answers={OTHER_PARAMETERS},
            until=until,
            ClientToken=client_token(self._setup.store, self._run, record),
            Type="instant",
            TargetCapacitySpecification={
                "TotalTargetCapacity": count,
                "SpotTargetCapacity": count if spot else 0,
                "OnDemandTargetCapacity": 0 if spot else count,
                "DefaultTargetCapacityType": "spot" if spot else "on-demand",
            },
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {
                        "LaunchTemplateName": template_name(
                            self._setup.store, self._run, record, architecture
                        ),
                        "Version": "1",
                    },
                    "Overrides": [
                        {"InstanceType": type_, "SubnetId": subnet}
                        for type_, subnet, its in overrides(record)
                        if its == architecture
                    ],
                }
                for architecture in architectures(record)
            ],
            **options,
        )


def client_token(store: str, run: Run, record: LaunchRecord) -> str:
    """Unique over runs of all stores: what makes a repeated call harmless. EC2 allows 64 characters."""
    return hashlib.sha256(f"{store} {run.tag} {record.number} {record.token}".encode()).hexdigest()


async def terminate(clients: Clients, instances: Sequence[str]) -> None:
    """Ask for the end of machines; harmless for those that are gone or unknown. Raises a verdict if any
    could not be asked."""
    ids = [each for each in instances if re.fullmatch("i-[0-9a-f]+", each)]
    for start in range(0, len(ids), TERMINATED_AT_ONCE):
        some = ids[start : start + TERMINATED_AT_ONCE]
        try:
            await clients.call("ec2", "TerminateInstances", answers=NOT_FOUND, InstanceIds=some)
        except ErrorCode:  # one unknown machine refuses the whole request
            for each in some if len(some) > 1 else []:
                await terminate(clients, [each])


async def delete_templates(clients: Clients, names: Iterable[str]) -> None:
    """Remove launch templates; harmless for those that are gone."""
    for name in names:
        with contextlib.suppress(ErrorCode):
            await clients.call("ec2", "DeleteLaunchTemplate", answers=TEMPLATE_GONE, LaunchTemplateName=name)


def _machines_of(record: LaunchRecord, answer: Mapping[str, Any]) -> tuple[Instance, ...]:
    """The machines in a fleet's answer, with their prices."""
    machines = []
    for given in answer.get("Instances", []):
        override = override_of(given)
        type_ = str(given.get("InstanceType") or override.get("InstanceType", ""))
        usd_per_hour = price(record, type_, zone_of(record, override.get("SubnetId", "")))
        machines += [
            Instance(
                each,
                record.number,
                PENDING,
                record.slots[0],
                usd_per_hour=usd_per_hour,
                on_demand_usd_per_hour=on_demand_price(record, type_),
            )
            for each in given["InstanceIds"]
        ]
    return tuple(machines)
