"""What EC2 is told of a machine before it is asked for: the launch template of a launch record. Pure."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.backends.aws.images import taken_gb
from airflow_provider_spotbatch.backends.aws.instances import (
    LAUNCH_TAG,
    PRICE_TAG,
    RUN_TAG,
    SLOTS_TAG,
    STORE_TAG,
    tag_list,
)
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import LaunchRecord

USER_DATA_BYTES = 16 * 1024
"""Limit of EC2, before base64 (EC2 User Guide, "Run commands when you launch an instance")."""


@dataclass(frozen=True)
class MachineSetup:
    """What the connection says of every machine. ``instance_profile``: a name or an ARN; ``store``: the URI
    whose tag marks the connection's machines; ``tags``: those that every machine must carry."""

    store: str
    instance_profile: str
    security_groups: tuple[str, ...] = ()
    public_address: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


def machine_tags(setup: MachineSetup, run: Run, record: LaunchRecord) -> dict[str, str]:
    """What marks a machine. The connection's own tags cannot take the place of ours."""
    return {
        "Name": f"spotbatch {run.generation.job}",
        **setup.tags,
        STORE_TAG: setup.store,
        RUN_TAG: run.tag,
        LAUNCH_TAG: str(record.number),
        SLOTS_TAG: str(record.slots[0]),
        PRICE_TAG: f"{record.usd_per_hour:.6f}",
    }


def template_name(store: str, run: Run, record: LaunchRecord, architecture: str) -> str:
    """One for each launch record and architecture; at most 128 characters, as EC2 asks."""
    where = hashlib.sha256(store.encode()).hexdigest()[:8]
    generation = run.generation
    return (
        f"spotbatch-{where}-{generation.job}-{generation.number}-{run.number}-{record.number}-"
        f"{architecture.replace('_', '-')}"
    )


def template_data(
    setup: MachineSetup,
    run: Run,
    record: LaunchRecord,
    image: Mapping[str, Any],
    disk_gb: float,
    user_data: str,
) -> dict[str, Any]:
    """The template's data (EC2 API reference, RequestLaunchTemplateData). ``image``: what
    ``ask_images`` tells of it; ``disk_gb``: of the root disk, beside what a large image takes."""
    encoded = user_data.encode()
    if len(encoded) > USER_DATA_BYTES:
        raise InvalidInput(
            f"what machines are told at boot takes {len(encoded)} bytes; EC2 allows {USER_DATA_BYTES}: "
            "shorten 'store_options' of the connection"
        )
    marked = tag_list(machine_tags(setup, run, record))
    profile = "Arn" if setup.instance_profile.startswith("arn:") else "Name"
    return {
        "ImageId": image["id"],
        "IamInstanceProfile": {profile: setup.instance_profile},
        "UserData": base64.b64encode(encoded).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "AssociatePublicIpAddress": setup.public_address,
                "DeleteOnTermination": True,
                **({"Groups": list(setup.security_groups)} if setup.security_groups else {}),
            }
        ],
        "BlockDeviceMappings": [
            _disk(image["root_device"], math.ceil(disk_gb + taken_gb(image))),
            *(_disk(device, its["gb"], its["snapshot"]) for device, its in image.get("disks", {}).items()),
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": marked} for kind in ("instance", "volume", "network-interface")
        ],
    }


def _disk(device: str, gb: int, snapshot: str = "") -> dict[str, Any]:
    """A volume that ends with its machine, whatever the image says of it. ``snapshot``: what it begins as;
    the root's is the image's own."""
    return {
        "DeviceName": device,
        "Ebs": {
            "VolumeSize": gb,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
            **({"SnapshotId": snapshot} if snapshot else {}),
        },
    }
