"""What an account needs before jobs run in it, made in the box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.cloud.cloudbox.images import image_with_this_python

if TYPE_CHECKING:
    from tests.cloud.cloudbox.box import Cloudbox

KEY = "cloudbox-cloudbox-cloudbox-cloudbox-cloudbox"
"""The connection's key: it protects nothing here."""


@dataclass(frozen=True)
class Account:
    """A bucket, and an instance profile whose role has its own name and no policy."""

    bucket: str
    instance_profile: str


def make_account(box: Cloudbox, name: str = "cloudbox") -> Account:
    box.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": box.region})
    iam = box.client("iam")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return Account(bucket=name, instance_profile=name)


def connections(box: Cloudbox, account: Account) -> dict[str, dict[str, Any]]:
    """Airflow connections by id, in the form that AIRFLOW_CONN_<ID> takes: Amazon's and the jobs'."""
    return {
        "aws_cloudbox": {
            "conn_type": "aws",
            "login": box.environment()["AWS_ACCESS_KEY_ID"],
            "password": box.environment()["AWS_SECRET_ACCESS_KEY"],
            "extra": {"region_name": box.region, "endpoint_url": box.endpoint_url},
        },
        "spotbatch_default": {
            "conn_type": "spotbatch",
            "password": KEY,
            "extra": {
                "backend": "aws",
                "aws_conn_id": "aws_cloudbox",
                "region": box.region,
                "store": f"s3://{account.bucket}/spotbatch",
                "instance_profile": account.instance_profile,
                "image": image_with_this_python().id,
            },
        },
    }
