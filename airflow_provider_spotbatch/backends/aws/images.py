"""The images that machines boot: by SSM parameter or by id, one for each architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.backends.machine_sizing import SYSTEM_DISK_GB
from airflow_provider_spotbatch.job.errors import InvalidInput

FACTS_SECONDS = 3600.0

_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{}"
_DEBIAN = "/aws/service/debian/release/{}/latest/{}"
_UBUNTU = "/aws/service/canonical/ubuntu/server/{}/stable/current/{}/hvm/{}/ami-id"
_NVIDIA = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"

DEFAULT_GPU = tuple(map(_NVIDIA.format, ("x86_64", "arm64")))
"""Amazon Linux 2023 with NVIDIA's driver (AWS Deep Learning Base AMI)."""

_WITH_PYTHON = {
    "3.10": tuple(_UBUNTU.format("22.04", each, "ebs-gp2") for each in ("amd64", "arm64")),
    "3.11": tuple(_DEBIAN.format("12", each) for each in ("amd64", "arm64")),
    "3.12": tuple(_UBUNTU.format("24.04", each, "ebs-gp3") for each in ("amd64", "arm64")),
    "3.13": tuple(_DEBIAN.format("13", each) for each in ("amd64", "arm64")),
}
"""Stock images whose own Python is of that minor version, so that none has to be sent."""

_PYTHONS = (
    (re.compile(r"debian-12-"), "3.11"),
    (re.compile(r"debian-13-"), "3.13"),
    (re.compile(r"ubuntu/images/.*-22\.04-"), "3.10"),
    (re.compile(r"ubuntu/images/.*-24\.04-"), "3.12"),
    (re.compile(r"al2023-ami-"), "3.9"),
)
"""The publishers' names of stock images, and the minor version of their own Python."""

NO_PARAMETER = frozenset({"ParameterNotFound"})


def default_images(python: str) -> tuple[str, ...]:
    """Those with a Python of that minor version; Amazon Linux 2023 where there are none."""
    return _WITH_PYTHON.get(python) or tuple(map(_AMAZON_LINUX.format, ("x86_64", "arm64")))


def _own_python(image_name: str) -> str:
    """Minor version of the Python that a stock image brings; "" for any other image."""
    return next((python for pattern, python in _PYTHONS if pattern.match(image_name)), "")


async def ask_images(clients: Clients, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Architecture → ``id``, ``root_device``, ``root_gb``, ``name``, ``python`` (the minor version of the
    image's own, "" where it is not known) and ``disks`` (device → ``gb`` and ``snapshot`` of those beside the
    root), of images named by id or by SSM parameter.

    Raises InvalidInput for one that does not exist, and for two of one architecture.
    """
    ids = {await _image_id(clients, name): name for name in names}
    answer = await clients.call("ec2", "DescribeImages", ImageIds=sorted(ids))
    found: dict[str, dict[str, Any]] = {}
    for image in answer.get("Images", []):
        architecture = image["Architecture"]
        if architecture in found:
            raise InvalidInput(
                f"'image' of the connection names two of {architecture}: {found[architecture]['name']} and "
                f"{ids[image['ImageId']]}. Name one for each architecture"
            )
        disks = _disks(image)
        root = disks.pop(image["RootDeviceName"], {})
        found[architecture] = {
            "id": image["ImageId"],
            "root_device": image["RootDeviceName"],
            "root_gb": root.get("gb", 0),
            "disks": disks,
            "name": ids[image["ImageId"]],
            "python": _own_python(image.get("Name", "")),
        }
    if not found:
        raise InvalidInput(f"no image is left of {', '.join(names)}: correct 'image' of the connection")
    return found


def taken_gb(image: Mapping[str, Any]) -> float:
    """What an image takes of the root disk beside the room that every machine has for its system. Of one as
    large as a stock one nothing; of a larger one nobody knows what it leaves free, so all of it."""
    root_gb = float(image.get("root_gb", 0))  # not there in facts and records of earlier releases
    return root_gb if root_gb > SYSTEM_DISK_GB else 0.0


def _disks(image: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Device → size and snapshot of each EBS volume that comes with the image."""
    return {
        mapping["DeviceName"]: {
            "gb": int(mapping["Ebs"].get("VolumeSize", 0)),
            "snapshot": mapping["Ebs"].get("SnapshotId", ""),
        }
        for mapping in image.get("BlockDeviceMappings", [])
        if "Ebs" in mapping
    }


async def _image_id(clients: Clients, name: str) -> str:
    if name.startswith("ami-"):
        return name
    try:
        answer = await clients.call("ssm", "GetParameter", answers=NO_PARAMETER, Name=name)
    except ErrorCode:
        raise InvalidInput(
            f"there is no SSM parameter {name} in {clients.region}: correct 'image' of the connection, or "
            "name an image by its id (ami-…)"
        ) from None
    return str(answer["Parameter"]["Value"])
