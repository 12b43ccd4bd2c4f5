"""The machines of one run: EC2 fleets of type instant, one for each launch record."""

from __future__ import annotations

import hashlib
import re
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
from airflow_provider_spotbatch.backends.aws.quotas import explained, quota_class
from airflow_provider_spotbatch.backends.aws.verdicts import LAUNCHING, VCPU_QUOTAS, verdict
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import CloudUnavailable, QuotaExceeded, Refusal
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import PENDING, Instance, LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import SPOT

VISIBILITY_SECONDS = 30.0
"""Listings of EC2 are eventually consistent: usually within a second or two; a minute was never seen."""

OVERRIDES = 300
"""Types and subnets of one request at most (EC2 User Guide, "EC2 Fleet quotas")."""

TERMINATED_AT_ONCE = 500

NAMED = 6
"""Types that a message names."""

TEMPLATE_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"
TEMPLATE_GONE = frozenset({"InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"})
OF_EVERY_POOL = "InvalidParameterValue"
"""Of a type that does not go with the rest of the request, but also of an instance profile that does not
exist: then no pool gives a machine, and none tells anything else."""

OTHER_PARAMETERS = "IdempotentParameterMismatch"
NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})


class Ec2Fleet:
    """See :class:`~airflow_provider_spotbatch.backends.base.Fleet`.

    A record's request holds ``pools``, ``disk_gb`` and ``least_vcpus`` of its plan, and what was pinned with
    them: ``subnets`` (zone → ids) and ``images`` (architecture → ``id``, ``root_device``).
    """

    visibility_bound = VISIBILITY_SECONDS

    def __init__(
        self,
        clients: Clients,
        instances: Instances,
        setup: MachineSetup,
        run: Run,
        boot: Boot,
        user_data: Callable[[Boot], str],
    ) -> None:
        self._clients = clients
        self._instances = instances
        self._setup = setup
        self._run = run
        self._boot = boot
        self._user_data = user_data

    async def launch(self, record: LaunchRecord) -> LaunchOutcome:
        if not record.slots:
            return LaunchOutcome()
        try:
            if there := await self._launched(record):
                return LaunchOutcome(tuple(there))
            await self._make_templates(record)
            answer = await self._create_fleet(record)
        except ErrorCode:
            return await self._launched_otherwise(record)
        except Refusal as refusal:
            return LaunchOutcome(refusals=(await self._explained(record, refusal),))
        finally:
            self._instances.forget()
        machines = _machines_of(record, answer)
        if len(machines) == len(record.slots):
            return LaunchOutcome(machines)  # what some pools refused, others had
        refusals = await self._refusals(record, answer.get("Errors", []), len(machines))
        return LaunchOutcome(machines, tuple(refusals))

    async def describe(self) -> list[Instance]:
        return [machine.instance for machine in await self._instances.all() if machine.run == self._run.tag]

    async def terminate(self, instances: Sequence[str]) -> None:
        await terminate(self._clients, instances)
        self._instances.forget()

    async def close(self) -> None:
        await delete_templates(
            self._clients,
            await self._clients.pages(
                "ec2",
                "DescribeLaunchTemplates",
                "LaunchTemplates",
                Filters=[
                    {"Name": f"tag:{STORE_TAG}", "Values": [self._setup.store]},
                    {"Name": f"tag:{RUN_TAG}", "Values": [self._run.tag]},
                ],
            ),
        )

    # --- a launch ------------------------------------------------------------------------------------

    async def _launched(self, record: LaunchRecord) -> list[Instance]:
        """The record's machines, if it was launched before."""
        found = await self._instances.of_launch(self._run.tag, record.number)
        return [
            replace(
                instance_of(
                    each, _price(record, each["InstanceType"], each["Placement"]["AvailabilityZone"])
                ),
                on_demand_usd_per_hour=_on_demand_price(record, each["InstanceType"]),
            )
            for each in found
        ]

    async def _launched_otherwise(self, record: LaunchRecord) -> LaunchOutcome:
        """The record was launched before, as the connection was then."""
        if there := await self._launched(record):
            return LaunchOutcome(tuple(there))
        raise CloudUnavailable(
            f"launch {record.number} was asked for before, by another connection's terms, and EC2 does not "
            "show its machines yet"
        )

    async def _make_templates(self, record: LaunchRecord) -> None:
        """One for each architecture; those that are there from an earlier asking stay as they are."""
        boot = self._boot.for_machine(
            "", record.number, record.slots[0], record.memory_class, "", record.lifetime_seconds
        )
        for architecture in _architectures(record):
            try:
                await self._clients.call(
                    "ec2",
                    "CreateLaunchTemplate",
                    answers={TEMPLATE_EXISTS},
                    LaunchTemplateName=template_name(self._setup.store, self._run, record, architecture),
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
                continue

    async def _create_fleet(self, record: LaunchRecord) -> dict[str, Any]:
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
                        for type_, subnet, its in _overrides(record)
                        if its == architecture
                    ],
                }
                for architecture in _architectures(record)
            ],
            **options,
        )

    # --- refusals ------------------------------------------------------------------------------------

    async def _refusals(
        self, record: LaunchRecord, errors: Iterable[Mapping[str, Any]], machines: int
    ) -> list[Refusal]:
        """One for each error code, and for each quota: a fleet tells an error for every type and subnet.
        ``machines``: how many it gave beside them."""
        told: dict[tuple[str, str], tuple[str, list[str]]] = {}
        for error in errors:
            code = str(error.get("ErrorCode", "UnfulfillableCapacity"))
            type_ = _override_of(error).get("InstanceType", "")
            quota = quota_class(type_) if code in VCPU_QUOTAS else ""
            message, types = told.setdefault((code, quota), (str(error.get("ErrorMessage", "")), []))
            if type_ and type_ not in types:
                types.append(type_)
        if not told:
            told["UnfulfillableCapacity", ""] = ("EC2 gave fewer machines than were asked for", [])
        of_a_pool = {code for code, _ in told} != {OF_EVERY_POOL} or machines > 0
        refusals = []
        for (code, _), (message, types) in told.items():
            meant = verdict(code, f"{message}{_named(types)}", LAUNCHING, of_a_pool=of_a_pool)
            if isinstance(meant, Refusal):
                refusals.append(await self._explained(record, meant, types))
        return refusals

    async def _explained(self, record: LaunchRecord, refusal: Refusal, types: Sequence[str] = ()) -> Refusal:
        if not isinstance(refusal, QuotaExceeded) or refusal.code not in VCPU_QUOTAS:
            return refusal
        of_types = types or [type_ for type_, *_ in _overrides(record)]
        least = int(record.request["least_vcpus"])
        return await explained(self._clients, refusal, of_types, record.purchase, least)


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


async def delete_templates(clients: Clients, templates: Iterable[Mapping[str, Any]]) -> None:
    """Remove launch templates; harmless for those that are gone."""
    for template in templates:
        try:
            await clients.call(
                "ec2",
                "DeleteLaunchTemplate",
                answers=TEMPLATE_GONE,
                LaunchTemplateId=template["LaunchTemplateId"],
            )
        except ErrorCode:
            continue


def _overrides(record: LaunchRecord) -> list[tuple[str, str, str]]:
    """Type, subnet and architecture of all that may be given, the cheapest pools first."""
    subnets = record.request["subnets"]
    found = [
        (type_, subnet, architecture)
        for type_, zone, _, architecture in record.request["pools"]
        for subnet in subnets.get(zone, ())
    ]
    return found[:OVERRIDES]


def _architectures(record: LaunchRecord) -> list[str]:
    return sorted({architecture for _, _, architecture in _overrides(record)})


def _machines_of(record: LaunchRecord, answer: Mapping[str, Any]) -> tuple[Instance, ...]:
    """The machines in a fleet's answer, with their prices."""
    zones = {subnet: zone for zone, subnets in record.request["subnets"].items() for subnet in subnets}
    machines = []
    for given in answer.get("Instances", []):
        override = _override_of(given)
        zone = zones.get(override.get("SubnetId", ""), "")
        type_ = str(given.get("InstanceType") or override.get("InstanceType", ""))
        price, on_demand = _price(record, type_, zone), _on_demand_price(record, type_)
        machines += [
            Instance(
                each,
                record.number,
                PENDING,
                record.slots[0],
                usd_per_hour=price,
                on_demand_usd_per_hour=on_demand,
            )
            for each in given["InstanceIds"]
        ]
    return tuple(machines)


def _override_of(part: Mapping[str, Any]) -> dict[str, str]:
    overrides: dict[str, str] = part.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return overrides


def _price(record: LaunchRecord, type_: str, zone: str) -> float:
    """In US dollars per hour when the record was written; of the dearest where EC2 gave something else."""
    prices = {(pool[0], pool[1]): float(pool[2]) for pool in record.request["pools"]}
    return prices.get((type_, zone), record.usd_per_hour)


def _on_demand_price(record: LaunchRecord, type_: str) -> float:
    """In US dollars per hour, 0 where it is not known."""
    return float(record.request.get("on_demand", {}).get(type_, 0.0))


def _named(types: Sequence[str]) -> str:
    if not types:
        return ""
    more = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
    return f" ({', '.join(types[:NAMED])}{more})"
