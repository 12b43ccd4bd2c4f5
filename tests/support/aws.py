"""Connections that share nothing: to a session's moto server, and to a box."""

from __future__ import annotations

import urllib.request
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_provider_spotbatch.backends.aws.quotas import quota_class
from airflow_provider_spotbatch.backends.settings import Settings
from tests.cloud.cloudbox.images import DEBIAN_12, IMAGES
from tests.cloud.cloudbox.moto import Moto

if TYPE_CHECKING:
    from tests.cloud.cloudbox.account import Account
    from tests.cloud.cloudbox.box import Cloudbox

REGION = "us-east-2"

AMAZON_LINUX = [image for image in IMAGES if image.name.startswith("al2023")]
"""Images that moto knows, one for each architecture."""


def emptied(moto: Moto) -> None:
    """Forget all that earlier tests left there."""
    request = urllib.request.Request(f"{moto.url}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
    _fleets.clear()


@cache
def session() -> Any:
    """A boto3 session as a connection's hook gives it. The same for all: it takes long to load its models."""
    import boto3

    return boto3.Session("testing", "testing", region_name=REGION)


@cache
def moto_session() -> Any:
    """The same for moto alone, which takes each repeated call for a fleet for another one."""
    import boto3

    made = boto3.Session("testing", "testing", region_name=REGION)
    made.events.register("before-call.ec2.CreateFleet", _known_fleet)
    made.events.register("after-call.ec2.CreateFleet", _remember_fleet)
    return made


_fleets: dict[str, Any] = {}
"""Client token → answer of moto's."""


def _known_fleet(params: dict[str, Any], context: dict[str, Any], **_: Any) -> Any:
    context["token"] = params["body"]["ClientToken"]
    return _fleets.get(context["token"])


def _remember_fleet(http_response: Any, parsed: Any, context: dict[str, Any], **_: Any) -> None:
    if http_response.status_code == 200:
        _fleets[context["token"]] = (http_response, parsed)


def bucket_name(test: str) -> str:
    """A bucket of a test's own. ``test``: the name of its folder, say."""
    return f"spotbatch-{test.replace('_', '-').lower()}"[:63].rstrip("-")


def aws_settings(moto: Moto, name: str, **options: Any) -> Settings:
    """Settings of a connection to an account that has a bucket, images and the default subnets."""
    bucket = bucket_name(name)
    moto.client("s3", REGION).create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    ec2 = moto.client("ec2", REGION)
    subnets = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    moto.client("iam", "us-east-1").create_instance_profile(InstanceProfileName="spotbatch-machines")
    return Settings(
        conn_id=name,
        backend="aws",
        key=b"k" * 32,
        store=f"s3://{bucket}/prefix",
        options={
            "region": REGION,
            "endpoint_url": moto.url,
            "session": moto_session,
            "instance_profile": "spotbatch-machines",
            "subnets": [subnet["SubnetId"] for subnet in subnets],
            "image": [image.id for image in AMAZON_LINUX],
            **options,
        },
    )


def box_settings(box: Cloudbox, account: Account, conn_id: str) -> Settings:
    """Settings of a connection to an account in a box."""
    return Settings(
        conn_id=conn_id,
        backend="aws",
        key=b"k" * 32,
        store=f"s3://{account.bucket}/prefix",
        options={
            "region": box.region,
            "endpoint_url": box.endpoint_url,
            "session": session,
            "instance_profile": account.instance_profile,
            "image": [DEBIAN_12.id],
        },
    )


def one_pool(ec2: Any, image: str) -> dict[str, Any]:
    """What a launch record holds for EC2: what sizing chooses and the backend pins, of one type in one
    zone."""
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"][0]
    return {
        "offer": "spot-3",
        "usd_per_hour": 0.05,
        "pools": [["m5.xlarge", subnet["AvailabilityZone"], 0.04, "x86_64"]],
        "disk_gb": 8.0,
        "least_vcpus": {quota_class("m5.xlarge"): 2},
        "subnets": {subnet["AvailabilityZone"]: [subnet["SubnetId"]]},
        "images": {"x86_64": {"id": image, "root_device": "/dev/xvda"}},
    }
