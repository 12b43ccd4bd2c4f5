"""Instances of the API and the machines that they are here: launched there, booted here, and back."""

from __future__ import annotations

import base64
import json
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from xml.etree import ElementTree

from tests.cloud.cloudbox.calls import Answer, Call, Forward
from tests.cloud.cloudbox.images import ARCHITECTURE, suite_of
from tests.cloud.cloudbox.listings import BROKEN, RECLAIMED, SHUT_DOWN, Listings
from tests.cloud.cloudbox.machine import Facts, Machine
from tests.cloud.cloudbox.moto import ACCOUNT, Moto
from tests.cloud.cloudbox.network import Network
from tests.cloud.cloudbox.plot import Plot
from tests.cloud.cloudbox.pools import Pools
from tests.cloud.cloudbox.roots import root_of

BOOT_SECONDS = 60.0
"""From the launch until a machine's first process runs: a fraction of a second, unless the host is busy."""

_AT_ONCE = 4


class Instances:
    """Boots every instance that is launched, and tells the API of every machine that ends."""

    def __init__(
        self,
        moto: Moto,
        plot: Plot,
        network: Network,
        listings: Listings,
        pools: Pools,
    ) -> None:
        self._moto = moto
        self._plot = plot
        self._network = network
        self._listings = listings
        self._pools = pools
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="boot")
        self._lock = threading.Lock()
        self._closing = False
        self._machines: dict[str, Future[Machine]] = {}

    def ids(self) -> list[str]:
        """Every instance ever launched, oldest first."""
        with self._lock:
            return list(self._machines)

    def machine(self, instance: str) -> Machine:
        """As soon as it boots. Raises what kept it from booting, or KeyError."""
        with self._lock:
            booting = self._machines[instance]
        return booting.result(BOOT_SECONDS)

    def launched(self, region: str, instance: str) -> None:
        self._listings.launched(instance)
        with self._lock:
            if not self._closing:
                self._machines[instance] = self._threads.submit(self._boot, region, instance)

    def reclaim(self, instance: str) -> None:
        """The platform takes the machine back."""
        self._end(instance, RECLAIMED)

    def run_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            for instance in _instance_ids(answer.body):
                self.launched(call.region, instance)
        return answer

    def terminate_instances(self, call: Call, forward: Forward) -> Answer:
        """Also stops: a machine that is seen as ended has ended."""
        asked = call.parameters["InstanceIds"]
        if set(asked) <= set(self.ids()) and not call.parameters.get("DryRun"):
            for instance in asked:
                self._kill(instance)
        return forward(call)

    def reboot_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            for instance in call.parameters["InstanceIds"]:
                self.machine(instance).reboot()
        return answer

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._threads.shutdown(wait=True)
        for instance in self.ids():
            self._kill(instance)

    def _boot(self, region: str, instance: str) -> Machine:
        try:
            facts = self._facts(region, instance)
            return Machine(
                facts,
                self._plot.folder / "machines" / instance,
                root_of(suite_of(facts.image)),
                self._network.connect(),
                lambda: self._credentials(facts),
                self._ended_by_itself,
            )
        except Exception:
            traceback.print_exc()
            self._report_end(region, instance, BROKEN, terminated=True)
            raise

    def _kill(self, instance: str) -> None:
        with self._lock:
            booting = self._machines[instance]
        if booting.exception(BOOT_SECONDS) is None:
            booting.result().kill()
        self._pools.ended(instance)

    def _end(self, instance: str, reason: tuple[str, str]) -> None:
        machine = self.machine(instance)
        self._kill(instance)
        self._report_end(machine.facts.region, instance, reason, terminated=True)

    def _ended_by_itself(self, machine: Machine) -> None:
        facts = machine.facts
        self._pools.ended(facts.instance)
        self._report_end(facts.region, facts.instance, SHUT_DOWN, facts.terminate_on_shutdown)

    def _report_end(self, region: str, instance: str, reason: tuple[str, str], terminated: bool) -> None:
        self._listings.ended(instance, reason)
        if self._closing:
            return
        ec2 = self._moto.client("ec2", region)
        if terminated:
            ec2.terminate_instances(InstanceIds=[instance])
        else:
            ec2.stop_instances(InstanceIds=[instance])

    def _facts(self, region: str, instance: str) -> Facts:
        ec2 = self._moto.client("ec2", region)
        [reservation] = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        [shown] = reservation["Instances"]
        user_data = ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")["UserData"]
        behaviour = ec2.describe_instance_attribute(
            InstanceId=instance, Attribute="instanceInitiatedShutdownBehavior"
        )["InstanceInitiatedShutdownBehavior"]
        return Facts(
            instance=instance,
            region=region,
            image=shown["ImageId"],
            metadata=_metadata(region, shown),
            user_data=base64.b64decode(user_data.get("Value", "")),
            role=self._role(shown),
            hop_limit=shown.get("MetadataOptions", {}).get("HttpPutResponseHopLimit", 1),
            terminate_on_shutdown=behaviour.get("Value") == "terminate",
        )

    def _role(self, shown: dict[str, Any]) -> str | None:
        if "IamInstanceProfile" not in shown:
            return None
        profile = self._moto.client("iam", "us-east-1").get_instance_profile(
            InstanceProfileName=shown["IamInstanceProfile"]["Arn"].rpartition("/")[2]
        )
        roles = profile["InstanceProfile"]["Roles"]
        return str(roles[0]["RoleName"]) if roles else None

    def _credentials(self, facts: Facts) -> dict[str, str]:
        """Of the machine's role, as its metadata service shows them."""
        given = self._moto.client("sts", facts.region).assume_role(
            RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{facts.role}", RoleSessionName=facts.instance
        )["Credentials"]
        return {
            "LastUpdated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "AccessKeyId": given["AccessKeyId"],
            "SecretAccessKey": given["SecretAccessKey"],
            "Token": given["SessionToken"],
            "Expiration": given["Expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


def _metadata(region: str, shown: dict[str, Any]) -> dict[str, str]:
    zone = shown["Placement"]["AvailabilityZone"]
    document = {
        "accountId": ACCOUNT,
        "architecture": ARCHITECTURE,
        "availabilityZone": zone,
        "imageId": shown["ImageId"],
        "instanceId": shown["InstanceId"],
        "instanceType": shown["InstanceType"],
        "region": region,
    }
    tags = {}
    if shown.get("MetadataOptions", {}).get("InstanceMetadataTags") == "enabled":
        tags = {f"meta-data/tags/instance/{tag['Key']}": tag["Value"] for tag in shown.get("Tags", [])}
    return {
        "meta-data/ami-id": shown["ImageId"],
        "meta-data/instance-id": shown["InstanceId"],
        "meta-data/instance-life-cycle": shown.get("InstanceLifecycle", "on-demand"),
        "meta-data/instance-type": shown["InstanceType"],
        "meta-data/placement/availability-zone": zone,
        "meta-data/placement/region": region,
        "meta-data/services/domain": "amazonaws.com",
        "meta-data/services/partition": "aws",
        "dynamic/instance-identity/document": json.dumps(document),
        **tags,
    }


def _instance_ids(body: bytes) -> list[str]:
    found = ElementTree.fromstring(body).iterfind(".//{*}instancesSet/{*}item/{*}instanceId")
    return [str(element.text) for element in found]
