"""The box's machine images, and the public parameters that name them.

moto's own cannot boot here, and take ten seconds to load: it is given these instead.
Parameters: https://wiki.debian.org/Cloud/AmazonEC2Image and
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-ami.html.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cloud.cloudbox.calls import Answer, Call, Forward

ARCHITECTURE = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""The only one that the box's machines have: the host's, by EC2's name."""


@dataclass(frozen=True)
class Image:
    """``parameter`` is a pattern of the public parameters that hold its id."""

    name: str
    suite: str
    parameter: str
    architecture: str

    @property
    def id(self) -> str:
        return f"ami-{hashlib.sha256(self.name.encode()).hexdigest()[:17]}"


_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-[a-z0-9.]+-"
_DEBIANS_NAMES = {"x86_64": "amd64", "arm64": "arm64"}


def _debian(release: str, suite: str, architecture: str) -> Image:
    name = _DEBIANS_NAMES[architecture]
    parameter = f"/aws/service/debian/release/{release}/latest/{name}"
    return Image(f"debian-{release}-{name}-box", suite, parameter, architecture)


DEBIAN_12 = _debian("12", "bookworm", ARCHITECTURE)
DEBIAN_13 = _debian("13", "trixie", ARCHITECTURE)

BY_PYTHON = {(3, 11): DEBIAN_12, (3, 13): DEBIAN_13}
"""Minor versions that an image of the box brings."""

# All can be looked up for both architectures, as default images are; there are no machine types of the
# other one. There is no root of Amazon Linux here: what boots is Debian 12.
IMAGES = (
    *(_debian("12", "bookworm", architecture) for architecture in _DEBIANS_NAMES),
    *(_debian("13", "trixie", architecture) for architecture in _DEBIANS_NAMES),
    Image("al2023-ami-box-x86_64", "bookworm", f"{_AMAZON_LINUX}x86_64", "x86_64"),
    Image("al2023-ami-box-arm64", "bookworm", f"{_AMAZON_LINUX}arm64", "arm64"),
)


def image_with_this_python() -> Image:
    """The one whose own Python is of this process's minor version, so that none has to be sent; Debian 12
    where there is none."""
    return BY_PYTHON.get(sys.version_info[:2], DEBIAN_12)


def write_for_moto(path: Path) -> None:
    """The images in the form of MOTO_AMIS_PATH, which is read at moto's start."""
    path.write_text(json.dumps([_for_moto(image) for image in IMAGES]))


def suite_of(image_id: str) -> str:
    """The Debian suite whose root an image boots."""
    return next(image.suite for image in IMAGES if image.id == image_id)


def get_parameter(call: Call, forward: Forward) -> Answer:
    found = _parameter(call.parameters["Name"], call.region)
    return call.answer({"Parameter": found}) if found else forward(call)


def get_parameters(call: Call, forward: Forward) -> Answer:
    found = [_parameter(name, call.region) for name in call.parameters["Names"]]
    return call.answer({"Parameters": found, "InvalidParameters": []}) if all(found) else forward(call)


def _parameter(name: str, region: str) -> dict[str, object] | None:
    for image in IMAGES:
        if re.fullmatch(image.parameter, name):
            return {
                "Name": name,
                "Type": "String",
                "DataType": "aws:ec2:image",
                "Value": image.id,
                "Version": 1,
                "ARN": f"arn:aws:ssm:{region}::parameter{name}",
            }
    return None


def _for_moto(image: Image) -> dict[str, object]:
    return {
        "ami_id": image.id,
        "name": image.name,
        "description": image.name,
        "architecture": image.architecture,
        "state": "available",
        "public": True,
        "owner_id": "136693071363",
        "image_location": f"amazon/{image.name}",
        "image_type": "machine",
        "platform": None,
        "root_device_name": "/dev/xvda",
        "root_device_type": "ebs",
        "sriov": "simple",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
    }
