"""The images that machines boot: by SSM parameter or by id, one for each architecture."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.job.errors import InvalidInput

FACTS_SECONDS = 3600.0

_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{}"
_NVIDIA = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"

DEFAULT = tuple(map(_AMAZON_LINUX.format, ("x86_64", "arm64")))
DEFAULT_GPU = tuple(map(_NVIDIA.format, ("x86_64", "arm64")))
"""Amazon Linux 2023, and the same with NVIDIA's driver (AWS Deep Learning Base AMI)."""

NO_PARAMETER = frozenset({"ParameterNotFound"})


async def ask_images(clients: Clients, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Architecture → ``id``, ``root_device`` and ``name``, of images named by id or by SSM parameter.

    Raises InvalidInput for one that does not exist, and for two of one architecture.
    """
    ids = {await _image_id(clients, name): name for name in names}
    answer = await clients.call("ec2", "DescribeImages", ImageIds=sorted(ids))
    found: dict[str, dict[str, str]] = {}
    for image in answer.get("Images", []):
        architecture = image["Architecture"]
        if architecture in found:
            raise InvalidInput(
                f"'image' of the connection names two of {architecture}: {found[architecture]['name']} and "
                f"{ids[image['ImageId']]}. Name one for each architecture"
            )
        found[architecture] = {
            "id": image["ImageId"],
            "root_device": image["RootDeviceName"],
            "name": ids[image["ImageId"]],
        }
    if not found:
        raise InvalidInput(f"no image is left of {', '.join(names)}: correct 'image' of the connection")
    return found


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
