"""What EC2 knows of an instance, as moto has it, for the machine that it is here."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import Any

from tests.cloud.cloudbox.images import ARCHITECTURE
from tests.cloud.cloudbox.moto import ACCOUNT, Moto


@dataclass(frozen=True)
class Facts:
    """``metadata`` is by path below latest/."""

    instance: str
    region: str
    image: str
    metadata: dict[str, str]
    user_data: bytes
    role: str | None
    hop_limit: int
    terminate_on_shutdown: bool


def facts_of(moto: Moto, region: str, instance: str) -> Facts:
    ec2 = moto.client("ec2", region)
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
        role=_role(moto, shown),
        hop_limit=shown.get("MetadataOptions", {}).get("HttpPutResponseHopLimit", 1),
        terminate_on_shutdown=behaviour.get("Value") == "terminate",
    )


def _role(moto: Moto, shown: dict[str, Any]) -> str | None:
    if "IamInstanceProfile" not in shown:
        return None
    profile = moto.client("iam", "us-east-1").get_instance_profile(
        InstanceProfileName=shown["IamInstanceProfile"]["Arn"].rpartition("/")[2]
    )
    roles = profile["InstanceProfile"]["Roles"]
    return str(roles[0]["RoleName"]) if roles else None


def credentials_of(moto: Moto, facts: Facts) -> dict[str, str]:
    """Of the machine's role, as its metadata service shows them."""
    assert facts.role is not None
    given = moto.assume_role(facts.role)
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
