"""EC2's answers to a launch, as the control loop receives them."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from botocore.exceptions import ReadTimeoutError

from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet
from airflow_provider_spotbatch.backends.aws.instances import Instances
from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup, template_data
from airflow_provider_spotbatch.backends.aws.quotas import quota_class, quota_code
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    CloudUnavailable,
    InvalidInput,
    NoCapacity,
    QuotaExceeded,
    Refusal,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import LaunchOutcome, LaunchRecord
from tests.unit.backends.aws.sdk import Sdk

STORE = "s3://bucket/prefix"
RUN = Run(Generation("job-0123456789abcdef", 2), 3)
STANDARD = quota_class("m6i.large")
SETUP = MachineSetup(STORE, "machines", ("sg-1",), tags={"team": "film", "spotbatch:run": "not ours"})
REQUEST = {
    "usd_per_hour": 0.09,
    "pools": [
        ["m6g.large", "us-east-2a", 0.03, "arm64"],
        ["m6i.large", "us-east-2b", 0.04, "x86_64"],
        ["m6i.large", "us-east-2c", 0.05, "x86_64"],
    ],
    "subnets": {"us-east-2a": ["subnet-a"], "us-east-2b": ["subnet-b", "subnet-b2"]},
    "images": {
        "arm64": {"id": "ami-arm", "root_device": "/dev/xvda"},
        "x86_64": {"id": "ami-x86", "root_device": "/dev/sda1"},
    },
    "disk_gb": 12.5,
    "least_vcpus": {STANDARD: 2},
}


def boot(**changed: Any) -> Boot:
    told: dict[str, Any] = {
        "backend": "aws",
        "store": STORE,
        "job": RUN.generation.job,
        "generation": 2,
        "run": 3,
        "key": "00",
        **changed,
    }
    return Boot(**told)


def record(machines: int = 2, **changed: Any) -> LaunchRecord:
    return LaunchRecord(7, slots=(4,) * machines, token="token-7", request={**REQUEST, **changed})


def fleet(sdk: Sdk) -> Ec2Fleet:
    clients = sdk.clients()
    return Ec2Fleet(clients, Instances(clients, STORE), SETUP, RUN, boot(), lambda its: its.to_text())


def launched(sdk: Sdk, asked: LaunchRecord | None = None) -> LaunchOutcome:
    return asyncio.run(fleet(sdk).launch(asked or record()))


def given(type_: str, subnet: str, *instances: str) -> dict[str, Any]:
    override = {"InstanceType": type_, "SubnetId": subnet}
    return {
        "LaunchTemplateAndOverrides": {"Overrides": override},
        "InstanceType": type_,
        "InstanceIds": list(instances),
    }


def error(
    code: str, type_: str = "m6i.large", subnet: str = "subnet-b", message: str = "no"
) -> dict[str, Any]:
    override = {"InstanceType": type_, "SubnetId": subnet}
    return {
        "LaunchTemplateAndOverrides": {"Overrides": override},
        "ErrorCode": code,
        "ErrorMessage": message,
    }


def described(instance: str, state: str = "running", reason: str = "", **tags: str) -> dict[str, Any]:
    tags = {"spotbatch:run": RUN.tag, "spotbatch:launch": "7", "spotbatch:slots": "4", **tags}
    return {
        "InstanceId": instance,
        "InstanceType": "m6i.large",
        "Placement": {"AvailabilityZone": "us-east-2b"},
        "State": {"Name": state},
        "StateReason": {"Code": reason, "Message": "as EC2 says"},
        "Tags": [{"Key": name.replace("_", ":"), "Value": value} for name, value in tags.items()],
    }


def listing(*instances: dict[str, Any]) -> dict[str, Any]:
    return {"Reservations": [{"Instances": [each]} for each in instances]}


class TestRequest:
    def test_it_asks_for_all_types_in_their_zones(self) -> None:
        sdk = Sdk()
        launched(sdk)
        [asked] = sdk.asked("CreateFleet")
        overrides = {
            config["LaunchTemplateSpecification"]["LaunchTemplateName"].rsplit("-7-")[1]: [
                (override["InstanceType"], override["SubnetId"]) for override in config["Overrides"]
            ]
            for config in asked["LaunchTemplateConfigs"]
        }
        assert overrides == {"arm64": [("m6g.large", "subnet-a")], "x86-64": [("m6i.large", "subnet-b")]}
        assert asked["Type"] == "instant"
        assert asked["TargetCapacitySpecification"]["TotalTargetCapacity"] == 2
        assert asked["SpotOptions"] == {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }

    def test_a_zones_subnets_take_turns_and_a_repeated_request_names_the_same(self) -> None:
        """EC2 refuses two of one zone in a request, and a subnet may be full."""

        def subnets(number: int) -> set[str]:
            sdk = Sdk()
            launched(sdk, replace(record(), number=number))
            [asked] = sdk.asked("CreateFleet")
            configs = asked["LaunchTemplateConfigs"]
            return {override["SubnetId"] for config in configs for override in config["Overrides"]}

        turns = [subnets(number) for number in (1, 1, 2, 3)]
        first, second = {"subnet-a", "subnet-b"}, {"subnet-a", "subnet-b2"}
        assert turns == [first, first, second, first]

    def test_on_demand_machines_are_the_cheapest(self) -> None:
        sdk = Sdk()
        asyncio.run(fleet(sdk).launch(LaunchRecord(7, slots=(4,), purchase="on-demand", request=REQUEST)))
        [asked] = sdk.asked("CreateFleet")
        assert asked["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
        assert asked["TargetCapacitySpecification"]["OnDemandTargetCapacity"] == 1
        assert "SpotOptions" not in asked

    def test_a_repeated_request_is_the_same_and_another_runs_is_not(self) -> None:
        sdk = Sdk()
        mine = fleet(sdk)
        clients = sdk.clients()
        later = Ec2Fleet(
            clients, Instances(clients, STORE), SETUP, Run(RUN.generation, 4), boot(), lambda its: "later"
        )

        async def main() -> None:
            await mine.launch(record())
            await mine.launch(record())
            await later.launch(record())

        asyncio.run(main())
        first, second, others = sdk.asked("CreateFleet")
        assert first == second
        assert first["ClientToken"] != others["ClientToken"]
        assert len(first["ClientToken"]) <= 64

    def test_at_most_300_pools_are_named(self) -> None:
        sdk = Sdk()
        pools = [[f"m{number}.large", "us-east-2a", 0.03, "arm64"] for number in range(400)]
        launched(sdk, record(pools=pools))
        [asked] = sdk.asked("CreateFleet")
        assert sum(len(config["Overrides"]) for config in asked["LaunchTemplateConfigs"]) == 300

    def test_the_template_says_what_a_machine_is(self) -> None:
        sdk = Sdk()
        launched(sdk)
        arm, x86 = sdk.asked("CreateLaunchTemplate")
        data = arm["LaunchTemplateData"]
        assert (data["ImageId"], x86["LaunchTemplateData"]["ImageId"]) == ("ami-arm", "ami-x86")
        assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["IamInstanceProfile"] == {"Name": "machines"}
        [interface] = data["NetworkInterfaces"]
        assert (interface["AssociatePublicIpAddress"], interface["Groups"]) == (False, ["sg-1"])
        [disk] = data["BlockDeviceMappings"]
        assert (disk["DeviceName"], disk["Ebs"]["VolumeSize"], disk["Ebs"]["Encrypted"]) == (
            "/dev/xvda",
            13,
            True,
        )
        told = Boot.from_text(base64.b64decode(data["UserData"]).decode())
        assert (told.launch, told.slots, told.instance) == (7, 4, "")
        for marked in data["TagSpecifications"]:
            tags = {tag["Key"]: tag["Value"] for tag in marked["Tags"]}
            assert tags["team"] == "film"
            assert (tags["spotbatch:run"], tags["spotbatch:store"]) == (RUN.tag, STORE)
            assert (tags["spotbatch:launch"], tags["spotbatch:slots"]) == ("7", "4")

    @pytest.mark.parametrize(("root_gb", "volume_gb"), [(8, 13), (2, 13), (30, 43)])
    def test_the_root_disk_holds_the_image_and_what_the_plan_asks(self, root_gb: int, volume_gb: int) -> None:
        """Else EC2 says InvalidBlockDeviceMapping: of a large image nobody knows what it leaves free."""
        [disk] = self.disks({"id": "ami-1", "root_device": "/dev/xvda", "root_gb": root_gb, "disks": {}})
        assert disk["Ebs"]["VolumeSize"] == volume_gb

    def test_all_disks_of_an_image_end_with_the_machine(self) -> None:
        others = {"/dev/sdb": {"gb": 50, "snapshot": "snap-1"}, "/dev/sdc": {"gb": 1, "snapshot": ""}}
        disks = self.disks({"id": "ami-1", "root_device": "/dev/xvda", "root_gb": 8, "disks": others})
        assert [(each["DeviceName"], each["Ebs"]["VolumeSize"]) for each in disks] == [
            ("/dev/xvda", 13),
            ("/dev/sdb", 50),
            ("/dev/sdc", 1),
        ]
        assert [each["Ebs"].get("SnapshotId") for each in disks] == [None, "snap-1", None]
        assert all(each["Ebs"]["DeleteOnTermination"] and each["Ebs"]["Encrypted"] for each in disks)

    def disks(self, image: dict[str, Any]) -> list[dict[str, Any]]:
        sdk = Sdk()
        launched(sdk, record(images={"arm64": image, "x86_64": image}))
        asked = sdk.asked("CreateLaunchTemplate")[0]
        found: list[dict[str, Any]] = asked["LaunchTemplateData"]["BlockDeviceMappings"]
        return found

    def test_names_of_templates_fit_for_the_longest_job(self) -> None:
        sdk = Sdk()
        run = Run(Generation("j" * 63, 999_999), 9999)
        clients = sdk.clients()
        asked = Ec2Fleet(clients, Instances(clients, STORE), SETUP, run, boot(), lambda its: "boot")
        asyncio.run(asked.launch(LaunchRecord(99_999, slots=(4,), request=REQUEST)))
        assert all(len(each["LaunchTemplateName"]) <= 128 for each in sdk.asked("CreateLaunchTemplate"))

    def test_boot_data_that_is_too_long_is_refused_by_name(self) -> None:
        with pytest.raises(InvalidInput, match="takes 20000 bytes; EC2 allows 16384"):
            template_data(SETUP, RUN, record(), REQUEST["images"]["arm64"], 8, "x" * 20_000)  # type: ignore[index]


class TestAnswer:
    def test_machines_carry_the_price_of_their_pool(self) -> None:
        answer = {
            "Instances": [given("m6g.large", "subnet-a", "i-1"), given("m6i.large", "subnet-b2", "i-2")]
        }
        outcome = launched(Sdk(CreateFleet=answer))
        assert outcome.refusals == ()
        assert [(each.id, each.launch, each.slots, each.usd_per_hour) for each in outcome.instances] == [
            ("i-1", 7, 4, 0.03),
            ("i-2", 7, 4, 0.04),
        ]

    def test_what_some_pools_refused_and_others_had_is_no_refusal(self) -> None:
        answer = {
            "Instances": [given("m6g.large", "subnet-a", "i-1", "i-2")],
            "Errors": [error("InsufficientInstanceCapacity")],
        }
        assert launched(Sdk(CreateFleet=answer)).refusals == ()

    def test_a_partial_answer_is_machines_and_one_refusal_for_each_code(self) -> None:
        answer = {
            "Instances": [given("m6g.large", "subnet-a", "i-1")],
            "Errors": [
                error("InsufficientInstanceCapacity", "m6i.large", "subnet-b"),
                error("InsufficientInstanceCapacity", "m6i.large", "subnet-b2"),
                error("InsufficientInstanceCapacity", "c6i.large", "subnet-b2"),
                error("InsufficientFreeAddressesInSubnet", "m6i.large", "subnet-b2"),
            ],
        }
        outcome = launched(Sdk(CreateFleet=answer), record(3))
        assert [each.id for each in outcome.instances] == ["i-1"]
        assert [type(each) for each in outcome.refusals] == [NoCapacity, NoCapacity]
        assert "(m6i.large, c6i.large)" in outcome.refusals[0].message

    def test_fewer_machines_without_an_error_are_a_want_of_capacity(self) -> None:
        [refusal] = launched(Sdk(CreateFleet={"Instances": []})).refusals
        assert isinstance(refusal, NoCapacity)

    @pytest.mark.parametrize(
        ("code", "kind", "fatal"),
        [
            ("InsufficientInstanceCapacity", NoCapacity, False),
            ("UnfulfillableCapacity", NoCapacity, False),
            ("InsufficientFreeAddressesInSubnet", NoCapacity, False),
            ("Unsupported", NoCapacity, False),
            ("InvalidFleetConfiguration", NoCapacity, False),
            ("MaxSpotInstanceCountExceeded", QuotaExceeded, False),
            ("VcpuLimitExceeded", QuotaExceeded, False),
            ("RequestLimitExceeded", Throttled, False),
            ("UnauthorizedOperation", AccessDenied, True),
            ("InvalidAMIID.NotFound", BadRequest, True),
        ],
    )
    def test_an_error_of_a_pool_is_a_verdict(self, code: str, kind: type[Refusal], fatal: bool) -> None:
        sdk = Sdk(CreateFleet={"Errors": [error(code)]}, GetServiceQuota="AccessDeniedException")
        [refusal] = launched(sdk).refusals
        assert (type(refusal), refusal.fatal, refusal.code) == (kind, fatal, code)
        assert refusal.remedy

    def test_a_parameter_that_no_pool_takes_is_the_connections_fault(self) -> None:
        """EC2 says no more of an instance profile that does not exist."""
        invalid = [error("InvalidParameterValue", subnet=each) for each in ("subnet-b", "subnet-b2")]
        [refusal] = launched(Sdk(CreateFleet={"Errors": invalid})).refusals
        assert isinstance(refusal, BadRequest)
        assert "'instance_profile' of the connection" in refusal.remedy

    @pytest.mark.parametrize(
        "others",
        [
            {"Errors": [error("InsufficientInstanceCapacity", "c6i.large")]},
            {"Instances": [given("m6g.large", "subnet-a", "i-1")]},
        ],
    )
    def test_a_parameter_that_some_pools_take_rules_out_the_others(self, others: dict[str, Any]) -> None:
        errors = [error("InvalidParameterValue"), *others.get("Errors", [])]
        outcome = launched(Sdk(CreateFleet={**others, "Errors": errors}))
        assert {type(each) for each in outcome.refusals} == {NoCapacity}

    def test_where_ec2_fails_in_a_pool_others_are_tried(self) -> None:
        [refusal] = launched(Sdk(CreateFleet={"Errors": [error("InternalError")]})).refusals
        assert isinstance(refusal, NoCapacity)

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("MaxSpotInstanceCountExceeded", QuotaExceeded),
            ("RequestLimitExceeded", Throttled),
            ("UnauthorizedOperation", AccessDenied),
            ("InvalidAMIID.NotFound", BadRequest),
            ("InvalidSubnetID.NotFound", BadRequest),
        ],
    )
    def test_a_refusal_of_the_whole_is_an_outcome_without_machines(
        self, code: str, kind: type[Refusal]
    ) -> None:
        outcome = launched(Sdk(CreateFleet=code, GetServiceQuota="AccessDeniedException"))
        assert outcome.instances == ()
        assert [type(each) for each in outcome.refusals] == [kind]

    def test_a_template_that_may_not_be_made_is_told_as_the_refusal(self) -> None:
        sdk = Sdk(CreateLaunchTemplate="UnauthorizedOperation")
        [refusal] = launched(sdk).refusals
        assert "Allow ec2:CreateLaunchTemplate" in refusal.remedy
        assert sdk.asked("CreateFleet") == []

    @pytest.mark.parametrize("failure", ["InternalError", ReadTimeoutError(endpoint_url="https://ec2")])
    def test_where_nothing_is_known_of_the_effect_it_raises(self, failure: Any) -> None:
        with pytest.raises(CloudUnavailable):
            launched(Sdk(CreateFleet=failure))


EVERY_POOL = [("m6g.large", "subnet-a"), ("m6i.large", "subnet-b"), ("m6i.xlarge", "subnet-b")]


class TestRefusalsOfSomePools:
    """What one pool refuses for good stops no job that other pools may run."""

    POOLS = (*REQUEST["pools"], ["m6i.xlarge", "us-east-2b", 0.05, "x86_64"])  # type: ignore[misc]

    def refusals(self, sdk: Sdk, machines: int = 1, **changed: Any) -> tuple[Refusal, ...]:
        return launched(sdk, record(machines, **{"pools": self.POOLS, **changed})).refusals

    def test_a_quota_below_one_machine_beside_given_machines_is_a_want_of_capacity(self) -> None:
        pools = [*self.POOLS, ["x2iedn.xlarge", "us-east-2a", 0.05, "x86_64"]]
        answer = {
            "Instances": [given("m6g.large", "subnet-a", *(f"i-{n}" for n in range(6)))],
            "Errors": [error("MaxSpotInstanceCountExceeded", "x2iedn.xlarge", "subnet-a")],
        }
        sdk = Sdk(CreateFleet=answer, GetServiceQuota={"Quota": {"Value": 0.0}})
        least = {STANDARD: 2, "X": 4}
        [refusal] = self.refusals(sdk, 8, pools=pools, least_vcpus=least)
        assert isinstance(refusal, NoCapacity)
        assert "x2iedn.xlarge" in refusal.message
        assert "--quota-code L-E3A00192" in refusal.remedy

    @pytest.mark.parametrize("code", ["UnsupportedOperation", "UnauthorizedOperation"])
    def test_a_wrong_pool_beside_given_machines_is_a_want_of_capacity(self, code: str) -> None:
        answer = {"Instances": [given("m6g.large", "subnet-a", "i-1")], "Errors": [error(code)]}
        [refusal] = self.refusals(Sdk(CreateFleet=answer), 2)
        assert (type(refusal), refusal.code) == (NoCapacity, code)

    def test_a_wrong_pool_is_no_end_while_others_were_not_told_of(self) -> None:
        [refusal] = self.refusals(Sdk(CreateFleet={"Errors": [error("UnsupportedOperation")]}))
        assert isinstance(refusal, NoCapacity)

    def test_it_is_one_where_every_pool_is_wrong(self) -> None:
        errors = [error("UnsupportedOperation", *pool) for pool in EVERY_POOL]
        [refusal] = self.refusals(Sdk(CreateFleet={"Errors": errors}))
        assert isinstance(refusal, BadRequest)

    def test_nor_is_it_where_one_of_them_lacks_capacity(self) -> None:
        wrong, scarce = EVERY_POOL[:2], EVERY_POOL[2]
        errors = [error("UnsupportedOperation", *pool) for pool in wrong]
        errors.append(error("InsufficientInstanceCapacity", *scarce))
        refusals = self.refusals(Sdk(CreateFleet={"Errors": errors}))
        assert [type(each) for each in refusals] == [NoCapacity, NoCapacity]


GPUS = {
    "pools": [["g5.xlarge", "us-east-2a", 0.5, "x86_64"], ["p3.2xlarge", "us-east-2b", 0.9, "x86_64"]],
    "least_vcpus": {"G and VT": 4, "P": 8},
}


class TestQuotas:
    def refusal(self, quota: Any, **changed: Any) -> QuotaExceeded:
        answer = {"Errors": [error("MaxSpotInstanceCountExceeded", **changed)]}
        [refusal] = launched(Sdk(CreateFleet=answer, GetServiceQuota=quota)).refusals
        assert isinstance(refusal, QuotaExceeded)
        return refusal

    def test_the_remedy_is_the_command_that_raises_the_quota(self) -> None:
        refusal = self.refusal({"Quota": {"Value": 100.0}})
        assert "now 100," in refusal.remedy
        assert (
            "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-34B43A08 "
            "--desired-value 200 --region us-east-2"
        ) in refusal.remedy
        assert not refusal.fatal

    @pytest.mark.parametrize(
        ("type_", "purchase", "code"),
        [
            ("m6i.large", "spot", "L-34B43A08"),
            ("m6i.large", "on-demand", "L-1216C47A"),
            ("g5.xlarge", "spot", "L-3819A6DF"),
            ("g5.xlarge", "on-demand", "L-DB2E81BA"),
            ("p4d.24xlarge", "spot", "L-7212CCBC"),
            ("p4d.24xlarge", "on-demand", "L-417A185B"),
        ],
    )
    def test_the_quota_is_that_of_the_types_family_and_of_the_way_of_buying(
        self, type_: str, purchase: str, code: str
    ) -> None:
        answer = {"Errors": [error("VcpuLimitExceeded", type_)]}
        sdk = Sdk(CreateFleet=answer, GetServiceQuota={"Quota": {"Value": 8.0}})
        [refusal] = launched(sdk, replace(record(), purchase=purchase)).refusals
        assert [each["QuotaCode"] for each in sdk.asked("GetServiceQuota")] == [code]
        assert f"{purchase} instances, now 8, is {code}. Raise it: aws service-quotas" in refusal.remedy

    def test_a_quota_whose_code_is_not_known_is_looked_for_in_the_console(self) -> None:
        refusal = self.refusal({"Quota": {"Value": 8.0}}, type_="p6-b200.48xlarge")
        assert "The quota of vCPUs of p6 spot instances is found in the console of Service Quotas" in (
            refusal.remedy
        )
        assert not refusal.fatal

    @pytest.mark.parametrize(("vcpus", "fatal"), [(0.0, True), (1.0, True), (2.0, False)])
    def test_it_is_fatal_only_below_one_machine(self, vcpus: float, fatal: bool) -> None:
        assert self.refusal({"Quota": {"Value": vcpus}}).fatal is fatal

    def test_without_the_permission_the_message_tells_the_quota(self) -> None:
        message = "You have requested more vCPU capacity than your current vCPU limit of 0 allows"
        assert self.refusal("AccessDeniedException", message=message).fatal
        assert not self.refusal("AccessDeniedException").fatal

    def of_gpus(self, quotas: dict[str, float], *errors: dict[str, Any]) -> tuple[Refusal, ...]:
        """``quotas``: of spot, by class."""

        def quota(ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
            return {"Quota": {"Value": {quota_code(c, "spot"): v for c, v in quotas.items()}[QuotaCode]}}

        sdk = Sdk(CreateFleet={"Errors": list(errors)}, GetServiceQuota=quota)
        return launched(sdk, record(1, **GPUS)).refusals

    def test_it_is_not_fatal_while_another_class_has_room(self) -> None:
        refusals = self.of_gpus(
            {"G and VT": 64.0, "P": 0.0},
            error("InsufficientInstanceCapacity", "g5.xlarge", "subnet-a"),
            error("MaxSpotInstanceCountExceeded", "p3.2xlarge", "subnet-b"),
        )
        assert [type(each) for each in refusals] == [NoCapacity, QuotaExceeded]
        assert not any(each.fatal for each in refusals)

    @pytest.mark.parametrize(("of_g", "fatal"), [(0.0, True), (3.0, True), (4.0, False)])
    def test_each_class_has_a_smallest_machine_of_its_own(self, of_g: float, fatal: bool) -> None:
        told = error("MaxSpotInstanceCountExceeded", "p3.2xlarge", "subnet-b")
        [refusal] = self.of_gpus({"G and VT": of_g, "P": 4.0}, told)
        assert refusal.fatal is fatal

    def test_without_the_permission_the_messages_tell_the_quotas_of_all_classes(self) -> None:
        message = "You have requested more vCPU capacity than your current vCPU limit of 0 allows"
        g5 = error("VcpuLimitExceeded", "g5.xlarge", "subnet-a", message)
        p3 = error("VcpuLimitExceeded", "p3.2xlarge", "subnet-b", message)
        for errors, fatal in (([g5, p3], [True, True]), ([g5], [False])):
            sdk = Sdk(CreateFleet={"Errors": errors}, GetServiceQuota="AccessDeniedException")
            assert [each.fatal for each in launched(sdk, record(1, **GPUS)).refusals] == fatal

    @pytest.mark.parametrize(("vcpus", "fatal"), [(1.0, True), (2.0, False)])
    def test_records_of_earlier_releases_know_one_smallest_machine(self, vcpus: float, fatal: bool) -> None:
        answer = {"Errors": [error("MaxSpotInstanceCountExceeded")]}
        sdk = Sdk(CreateFleet=answer, GetServiceQuota={"Quota": {"Value": vcpus}})
        [refusal] = launched(sdk, record(least_vcpus=2)).refusals
        assert refusal.fatal is fatal


class TestTemplatesOfEarlierLaunches:
    def launches(self, sdk: Sdk, *numbers: int) -> None:
        mine = fleet(sdk)

        async def main() -> None:
            for number in numbers:
                await mine.launch(replace(record(), number=number))

        asyncio.run(main())

    def removed(self, sdk: Sdk) -> list[str]:
        return [each["LaunchTemplateName"].split("-3-")[-1] for each in sdk.asked("DeleteLaunchTemplate")]

    def test_they_go_with_the_next_launch_which_needs_their_answer(self) -> None:
        sdk = Sdk(CreateFleet={"Errors": [error("InsufficientInstanceCapacity")]})
        self.launches(sdk, 1, 2, 3)
        assert self.removed(sdk) == ["1-arm64", "1-x86-64", "2-arm64", "2-x86-64"]

    def test_those_of_a_launch_that_is_asked_again_stay(self) -> None:
        sdk = Sdk()
        self.launches(sdk, 1, 1)
        assert self.removed(sdk) == []

    @pytest.mark.parametrize("failure", ["InvalidLaunchTemplateName.NotFoundException", "InternalError"])
    def test_what_cannot_be_removed_holds_back_no_launch(self, failure: str) -> None:
        sdk = Sdk(DeleteLaunchTemplate=failure)
        self.launches(sdk, 1, 2)
        assert len(sdk.asked("CreateFleet")) == 2


class TestRepeatedLaunch:
    def test_ec2_is_asked_again_whatever_it_lists(self) -> None:
        """A listing may show one machine of four: the token gives all of them."""
        answer = {"Instances": [given("m6g.large", "subnet-a", "i-1", "i-2", "i-3", "i-4")]}
        sdk = Sdk(CreateFleet=answer, DescribeInstances=listing(described("i-1")))
        assert [each.id for each in launched(sdk, record(4)).instances] == ["i-1", "i-2", "i-3", "i-4"]

    def test_a_template_that_is_there_is_used(self) -> None:
        sdk = Sdk(
            CreateLaunchTemplate="InvalidLaunchTemplateName.AlreadyExistsException",
            CreateFleet={"Instances": [given("m6g.large", "subnet-a", "i-1", "i-2")]},
        )
        assert len(launched(sdk).instances) == 2

    def test_one_that_may_not_be_asked_again_yet_is_not_answered(self) -> None:
        """Its machines, if it has any, would be ended as nobody's."""
        sdk = Sdk(
            CreateLaunchTemplate="InvalidLaunchTemplateName.AlreadyExistsException",
            CreateFleet="RequestLimitExceeded",
        )
        with pytest.raises(CloudUnavailable, match="launch 7 could not be asked for again"):
            launched(sdk)


class TestTokenUsedWithOtherParameters:
    """What a launch gave, asked for by another connection's terms, is known from listings alone."""

    def later(self, seconds: float, *listed: dict[str, Any] | str) -> LaunchOutcome:
        """The answer to an asking so long after the first that was told of other parameters. ``listed``: what
        EC2 lists each time."""
        now = 1000.0
        listings = [each if isinstance(each, str) else listing(each) for each in listed] or [listing()]
        sdk = Sdk(CreateFleet="IdempotentParameterMismatch", DescribeInstances=listings)
        clients = sdk.clients()
        instances = Instances(clients, STORE)
        asking = Ec2Fleet(
            clients, instances, SETUP, RUN, boot(), lambda its: its.to_text(), clock=lambda: now
        )

        async def main() -> LaunchOutcome:
            nonlocal now
            try:
                return await asking.launch(record())
            except CloudUnavailable:
                now += seconds
                return await asking.launch(record())

        return asyncio.run(main())

    def test_all_machines_are_the_answer_at_once(self) -> None:
        sdk = Sdk(
            CreateFleet="IdempotentParameterMismatch",
            DescribeInstances=listing(described("i-1"), described("i-2", "terminated")),
        )
        outcome = launched(sdk)
        assert [(each.id, each.usd_per_hour) for each in outcome.instances] == [("i-1", 0.04), ("i-2", 0.04)]

    def test_some_are_not_until_all_are_sure_to_be_listed(self) -> None:
        with pytest.raises(CloudUnavailable, match="launch 7 was asked for before"):
            self.later(29, described("i-1"))

    def test_then_those_listed_are(self) -> None:
        assert [each.id for each in self.later(30, described("i-1")).instances] == ["i-1"]

    def test_a_launch_that_gave_none_is_a_want_of_capacity(self) -> None:
        outcome = self.later(30)
        assert outcome.instances == ()
        assert [type(each) for each in outcome.refusals] == [NoCapacity]

    def test_where_nobody_can_look_it_is_not_answered(self) -> None:
        with pytest.raises(CloudUnavailable, match="what launch 7 gave is not known"):
            self.later(30, "RequestLimitExceeded")


class TestTimeToAsk:
    def test_a_launch_whose_time_is_over_is_not_asked_for(self) -> None:
        sdk = Sdk()
        with pytest.raises(CloudUnavailable, match="too late"):
            asyncio.run(fleet(sdk).launch(record(), within=0.0))
        assert sdk.asked("CreateFleet") == []

    def test_time_that_templates_take_counts(self) -> None:
        passed = threading.Event()

        def slow(**_: Any) -> dict[str, Any]:
            passed.wait(0.05)
            return {}

        sdk = Sdk(CreateLaunchTemplate=slow)
        with pytest.raises(CloudUnavailable, match="too late"):
            asyncio.run(fleet(sdk).launch(record(), within=0.05))
        assert sdk.asked("CreateFleet") == []

    def test_it_is_asked_once_for_half_a_minute(self) -> None:
        sdk = Sdk()
        launched(sdk)
        once = sdk.made[-1]["config"]
        assert (once.retries["total_max_attempts"], once.read_timeout) == (1, 30.0)


class TestDescribe:
    def look(self, *instances: dict[str, Any]) -> Any:
        return asyncio.run(fleet(Sdk(DescribeInstances=listing(*instances))).describe())

    @pytest.mark.parametrize(
        ("code", "interrupted", "reason"),
        [
            ("Server.SpotInstanceTermination", True, "EC2 took it back"),
            ("Client.InstanceInitiatedShutdown", False, "the agent ended"),
            ("Client.UserInitiatedShutdown", False, "it was asked to end"),
            ("Server.SomethingNew", False, "as EC2 says"),
        ],
    )
    def test_the_state_reason_tells_a_reclaim_from_an_end(
        self, code: str, interrupted: bool, reason: str
    ) -> None:
        [machine] = self.look(described("i-1", "terminated", code))
        assert (machine.state, machine.interrupted, machine.reason) == ("terminated", interrupted, reason)

    @pytest.mark.parametrize(
        ("state", "seen"),
        [
            ("pending", "pending"),
            ("running", "running"),
            ("shutting-down", "running"),
            ("stopping", "running"),
            ("stopped", "running"),
            ("terminated", "terminated"),
        ],
    )
    def test_a_machine_is_gone_only_once_it_is_terminated(self, state: str, seen: str) -> None:
        assert [each.state for each in self.look(described("i-1", state))] == [seen]

    def test_machines_of_other_runs_and_copied_tags_are_left_out(self) -> None:
        foreign = {**described("i-3"), "Tags": [{"Key": "spotbatch:run", "Value": RUN.tag}]}
        found = self.look(described("i-1"), described("i-2", spotbatch_run="other/1/1"), foreign)
        assert [each.id for each in found] == ["i-1"]

    @pytest.mark.parametrize("failure", ["RequestLimitExceeded", "InternalError"])
    def test_where_nobody_can_look_it_is_throttled(self, failure: str) -> None:
        with pytest.raises(Throttled):
            asyncio.run(fleet(Sdk(DescribeInstances=failure)).describe())

    def test_all_jobs_of_a_process_look_together(self) -> None:
        sdk = Sdk(DescribeInstances=listing(described("i-1")))
        clients = sdk.clients()
        instances = Instances(clients, STORE)
        fleets = [
            Ec2Fleet(clients, instances, SETUP, Run(RUN.generation, run), boot(), lambda its: "boot")
            for run in range(1, 30)
        ]

        async def main() -> None:
            await asyncio.gather(*(each.describe() for each in fleets))
            await asyncio.gather(*(each.describe() for each in fleets))

        asyncio.run(main())
        assert len(sdk.asked("DescribeInstances")) == 1


class TestTerminate:
    def test_one_unknown_machine_does_not_spare_the_others(self) -> None:
        def terminate(InstanceIds: list[str]) -> dict[str, Any]:
            if "i-bad" in InstanceIds:
                sdk.answer("Refusing", {})
            return {}

        sdk = Sdk(TerminateInstances=terminate, Refusing="InvalidInstanceID.NotFound")
        asyncio.run(fleet(sdk).terminate(["i-1", "i-bad", "i-2", "never-was-1"]))
        assert [each["InstanceIds"] for each in sdk.asked("TerminateInstances")] == [
            ["i-1", "i-bad", "i-2"],
            ["i-1"],
            ["i-bad"],
            ["i-2"],
        ]

    def test_a_refused_termination_is_raised(self) -> None:
        with pytest.raises(AccessDenied, match="TerminateInstances"):
            asyncio.run(fleet(Sdk(TerminateInstances="UnauthorizedOperation")).terminate(["i-1"]))
