"""The box itself: what it refines of moto, and that its machines are machines."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from airflow_provider_spotbatch.backends.aws.notices import ACTION, Metadata
from tests.cloud.cloudbox.account import Account, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE, DEBIAN_12, DEBIAN_13, Image

ACCOUNT = "box-tests"

READS_METADATA = """#!/usr/bin/python3
import datetime, hashlib, hmac, json, os, time, urllib.error, urllib.request

def imds(path, method="GET", **headers):
    request = urllib.request.Request("http://169.254.169.254/latest/" + path, method=method,
        headers={"X-aws-ec2-metadata-" + name.replace("_", "-"): value for name, value in headers.items()})
    return urllib.request.urlopen(request, timeout=5).read().decode()

TOKEN = imds("api/token", "PUT", token_ttl_seconds="60")

def metadata(path):
    try:
        return imds("meta-data/" + path, token=TOKEN)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
"""

PUTS_TO_S3 = (
    READS_METADATA
    + """
def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()

def put(endpoint, region, path, body):
    role = metadata("iam/security-credentials/")
    credentials = json.loads(metadata("iam/security-credentials/" + role))
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": endpoint.split("//")[1], "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": now, "x-amz-security-token": credentials["Token"]}
    names = ";".join(sorted(headers))
    canonical = "\\n".join(["PUT", path, "", *[f"{name}:{headers[name]}" for name in sorted(headers)], "",
        names, headers["x-amz-content-sha256"]])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    key = ("AWS4" + credentials["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        key = sign(key, part)
    signed = "\\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={credentials['AccessKeyId']}/{scope}, "
        f"SignedHeaders={names}, Signature={sign(key, signed).hex()}")
    request = urllib.request.Request(endpoint + path, data=body, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=10).read()
"""
)

SLEEPS = "#!/bin/sh\necho up\nexec sleep 600\n"

COUNTS = """#!/bin/sh
while :; do echo "$(cat /tmp/count 2>/dev/null)x" > /tmp/count; sleep 0.02; done
"""


@pytest.fixture(scope="session")
def account(running_box: Cloudbox) -> Account:
    return make_account(running_box, ACCOUNT)


class Launches:
    """Fleets as the product asks for them, of small machines."""

    def __init__(self, box: Cloudbox) -> None:
        self._box = box
        self._ec2 = box.client("ec2")
        self.subnets = {
            subnet["AvailabilityZone"]: subnet["SubnetId"]
            for subnet in self._ec2.describe_subnets()["Subnets"]
        }

    def template(self, user_data: str, **data: Any) -> str:
        name = f"box-{time.monotonic_ns()}"
        self._ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={
                "ImageId": DEBIAN_12.id,
                "IamInstanceProfile": {"Name": ACCOUNT},
                "InstanceInitiatedShutdownBehavior": "terminate",
                "MetadataOptions": {"HttpTokens": "required"},
                "UserData": base64.b64encode(user_data.encode()).decode(),
                **data,
            },
        )
        return name

    def fleet(
        self,
        template: str,
        machines: int = 1,
        types: tuple[str, ...] = ("m5.large",),
        weight: int = 1,
        token: str | None = None,
    ) -> dict[str, Any]:
        overrides = [
            {"InstanceType": each, "SubnetId": subnet, "WeightedCapacity": weight}
            for each in types
            for subnet in self.subnets.values()
        ]
        answer: dict[str, Any] = self._ec2.create_fleet(
            ClientToken=token or f"token-{time.monotonic_ns()}",
            Type="instant",
            TargetCapacitySpecification={
                "TotalTargetCapacity": machines,
                "DefaultTargetCapacityType": "spot",
            },
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                    "Overrides": overrides,
                }
            ],
        )
        return answer

    def one(self, user_data: str, **data: Any) -> str:
        [instance] = instances_of(self.fleet(self.template(user_data, **data)))
        return instance


def instances_of(fleet: dict[str, Any]) -> list[str]:
    return [instance for part in fleet["Instances"] for instance in part["InstanceIds"]]


@pytest.fixture
def launches(account: Account, box: Cloudbox) -> Launches:
    return Launches(box)


@contextlib.contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.response["Error"]["Code"] == code


class TestMachines:
    @pytest.mark.parametrize("image", [DEBIAN_12, DEBIAN_13], ids=lambda image: image.suite)
    def test_user_data_writes_to_the_store_with_its_role_and_powers_off(
        self, box: Cloudbox, launches: Launches, image: Image
    ) -> None:
        key = f"/{ACCOUNT}/from-{image.suite}"
        script = PUTS_TO_S3 + (
            "found = {'id': metadata('instance-id'), 'home': os.environ.get('HOME')}\n"
            f"put('{box.endpoint_url}', '{box.region}', '{key}', json.dumps(found).encode())\n"
            "os.system('poweroff')\n"
        )
        instance = launches.one(script, ImageId=image.id)
        shown = box.wait_until_state(instance, "terminated")
        assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
        written = box.client("s3").get_object(Bucket=ACCOUNT, Key=f"from-{image.suite}")["Body"].read()
        assert json.loads(written) == {"id": instance, "home": None}

    def test_a_boot_takes_about_a_second(self, box: Cloudbox, launches: Launches) -> None:
        """Five are allowed here: the host may be busy with other tests."""
        template = launches.template(SLEEPS)
        start = time.monotonic()
        [instance] = instances_of(launches.fleet(template))
        box.wait_until(lambda: "up" in box.console(instance))
        assert time.monotonic() - start < 5

    def test_there_is_no_way_out(self, box: Cloudbox, launches: Launches) -> None:
        one, other = (launches.one(SLEEPS) for _ in range(2))
        box.wait_until(lambda: "up" in box.console(other))
        address = box.run(other, ["hostname"]).stdout.strip().removeprefix("ip-").replace("-", ".")
        for target in ("192.0.2.1", address):
            tried = box.run(one, ["curl", "-sS", "--max-time", "5", f"http://{target}:80/"])
            assert "No route to host" in tried.stderr or "Couldn't connect" in tried.stderr
        assert box.run(one, ["curl", "-sS", "--max-time", "5", box.endpoint_url]).returncode == 0

    @pytest.mark.parametrize("command", ["shutdown -h now", "poweroff", "poweroff -f", "halt -f -p"])
    def test_every_way_to_power_off_ends_it(self, box: Cloudbox, launches: Launches, command: str) -> None:
        instance = launches.one(f"#!/bin/sh\n{command}\n")
        box.wait_until_state(instance, "terminated")
        assert instance not in box.machines()

    def test_powering_off_stops_a_machine_that_is_not_to_terminate(
        self, box: Cloudbox, launches: Launches
    ) -> None:
        instance = launches.one("#!/bin/sh\npoweroff\n", InstanceInitiatedShutdownBehavior="stop")
        box.wait_until_state(instance, "stopped")

    def test_what_user_data_leaves_running_goes_on(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one("#!/bin/sh\n(sleep 0.5; echo later) &\necho done\n")
        box.wait_until(lambda: "later" in box.console(instance))
        assert instance in box.machines()

    @pytest.mark.parametrize("by_itself", [True, False])
    def test_a_second_boot_runs_only_what_is_for_every_boot(
        self, box: Cloudbox, launches: Launches, by_itself: bool
    ) -> None:
        script = "/var/lib/cloud/scripts/per-boot/again"
        instance = launches.one(
            f"#!/bin/sh\necho first\nprintf '#!/bin/sh\\necho second\\npoweroff\\n' >{script}\n"
            f"chmod +x {script}\necho ready\n" + ("reboot\n" if by_itself else "")
        )
        if not by_itself:
            box.wait_until(lambda: "ready" in box.console(instance))
            box.client("ec2").reboot_instances(InstanceIds=[instance])
        box.wait_until_state(instance, "terminated")
        assert box.console(instance).count("first") == 1
        assert box.console(instance).count("second") == 1

    def test_a_terminated_machine_has_ended(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one(SLEEPS)
        box.wait_until(lambda: "up" in box.console(instance))
        box.client("ec2").terminate_instances(InstanceIds=[instance])
        assert box.wait_until_state(instance, "terminated")["StateReason"]["Code"].startswith("Client.User")
        assert instance not in box.machines()

    def test_terminating_twice_is_harmless(self, box: Cloudbox, launches: Launches) -> None:
        template = launches.template(
            SLEEPS, NetworkInterfaces=[{"DeviceIndex": 0, "AssociatePublicIpAddress": False}]
        )
        [instance] = instances_of(launches.fleet(template))
        for _ in range(2):
            box.client("ec2").terminate_instances(InstanceIds=[instance])
        box.wait_until_state(instance, "terminated")

    def test_machines_of_plain_requests_boot_too(self, box: Cloudbox, account: Account) -> None:
        run = box.client("ec2").run_instances(
            ImageId=DEBIAN_12.id,
            InstanceType="m5.large",
            MinCount=2,
            MaxCount=2,
            UserData=SLEEPS,
        )
        for each in run["Instances"]:
            box.wait_until(lambda instance=each["InstanceId"]: "up" in box.console(instance))  # type: ignore[misc]


class TestMetadata:
    def test_it_answers_by_token_only(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one(SLEEPS)
        url = "http://169.254.169.254/latest/"

        def ask(path: str, *options: str) -> list[str]:
            command = ["curl", "-s", "-w", "\n%{http_code}", *options, url + path]
            return box.run(instance, command).stdout.splitlines()

        lasting = "X-aws-ec2-metadata-token-ttl-seconds"
        assert ask("meta-data/instance-id") == ["", "401"]
        assert ask("api/token", "-X", "PUT")[-1] == "400"
        assert ask("api/token", "-X", "PUT", "-H", f"{lasting}: 21601")[-1] == "400"
        forwarded = ("-H", f"{lasting}: 60", "-H", "X-Forwarded-For: 10.0.0.1")
        assert ask("api/token", "-X", "PUT", *forwarded)[-1] == "403"
        token, status = ask("api/token", "-X", "PUT", "-H", f"{lasting}: 60")
        assert status == "200"
        known = ("-H", f"X-aws-ec2-metadata-token: {token}")
        assert ask("meta-data/instance-id", *known) == [instance, "200"]
        assert ask("meta-data/spot/instance-action", *known)[-1] == "404"
        document = json.loads(ask("dynamic/instance-identity/document", *known)[0])
        assert (document["instanceId"], document["region"]) == (instance, box.region)

    def test_tags_are_there_if_asked_for(self, box: Cloudbox, launches: Launches) -> None:
        script = READS_METADATA + "print('tag', metadata('tags/instance/spotbatch:run'), flush=True)\n"
        tags = {
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "spotbatch:run", "Value": "r1"}]}
            ]
        }
        options = {"MetadataOptions": {"HttpTokens": "required", "InstanceMetadataTags": "enabled"}}
        shown = launches.one(script, **tags, **options)
        hidden = launches.one(script, **tags)
        box.wait_until(lambda: "tag r1" in box.console(shown))
        box.wait_until(lambda: "tag HTTP 404" in box.console(hidden))

    def test_a_machine_without_a_role_has_no_credentials(self, box: Cloudbox, account: Account) -> None:
        script = READS_METADATA + "print('role', metadata('iam/security-credentials/'), flush=True)\n"
        run = box.client("ec2").run_instances(ImageId=DEBIAN_12.id, MinCount=1, MaxCount=1, UserData=script)
        instance = run["Instances"][0]["InstanceId"]
        box.wait_until(lambda: "role HTTP 404" in box.console(instance))


class TestFaults:
    def test_a_notice_comes_before_the_end(self, box: Cloudbox, launches: Launches) -> None:
        script = READS_METADATA + (
            "print('up', flush=True)\n"
            "while metadata('spot/instance-action') == 'HTTP 404': time.sleep(0.05)\n"
            "print(metadata('spot/instance-action'), flush=True)\ntime.sleep(600)\n"
        )
        instance = launches.one(script)
        box.wait_until(lambda: "up" in box.console(instance))
        box.notice(instance, seconds=1.5)
        box.wait_until(lambda: '"action": "terminate"' in box.console(instance))
        shown = box.wait_until_state(instance, "terminated")
        assert shown["StateReason"]["Code"] == "Server.SpotInstanceTermination"

    def test_a_notice_changes_nothing_of_a_machine_that_was_terminated_before(
        self, box: Cloudbox, launches: Launches
    ) -> None:
        instance = launches.one(SLEEPS)
        box.client("ec2").terminate_instances(InstanceIds=[instance])
        box.vanish(instance)
        shown = box.wait_until_state(instance, "terminated")
        assert shown["StateReason"]["Code"] == "Client.UserInitiatedShutdown"

    def test_a_machine_that_cannot_boot_is_terminated_with_the_reason(
        self, box: Cloudbox, launches: Launches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "tests.cloud.cloudbox.instances.root_of", lambda suite: Path("/nonexistent") / suite
        )
        instance = launches.one(SLEEPS)
        shown = box.wait_until_state(instance, "terminated")
        assert "mount: " in box.console(instance)
        assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
        assert instance not in box.machines()

    def test_advice_ends_nothing(self, box: Cloudbox, launches: Launches) -> None:
        script = READS_METADATA + (
            "while 'noticeTime' not in metadata('events/recommendations/rebalance'): time.sleep(0.05)\n"
            "print('advised', flush=True)\n"
        )
        instance = launches.one(script)
        box.recommend_rebalance(instance)
        box.wait_until(lambda: "advised" in box.console(instance))
        assert instance in box.machines()

    def test_a_machine_vanishes(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one(SLEEPS)
        box.vanish(instance)
        shown = box.wait_until_state(instance, "terminated")
        assert shown["StateReason"]["Code"] == "Server.SpotInstanceTermination"
        assert instance not in box.machines()

    def test_a_frozen_machine_does_nothing_until_it_is_thawed(
        self, box: Cloudbox, launches: Launches
    ) -> None:
        instance = launches.one(COUNTS)

        def counted() -> int:
            return len(box.run(instance, ["cat", "/tmp/count"]).stdout)

        box.wait_until(lambda: counted() > 1)
        box.freeze(instance)
        frozen = counted()
        states = box.run(instance, ["ps", "-eo", "state,comm"]).stdout.split("\n")[1:]
        assert {line[0] for line in states if line and not line.endswith(" ps")} == {"T"}
        assert counted() == frozen
        box.thaw(instance)
        box.wait_until(lambda: counted() > frozen)

    def test_a_frozen_machine_can_be_terminated(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one(COUNTS)
        box.freeze(instance)
        box.client("ec2").terminate_instances(InstanceIds=[instance])
        assert instance not in box.machines()

    def test_a_cut_machine_reaches_only_its_metadata(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one(SLEEPS)
        box.wait_until(lambda: "up" in box.console(instance))

        def reaches(url: str) -> int:
            return box.run(instance, ["curl", "-s", "--max-time", "1", url]).returncode

        box.cut(instance)
        assert reaches(box.endpoint_url) == 28  # curl's code of a time-out: silence
        assert reaches("http://169.254.169.254/latest/meta-data/") == 0
        box.restore(instance)
        assert reaches(box.endpoint_url) == 0


class TestFleets:
    def test_a_token_twice_is_one_fleet(self, box: Cloudbox, launches: Launches) -> None:
        template = launches.template(SLEEPS)
        first, again = (launches.fleet(template, machines=2, token="same") for _ in range(2))
        assert len(instances_of(first)) == 2
        assert (again["FleetId"], again["Instances"]) == (first["FleetId"], first["Instances"])
        assert sorted(box.machines()) == sorted(instances_of(first))

    def test_a_token_with_other_parameters_is_refused(self, box: Cloudbox, launches: Launches) -> None:
        template = launches.template(SLEEPS)
        launches.fleet(template, token="other")
        with refused("IdempotentParameterMismatch"):
            launches.fleet(template, machines=2, token="other")

    def test_machines_come_from_the_pools_that_have_room(self, box: Cloudbox, launches: Launches) -> None:
        [first, *_] = launches.subnets
        box.set_room(0)
        box.set_room(2, "c5.large", first)
        fleet = launches.fleet(launches.template(SLEEPS), machines=3, types=("m5.large", "c5.large"))
        [part] = fleet["Instances"]
        assert (part["InstanceType"], part["Lifecycle"], len(part["InstanceIds"])) == ("c5.large", "spot", 2)
        assert part["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] == first
        assert len(fleet["Errors"]) == 6
        assert {error["ErrorCode"] for error in fleet["Errors"]} == {"InsufficientInstanceCapacity"}

    def test_two_subnets_of_one_zone_are_refused(self, box: Cloudbox, launches: Launches) -> None:
        ec2 = box.client("ec2")
        zone = f"{box.region}a"
        [first] = ec2.describe_subnets(SubnetIds=[launches.subnets[zone]])["Subnets"]
        second = ec2.create_subnet(VpcId=first["VpcId"], CidrBlock="172.31.200.0/24", AvailabilityZone=zone)
        launches.subnets["second"] = second["Subnet"]["SubnetId"]
        try:
            with refused("InvalidFleetConfig"):
                launches.fleet(launches.template(SLEEPS), types=("m5.large", "c5.large"))
        finally:
            ec2.delete_subnet(SubnetId=launches.subnets.pop("second"))
        assert box.machines() == []

    def test_room_comes_back_with_a_machine_that_ended(self, box: Cloudbox, launches: Launches) -> None:
        box.set_room(0)
        box.set_room(1, zone=f"{box.region}a")
        template = launches.template(SLEEPS)
        [instance] = instances_of(launches.fleet(template))
        assert instances_of(launches.fleet(template)) == []
        box.vanish(instance)
        assert len(instances_of(launches.fleet(template))) == 1

    def test_weights_fill_the_target_or_more(self, box: Cloudbox, launches: Launches) -> None:
        fleet = launches.fleet(launches.template(SLEEPS), machines=5, weight=2)
        assert len(instances_of(fleet)) == 3

    def test_an_image_that_is_not_there_is_an_error_of_each_pool(
        self, box: Cloudbox, launches: Launches
    ) -> None:
        fleet = launches.fleet(launches.template(SLEEPS, ImageId="ami-0123456789abcdef0"))
        assert {error["ErrorCode"] for error in fleet["Errors"]} == {"InvalidAMIID.NotFound"}

    def test_a_dry_run_launches_nothing(self, box: Cloudbox, launches: Launches) -> None:
        with refused("DryRunOperation"):
            box.client("ec2").create_fleet(
                DryRun=True,
                TargetCapacitySpecification={"TotalTargetCapacity": 1},
                LaunchTemplateConfigs=[],
            )
        assert box.machines() == []

    def test_fresh_machines_may_be_missing_from_listings(self, box: Cloudbox, launches: Launches) -> None:
        box.set_listing_delay(1.0)
        instance = launches.one(SLEEPS)
        filters = [{"Name": "instance-id", "Values": [instance]}]
        assert box.client("ec2").describe_instances(Filters=filters)["Reservations"] == []
        with refused("InvalidInstanceID.NotFound"):
            box.client("ec2").describe_instances(InstanceIds=[instance])
        box.wait_until_state(instance, "running")


POOL_CODES = [
    "InsufficientInstanceCapacity",
    "UnfulfillableCapacity",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "InsufficientFreeAddressesInSubnet",
    "InvalidAMIID.NotFound",
    "Unsupported",
    "UnauthorizedOperation",
]


class TestRefusals:
    @pytest.mark.parametrize("code", POOL_CODES)
    def test_pools_refuse_with_any_code(self, box: Cloudbox, launches: Launches, code: str) -> None:
        box.refuse_machines(code, "m5.*", times=3)
        template = launches.template(SLEEPS)
        fleet = launches.fleet(template)
        assert {error["ErrorCode"] for error in fleet["Errors"]} == {code}
        assert all(error["ErrorMessage"] for error in fleet["Errors"])
        assert instances_of(fleet) == []
        assert len(instances_of(launches.fleet(template))) == 1

    @pytest.mark.parametrize(
        ("service", "operation", "code", "parameters"),
        [
            ("ec2", "DescribeSubnets", "UnauthorizedOperation", {}),
            ("ec2", "DescribeInstances", "RequestLimitExceeded", {}),
            ("sqs", "ListQueues", "AccessDenied", {}),
            ("s3", "ListObjectsV2", "SlowDown", {"Bucket": ACCOUNT}),
            ("s3", "PutObject", "AccessDenied", {"Bucket": ACCOUNT, "Key": "refused/one", "Body": b"1"}),
            ("iam", "ListRoles", "AccessDenied", {}),
            ("ssm", "GetParameter", "AccessDeniedException", {"Name": "any"}),
        ],
    )
    def test_any_operation_is_refused_at_will(
        self,
        box: Cloudbox,
        account: Account,
        service: str,
        operation: str,
        code: str,
        parameters: dict[str, Any],
    ) -> None:
        client = box.client(service)
        method = getattr(client, _snake(operation))
        box.refuse(operation, code)
        with refused(code):
            method(**parameters)
        box.relent()
        if service != "ssm":
            method(**parameters)

    def test_a_refusal_may_end_by_itself(self, box: Cloudbox) -> None:
        box.refuse("Describe*", "UnauthorizedOperation", times=1)
        with refused("UnauthorizedOperation"):
            box.client("ec2").describe_subnets()
        box.client("ec2").describe_subnets()
        box.refuse("DescribeSubnets", "UnauthorizedOperation", seconds=0.0)
        box.client("ec2").describe_subnets()


class TestPolicies:
    def test_a_machine_may_do_what_its_role_may(
        self, box: Cloudbox, launches: Launches, account: Account
    ) -> None:
        allowed = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{ACCOUNT}/out/*"}
        box.client("iam").put_role_policy(
            RoleName=account.instance_profile,
            PolicyName="out",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}),
        )
        script = PUTS_TO_S3 + (
            "for folder in ('out', 'jobs'):\n"
            "    try:\n"
            f"        put('{box.endpoint_url}', '{box.region}', f'/{ACCOUNT}/{{folder}}/1', b'1')\n"
            "        print(folder, 'written', flush=True)\n"
            "    except urllib.error.HTTPError as error:\n"
            "        print(folder, error.code, flush=True)\n"
        )
        box.enforce_policies()
        instance = launches.one(script)
        box.wait_until(lambda: "jobs" in box.console(instance))
        assert "out written\njobs 403\n" in box.console(instance)

    def test_queues_refuse_in_words_that_clients_know(self, box: Cloudbox) -> None:
        url = box.client("sqs").create_queue(QueueName="policies")["QueueUrl"]
        sqs = client_of_user(box, "nobody", "sqs")
        box.enforce_policies()
        with refused("AccessDenied"):
            sqs.send_message(QueueUrl=url, MessageBody="hello")

    def test_an_instance_is_ended_by_whom_its_tags_allow_it(self, box: Cloudbox, launches: Launches) -> None:
        ours, others = launches.one("#!/bin/sh\n"), launches.one("#!/bin/sh\n")
        for instance, team in ((ours, "ours"), (others, "others")):
            box.client("ec2").create_tags(Resources=[instance], Tags=[{"Key": "team", "Value": team}])
        ours_alone = {"StringEquals": {"aws:ResourceTag/team": "ours"}}
        ec2 = client_of_user(box, "ender", "ec2", "ec2:TerminateInstances", "arn:aws:ec2:*", ours_alone)
        box.enforce_policies()
        with refused("UnauthorizedOperation"):
            ec2.terminate_instances(InstanceIds=[ours, others])
        ec2.terminate_instances(InstanceIds=[ours])

    def test_a_listing_is_allowed_by_its_prefix(self, box: Cloudbox, account: Account) -> None:
        below = {"StringLikeIfExists": {"s3:prefix": "team/*"}}
        s3 = client_of_user(box, "lister", "s3", "s3:ListBucket", f"arn:aws:s3:::{account.bucket}", below)
        box.enforce_policies()
        s3.list_objects_v2(Bucket=account.bucket, Prefix="team/")
        with refused("AccessDenied"):
            s3.list_objects_v2(Bucket=account.bucket, Prefix="other/")

    def test_a_key_of_nobody_is_refused(self, box: Cloudbox) -> None:
        import boto3

        box.enforce_policies()
        session = boto3.session.Session("AKIANOBODYHASTHIS000", "x", region_name=box.region)
        with refused("AuthFailure"):
            session.client("ec2", endpoint_url=box.endpoint_url).describe_instances()


def client_of_user(box: Cloudbox, user: str, service: str, *allowed: Any) -> Any:
    """A client with the key of a new user, who may do one thing at most: action, resource, condition."""
    import boto3

    iam = box.client("iam")
    iam.create_user(UserName=user)
    if allowed:
        statement = {
            "Effect": "Allow",
            **dict(zip(("Action", "Resource", "Condition"), allowed, strict=True)),
        }
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=user, PolicyName="one-thing", PolicyDocument=document)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    session = boto3.session.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=box.region)
    return session.client(service, endpoint_url=box.endpoint_url)


class TestQueueNames:
    def test_a_deleted_name_is_refused_for_a_minute(
        self, box: Cloudbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.monotonic()
        monkeypatch.setattr(box.queue_names, "clock", lambda: now)
        sqs = box.client("sqs")
        sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName="short-lived")["QueueUrl"])
        for _ in range(2):
            with refused("AWS.SimpleQueueService.QueueDeletedRecently"):
                sqs.create_queue(QueueName="short-lived")
        now += 61
        sqs.create_queue(QueueName="short-lived")

    def test_other_names_are_not(self, box: Cloudbox) -> None:
        sqs = box.client("sqs")
        url = sqs.create_queue(QueueName="kept")["QueueUrl"]
        assert url.startswith(box.endpoint_url)
        sqs.send_message(QueueUrl=url, MessageBody="hello")
        [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        assert message["Body"] == "hello"


class TestFacts:
    def test_spot_prices_differ_by_type_and_zone(self, box: Cloudbox) -> None:
        history = box.client("ec2").describe_spot_price_history(InstanceTypes=["m5.large", "c5.4xlarge"])
        prices = {
            (entry["InstanceType"], entry["AvailabilityZone"]): float(entry["SpotPrice"])
            for entry in history["SpotPriceHistory"]
        }
        assert len(prices) == len(set(prices.values())) == 6
        assert all(0.01 < usd < 1 for usd in prices.values())

    def test_the_price_list_has_what_is_sold_on_demand(self, box: Cloudbox) -> None:
        filters = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "m5.large"}]
        [text] = box.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        product = json.loads(text)
        assert product["product"]["attributes"]["instanceType"] == "m5.large"
        [term] = product["terms"]["OnDemand"].values()
        [rate] = term["priceDimensions"].values()
        assert 0.05 < float(rate["pricePerUnit"]["USD"]) < 0.2

    def test_machine_types_are_those_that_the_host_can_be(self, box: Cloudbox) -> None:
        types = box.client("ec2").describe_instance_types()["InstanceTypes"]
        assert types
        assert all(ARCHITECTURE in each["ProcessorInfo"]["SupportedArchitectures"] for each in types)

    @pytest.mark.parametrize("architecture", ["x86_64", "arm64"])
    def test_public_parameters_name_images_that_are_there(self, box: Cloudbox, architecture: str) -> None:
        name = f"/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{architecture}"
        image = box.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
        [shown] = box.client("ec2").describe_images(ImageIds=[image])["Images"]
        assert shown["Architecture"] == architecture

    def test_a_quota_is_what_the_box_was_told(self, box: Cloudbox) -> None:
        box.set_quota("L-34B43A08", 4)
        quota = box.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-34B43A08")
        assert quota["Quota"]["Value"] == 4


A_BOX_WITH_A_MACHINE = """
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import DEBIAN_12

box = Cloudbox()
run = box.client("ec2").run_instances(
    ImageId=DEBIAN_12.id, MinCount=1, MaxCount=1, UserData="#!/bin/sh\\necho up\\nexec sleep 600"
)
instance = run["Instances"][0]["InstanceId"]
box.wait_until(lambda: "up" in box.console(instance))
print(box.plot.folder, box.run(instance, ["readlink", "/proc/self/ns/pid"]).stdout, flush=True)
input()
"""


class TestTheBoxItself:
    def test_a_box_that_is_killed_takes_its_machines_along_and_the_next_clears_up(
        self, box: Cloudbox
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", A_BOX_WITH_A_MACHINE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdout is not None
            folder, space = process.stdout.readline().split()
            process.kill()
        box.wait_until(lambda: space not in _pid_namespaces())
        left = Path(folder, "left-behind")
        left.touch()
        with Cloudbox():
            assert not left.exists()

    def test_nothing_is_left_of_a_box_that_was_closed(self, running_box: Cloudbox) -> None:
        with Cloudbox() as other:
            run = other.client("ec2").run_instances(
                ImageId=DEBIAN_12.id, MinCount=1, MaxCount=1, UserData=SLEEPS
            )
            instance = run["Instances"][0]["InstanceId"]
            other.wait_until(lambda: "up" in other.console(instance))
            space = other.run(instance, ["readlink", "/proc/self/ns/pid"]).stdout.strip()
            kept = other.plot.folder / "moto.log"
            assert kept.exists()
        assert not kept.exists()
        assert space not in _pid_namespaces()

    def test_the_host_reaches_the_cloud_as_machines_do(self, box: Cloudbox) -> None:
        with urllib.request.urlopen(f"{box.endpoint_url}/moto-api/data.json", timeout=10) as answer:
            assert answer.status == 200

    def test_who_asks_before_it_sends_a_body_is_answered_at_once(self, box: Cloudbox) -> None:
        """As the SDK does with objects; it would send its body after a second of silence."""
        host, port = box.endpoint_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"PUT /bucket/name HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")
            client.sendall(b"body")

    def test_the_host_hears_what_a_machine_hears(self, box: Cloudbox, launches: Launches) -> None:
        instance = launches.one("#!/bin/bash\n")
        service = Metadata(box.metadata_url(instance))
        assert service.read("/latest/meta-data/instance-id") == instance
        assert service.read(ACTION) is None
        box.notice(instance, seconds=600)
        assert "terminate" in str(service.read(ACTION))


def _pid_namespaces() -> set[str]:
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/pid"))
    return found


def _snake(operation: str) -> str:
    from botocore import xform_name

    return str(xform_name(operation))
