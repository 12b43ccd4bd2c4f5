"""What a region has and charges, asked of a moto server and kept in the store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.backends.aws import prices as prices_module
from airflow_provider_spotbatch.backends.aws.clients import Access, Clients
from airflow_provider_spotbatch.backends.aws.images import ask_images
from airflow_provider_spotbatch.backends.aws.instances import (
    LAUNCH_TAG,
    RUN_TAG,
    SLOTS_TAG,
    STORE_TAG,
    tag_list,
)
from airflow_provider_spotbatch.backends.aws.machine_types import machine_type
from airflow_provider_spotbatch.backends.aws.prices import ask_on_demand, ask_spot, estimated, extras
from airflow_provider_spotbatch.backends.aws.quotas import quota_class
from airflow_provider_spotbatch.backends.aws.subnets import ask_subnets
from airflow_provider_spotbatch.backends.machine_sizing import MachineType
from airflow_provider_spotbatch.cli import main, place
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Generation, Run, facts
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from tests.cloud.cloudbox.images import DEBIAN_12
from tests.cloud.cloudbox.moto import Moto
from tests.support.aws import AMAZON_LINUX, REGION, aws_settings
from tests.unit.backends.aws.sdk import Sdk
from tests.unit.backends.aws.test_fleet import RUN, boot

T = TypeVar("T")


def run(asked: Awaitable[T]) -> T:
    async def main() -> T:
        return await asked

    return asyncio.run(main())


def listed(**changed: Any) -> dict[str, Any]:
    return {
        "InstanceType": "m6i.large",
        "CurrentGeneration": True,
        "BareMetal": False,
        "BurstablePerformanceSupported": False,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 2},
        "MemoryInfo": {"SizeInMiB": 8192},
        **changed,
    }


def gpus(maker: str = "NVIDIA", count: int = 4, mib: int = 16384) -> dict[str, Any]:
    return {"Gpus": [{"Manufacturer": maker, "Count": count, "MemoryInfo": {"SizeInMiB": mib}}]}


class TestMachineTypes:
    def test_a_type_is_what_ec2_says_of_it(self) -> None:
        assert machine_type(listed()) == MachineType("m6i.large", 2, 8.0)
        arm = machine_type(
            listed(InstanceType="t4g.small", BurstablePerformanceSupported=True)
            | {"ProcessorInfo": {"SupportedArchitectures": ["arm64"]}}
        )
        assert arm == MachineType("t4g.small", 2, 8.0, architecture="arm64", burstable=True)
        assert machine_type(listed(InstanceType="g4dn.12xlarge", GpuInfo=gpus())) == MachineType(
            "g4dn.12xlarge", 2, 8.0, gpus=4, gpu_memory_gb=16.0
        )

    @pytest.mark.parametrize(
        "changed",
        [
            {"InstanceType": "hpc7a.96xlarge"},
            {"InstanceType": "inf2.xlarge"},
            {"InstanceType": "u-6tb1.112xlarge"},
            {"InstanceType": "u7i-12tb.224xlarge"},
            {"InstanceType": "dl1.24xlarge", "GpuInfo": gpus("Habana")},
            {"InstanceType": "g4ad.xlarge", "GpuInfo": gpus("AMD")},
            {"InstanceType": "f2.6xlarge", "FpgaInfo": {"Fpgas": [{"Count": 1}]}},
        ],
    )
    def test_types_made_for_a_purpose_are_marked(self, changed: dict[str, Any]) -> None:
        found = machine_type(listed(**changed))
        assert found is not None
        assert found.specialised
        assert found.gpus == 0

    def test_a_type_without_linux_is_none(self) -> None:
        assert machine_type(listed(ProcessorInfo={"SupportedArchitectures": ["x86_64_mac"]})) is None


class TestImages:
    def test_the_disks_that_come_with_an_image_are_known(self) -> None:
        def ebs(device: str, gb: int) -> dict[str, Any]:
            return {"DeviceName": device, "Ebs": {"VolumeSize": gb, "SnapshotId": f"snap-{gb}"}}

        image = {
            "ImageId": "ami-1",
            "Architecture": "x86_64",
            "RootDeviceName": "/dev/xvda",
            "BlockDeviceMappings": [
                ebs("/dev/xvda", 30),
                ebs("/dev/sdb", 5),
                {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
            ],
        }
        found = run(ask_images(_asking(DescribeImages={"Images": [image]}), ["ami-1"]))["x86_64"]
        assert (found["root_device"], found["root_gb"]) == ("/dev/xvda", 30)
        assert found["disks"] == {"/dev/sdb": {"gb": 5, "snapshot": "snap-5"}}


class TestSubnets:
    def test_those_with_most_room_come_first(self) -> None:
        rows = [("subnet-1", "a", 3), ("subnet-2", "a", 200), ("subnet-3", "b", 3), ("subnet-4", "a", 200)]
        found = [
            {"SubnetId": subnet, "AvailabilityZone": zone, "AvailableIpAddressCount": free}
            for subnet, zone, free in rows
        ]
        zones = run(ask_subnets(_asking(DescribeSubnets={"Subnets": found}), ["subnet-1"]))
        assert zones == {"a": ["subnet-2", "subnet-4", "subnet-1"], "b": ["subnet-3"]}


class TestExtras:
    STOCK: ClassVar = {"root_gb": 8, "disks": {}}
    LARGE: ClassVar = {"root_gb": 75, "disks": {"/dev/sdb": {"gb": 25, "snapshot": ""}}}

    def test_each_gb_of_disk_costs(self) -> None:
        assert extras([self.STOCK], public_address=False).usd_per_hour(8) == pytest.approx(8 * 0.08 / 730)

    def test_a_public_address_costs(self) -> None:
        with_address, without = (extras([self.STOCK], public_address=each) for each in (True, False))
        assert with_address.usd_per_hour(8) - without.usd_per_hour(8) == pytest.approx(0.005)

    def test_the_disks_of_the_largest_image_count(self) -> None:
        found = extras([self.STOCK, self.LARGE, {}], public_address=False)
        assert found.usd_per_hour(8) == pytest.approx(108 * 0.08 / 730)


class TestPrices:
    def test_the_newest_spot_price_of_each_pool_counts(self) -> None:
        rows = [("m6i.large", "us-east-2a", "0.05", 2), ("m6i.large", "us-east-2a", "0.04", 1)]
        history = [
            {"InstanceType": type_, "AvailabilityZone": zone, "SpotPrice": price, "Timestamp": at}
            for type_, zone, price, at in rows
        ]
        [price] = run(ask_spot(_asking(DescribeSpotPriceHistory={"SpotPriceHistory": history})))
        assert (price["type"], price["zone"], price["usd_per_hour"]) == ("m6i.large", "us-east-2a", 0.05)

    def test_on_demand_prices_are_those_of_the_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read_in = set()

        def reading(text: str) -> Any:
            read_in.add(threading.current_thread())
            return json.JSONDecoder().decode(text)

        monkeypatch.setattr(prices_module.json, "loads", reading)
        dimension = {"priceDimensions": {"x": {"pricePerUnit": {"USD": "0.0960000000"}}}}
        product = {
            "product": {"attributes": {"instanceType": "m6i.large"}},
            "terms": {"OnDemand": {"y": dimension}},
        }
        found = run(
            ask_on_demand(
                _asking(GetProducts={"PriceList": [json.dumps(product)]}),
                [MachineType("m6i.large", 2, 8.0), MachineType("m9z.large", 2, 8.0)],
                {"m6i.large": ["us-east-2a", "us-east-2b"], "m9z.large": ["us-east-2a"]},
            )
        )
        prices = {(each["type"], each["zone"]): each["usd_per_hour"] for each in found["prices"]}
        assert found["estimated"] == ["m9z.large"]
        assert prices == {
            ("m6i.large", "us-east-2a"): 0.096,
            ("m6i.large", "us-east-2b"): 0.096,
            ("m9z.large", "us-east-2a"): estimated(MachineType("m9z.large", 2, 8.0)),
        }

        assert threading.main_thread() not in read_in, "the list is MBs: it would hold up the event loop"
        assert read_in

    def test_who_may_not_read_the_list_goes_by_estimates(self) -> None:
        found = run(
            ask_on_demand(
                _asking(GetProducts="AccessDeniedException"),
                [MachineType("m6i.large", 2, 8.0)],
                {"m6i.large": ["us-east-2a"]},
            )
        )
        assert found["estimated"] == ["m6i.large"]
        [price] = found["prices"]
        assert price["usd_per_hour"] == pytest.approx(0.096, rel=0.1)

    def test_where_the_price_list_knows_no_credentials_it_is_not_asked(self) -> None:
        sdk = Sdk()
        clients = Clients("us-gov-west-1", access=Access(lambda: sdk))
        told = run(ask_on_demand(clients, [MachineType("m6i.large", 2, 8.0)], {"m6i.large": ["a"]}))
        assert told["estimated"] == ["m6i.large"]
        assert sdk.calls == []

    @pytest.mark.parametrize(
        ("vcpus", "memory_gb", "usd"), [(2, 4, 0.085), (2, 8, 0.096), (2, 16, 0.126), (64, 256, 3.072)]
    )
    def test_estimates_are_near_the_list(self, vcpus: int, memory_gb: float, usd: float) -> None:
        assert estimated(MachineType("m", vcpus, memory_gb)) == pytest.approx(usd, rel=0.1)


def _asking(**answers: Any) -> Any:
    return Sdk(**answers).clients()


_slow: dict[str, bytes] = {}
"""What moto takes seconds to tell, and always tells the same: asked once."""


async def _with_facts(backend: AwsBackend) -> AwsBackend:
    store = backend.open_store()
    for name, data in _slow.items():
        await store.write(name, data)
    await backend.region.types()
    for purchase in ("spot", "on-demand"):
        await backend.region.prices(purchase)
    for what in ("types", "zones", "spot-prices", "listed-prices"):
        name = facts(f"aws/{REGION}/{what}")
        _slow[name] = await store.read(name) or b""
    return backend


def opened(moto: Moto, name: str, **options: Any) -> AwsBackend:
    return run(_with_facts(AwsBackend(aws_settings(moto, name, **options))))


def boot_of(backend: AwsBackend) -> Boot:
    return boot(
        store=backend.store_uri,
        store_options=backend.store_options,
        backend_options=backend.boot_options(),
    )


class TestOffers:
    def offers(self, backend: AwsBackend, resources: Resources, **policy: Any) -> Any:
        return run(backend.offers(resources, Policy(resources=resources, **policy), 64))

    def test_machines_of_both_architectures_in_the_connections_zones(self, moto: Moto) -> None:
        subnets = moto.client("ec2", REGION).describe_subnets()["Subnets"]
        one_zone = [subnets[0]["SubnetId"]]
        backend = opened(moto, "offers", subnets=one_zone)
        offers = self.offers(backend, Resources(cpus=2, memory_gb=4))
        assert len(offers) > 1
        best = offers[0]
        assert best.purchase == "spot"
        assert {pool[3] for pool in best.request["pools"]} == {"arm64", "x86_64"}
        assert list(best.request["subnets"].values()) == [one_zone]
        assert set(best.request["images"]) == {"arm64", "x86_64"}
        assert {pool[1] for pool in best.request["pools"]} == set(best.request["subnets"])
        json.dumps([offer.request for offer in offers])

    def test_what_was_asked_is_kept_in_the_store(self, moto: Moto) -> None:
        backend = opened(moto, "kept")
        first = self.offers(backend, Resources())
        names = {entry.name for entry in run(backend.open_store().list_objects("facts"))}
        assert {f"facts/aws/{REGION}/types.json", f"facts/aws/{REGION}/spot-prices.json"} <= names
        assert self.offers(backend, Resources()) == first

    def test_on_demand_follows_spot_where_both_may_be_bought(self, moto: Moto) -> None:
        backend = opened(moto, "both")
        offers = self.offers(backend, Resources(), purchase="spot-then-on-demand")
        purchases = [offer.purchase for offer in offers]
        assert purchases == sorted(purchases, reverse=True)
        assert set(purchases) == {"spot", "on-demand"}

    def test_the_smallest_machine_is_known_by_class_of_quota(self, moto: Moto) -> None:
        backend = opened(moto, "least")
        resources = Resources(cpus=3, instance_types=("m5.*", "c5.*", "x1e.*"))
        of_spot, *others = (offer.request["least_vcpus"] for offer in self.offers(backend, resources))
        assert of_spot == {quota_class("m5.large"): 4, "X": 4}
        assert all(each == of_spot for each in others)

    def test_all_prices_know_the_disk(self, moto: Moto) -> None:
        backend = opened(moto, "disk")
        disk = 100 * 0.08 / 730
        plain, large = (
            self.offers(backend, Resources(cpus=2, disk_gb=gb, instance_types=("m5.large",)))[0]
            for gb in (0, 100)
        )
        assert (plain.slots, large.slots) == (1, 1)
        assert large.usd_per_hour - plain.usd_per_hour == pytest.approx(disk)
        assert large.expected_usd_per_hour - plain.expected_usd_per_hour == pytest.approx(disk)
        assert large.on_demand_usd_per_hour - plain.on_demand_usd_per_hour == pytest.approx(disk)
        assert list(large.request["on_demand"].values()) == [large.on_demand_usd_per_hour]

    def test_an_image_that_does_not_exist_is_named(self, moto: Moto) -> None:
        backend = AwsBackend(aws_settings(moto, "no-image", image=["/no/such/parameter"]))
        with pytest.raises(InvalidInput, match="no SSM parameter /no/such/parameter in us-east-2"):
            self.offers(backend, Resources())

    def test_an_architecture_without_an_image_is_named(self, moto: Moto) -> None:
        debian = DEBIAN_12.id
        backend = opened(moto, "one-image", image=[debian])
        with pytest.raises(InvalidInput, match=rf"\['arm64'\], and the images .* are {debian} \(x86_64\)"):
            self.offers(backend, Resources(architectures=("arm64",)))

    def test_no_machine_is_started_that_its_own_timer_would_end_as_it_boots(self, moto: Moto) -> None:
        with pytest.raises(InvalidInput, match="max_runtime is 10 s; on AWS it must be at least 60"):
            self.offers(opened(moto, "short"), Resources(), max_runtime=10.0)

    def test_an_offer_can_be_launched(self, moto: Moto) -> None:
        backend = opened(moto, "launched")
        offer = self.offers(backend, Resources())[0]
        record = LaunchRecord(
            1,
            slots=(offer.slots,) * 2,
            token="token-1",
            request={**offer.request, "usd_per_hour": offer.usd_per_hour},
        )
        outcome = run(backend.fleet(RUN, boot_of(backend)).launch(record))
        assert outcome.refusals == ()
        assert len(outcome.instances) == 2
        assert all(0 < each.usd_per_hour <= offer.usd_per_hour for each in outcome.instances)


class TestBareMachines:
    """Archives are made for the architectures that may be launched, and for no others: each costs a build."""

    @pytest.mark.parametrize(
        ("resources", "architectures"),
        [
            (Resources(), {"arm64", "x86_64"}),
            (Resources(architectures=("arm64",)), {"arm64"}),
            (Resources(instance_types=("m5.*", "c5.*")), {"x86_64"}),
            (Resources(instance_types=("m6g.large",), memory_gb=1000), {"arm64", "x86_64"}),
        ],
        ids=["any", "asked for", "by the types asked for", "none fits: the offers tell it"],
    )
    def test_they_are_of_the_architectures_that_may_be_launched(
        self, moto: Moto, resources: Resources, architectures: set[str]
    ) -> None:
        bare = run(opened(moto, f"bare-{len(str(resources))}").bare_machines(resources))
        assert set(bare.pythons) == architectures


class TestSweep:
    def test_a_region_that_the_connection_named_before_is_swept(
        self, moto: Moto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = aws_settings(moto, "swept-before")
        monkeypatch.setattr(place, "read_connection", lambda _: settings)
        before = AwsBackend(settings).in_region("us-west-2")
        store = before.open_store()
        ours = {STORE_TAG: store.uri, RUN_TAG: RUN.tag, LAUNCH_TAG: "1", SLOTS_TAG: "1"}
        ec2 = moto.client("ec2", "us-west-2")
        started = ec2.run_instances(
            ImageId=AMAZON_LINUX[0].id,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tag_list(ours)}],
        )
        machine = started["Instances"][0]["InstanceId"]

        async def over() -> None:
            await before.queue(RUN, 0).send(["left"])
            await store.create(RUN.outcome, b"{}")

        run(over())
        assert main(["sweep", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["machines"] == []
        assert main(["sweep", "--json", "--region", "us-west-2", "--region", REGION]) == 0
        swept = json.loads(capsys.readouterr().out)
        assert (swept["machines"], swept["queues"]) == ([machine], [RUN.queue(0)])
        assert before.store_options["region"] == REGION, "the store stays where it is"


class TestTemplates:
    def test_they_go_when_the_fleet_is_closed_and_no_others(self, moto: Moto) -> None:
        backend = opened(moto, "templates")
        offer = run(backend.offers(Resources(), Policy(), 4))[0]
        record = LaunchRecord(1, slots=(offer.slots,), token="token-1", request=offer.request or {})
        other = Run(Generation("other-0123456789abcdef", 1), 1)
        mine = backend.fleet(RUN, boot_of(backend))
        theirs = backend.fleet(other, boot_of(backend))
        ec2 = moto.client("ec2", REGION)

        def left() -> set[str]:
            templates = ec2.describe_launch_templates()["LaunchTemplates"]
            return {
                tag["Value"] for each in templates for tag in each["Tags"] if tag["Key"] == "spotbatch:run"
            }

        async def main() -> None:
            await mine.launch(record)
            await theirs.launch(record)
            assert left() == {RUN.tag, other.tag}
            await mine.close()
            assert left() == {other.tag}
            await mine.close()
            assert await backend.forget_ended() == 0
            assert left() == {other.tag}

        asyncio.run(main())
