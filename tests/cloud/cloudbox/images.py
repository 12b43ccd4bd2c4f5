"""The box's machine images, and the public parameters that name them.

moto has Amazon's images of some day, but none that could boot; these are registered in it instead.
Parameters: https://wiki.debian.org/Cloud/AmazonEC2Image and
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-ami.html.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from tests.cloud.cloudbox.calls import Answer, Call, Forward
from tests.cloud.cloudbox.moto import Moto

ARCHITECTURE = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""The only one that the box's machines have: the host's, by EC2's name."""


@dataclass(frozen=True)
class _Kind:
    name: str
    suite: str
    parameter: re.Pattern[str]
    architecture: str = ARCHITECTURE


ROOT_DEVICE = "/dev/xvda"
_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-[a-z0-9.]+-"
_DEBIAN_NAME = {"x86_64": "amd64"}.get(ARCHITECTURE, ARCHITECTURE)
_KINDS = (
    _Kind(
        f"debian-12-{_DEBIAN_NAME}-box",
        "bookworm",
        re.compile(f"/aws/service/debian/release/12/latest/{_DEBIAN_NAME}"),
    ),
    _Kind(
        f"debian-13-{_DEBIAN_NAME}-box",
        "trixie",
        re.compile(f"/aws/service/debian/release/13/latest/{_DEBIAN_NAME}"),
    ),
    # There is no root of Amazon Linux here: these can be looked up as a default image is, for both
    # architectures; what boots is Debian 12.
    _Kind("al2023-ami-box-x86_64", "bookworm", re.compile(f"{_AMAZON_LINUX}x86_64"), "x86_64"),
    _Kind("al2023-ami-box-arm64", "bookworm", re.compile(f"{_AMAZON_LINUX}arm64"), "arm64"),
)


class Images:
    """``of_suite`` gives the image to launch for a Debian suite."""

    def __init__(self, moto: Moto, region: str) -> None:
        ec2 = moto.client("ec2", region)
        self._ids: dict[_Kind, str] = {
            kind: ec2.register_image(
                Name=kind.name,
                Architecture=kind.architecture,
                RootDeviceName=ROOT_DEVICE,
                VirtualizationType="hvm",
            )["ImageId"]
            for kind in _KINDS
        }

    def of_suite(self, suite: str) -> str:
        return next(image for kind, image in self._ids.items() if kind.suite == suite)

    def suite_of(self, image: str) -> str:
        return next((kind.suite for kind, known in self._ids.items() if known == image), "bookworm")

    def get_parameter(self, call: Call, forward: Forward) -> Answer:
        found = self._parameter(call.parameters["Name"], call.region)
        return call.answer({"Parameter": found}) if found else forward(call)

    def get_parameters(self, call: Call, forward: Forward) -> Answer:
        found = [self._parameter(name, call.region) for name in call.parameters["Names"]]
        if not all(found):
            return forward(call)
        return call.answer({"Parameters": found, "InvalidParameters": []})

    def _parameter(self, name: str, region: str) -> dict[str, object] | None:
        for kind, image in self._ids.items():
            if kind.parameter.fullmatch(name):
                return {
                    "Name": name,
                    "Type": "String",
                    "DataType": "aws:ec2:image",
                    "Value": image,
                    "Version": 1,
                    "ARN": f"arn:aws:ssm:{region}::parameter{name}",
                }
        return None
