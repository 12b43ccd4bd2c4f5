"""What of a set-up is there in an account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.backends.aws.instances import Instances
from airflow_provider_spotbatch.backends.aws.setup_plan import (
    SETUP_TAG,
    SPOT_ROLES,
    Found,
    FoundBucket,
    FoundGroup,
    FoundPolicy,
    FoundRole,
    Layout,
)
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.launches import TERMINATED

NOT_THERE = frozenset(
    {
        "NoSuchBucket",
        "NoSuchEntity",
        "NoSuchTagSet",
        "NoSuchPublicAccessBlockConfiguration",
        "ServerSideEncryptionConfigurationNotFoundError",
        "NoSuchLifecycleConfiguration",
    }
)


async def look(clients: Clients, layout: Layout) -> Found:
    """What is there of the layout. Raises InvalidInput where somebody else's things have its names."""
    spot, machines = await asyncio.gather(
        clients.call("iam", "ListRoles", PathPrefix=SPOT_ROLES), Instances(clients, layout.store).all()
    )
    bucket, role, profile, group, policy = await asyncio.gather(
        _bucket(clients, layout),
        _role(clients, layout),
        _profile(clients, layout),
        _group(clients, layout),
        _airflow_policy(clients, layout),
    )
    return Found(
        spot_role=bool(spot["Roles"]),
        bucket=bucket,
        role=role,
        profile=profile,
        group=group,
        airflow_policy=policy,
        machines=tuple(each.instance.id for each in machines if each.instance.state != TERMINATED),
    )


async def asked(clients: Clients, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
    """An answer; None where there is no such thing."""
    try:
        return await clients.call(service, operation, answers=NOT_THERE, **parameters)
    except ErrorCode:
        return None


async def _bucket(clients: Clients, layout: Layout) -> FoundBucket | None:
    bucket = layout.store_bucket
    listed = await asked(clients, "s3", "ListObjectsV2", Bucket=bucket, MaxKeys=1)
    if listed is None:
        return None
    tags, access, encryption, lifecycle = await asyncio.gather(
        asked(clients, "s3", "GetBucketTagging", Bucket=bucket),
        asked(clients, "s3", "GetPublicAccessBlock", Bucket=bucket),
        asked(clients, "s3", "GetBucketEncryption", Bucket=bucket),
        asked(clients, "s3", "GetBucketLifecycleConfiguration", Bucket=bucket),
    )
    return FoundBucket(
        # A set-up may have been broken off before it could tag the bucket.
        ours=bucket == layout.own_bucket or SETUP_TAG in _tags((tags or {}).get("TagSet", [])),
        empty=not listed.get("Contents"),
        public_access=(access or {}).get("PublicAccessBlockConfiguration"),
        encryption=(encryption or {}).get("ServerSideEncryptionConfiguration", {}).get("Rules"),
        lifecycle=(lifecycle or {}).get("Rules"),
    )


async def _role(clients: Clients, layout: Layout) -> FoundRole | None:
    answer = await asked(clients, "iam", "GetRole", RoleName=layout.role)
    if answer is None:
        return None
    tags = await clients.call("iam", "ListRoleTags", RoleName=layout.role)
    _check_ours(f"role {layout.role}", layout, tags["Tags"])
    names = await clients.call("iam", "ListRolePolicies", RoleName=layout.role)
    inline = await asyncio.gather(
        *(inline_policy(clients, layout.role, name) for name in names["PolicyNames"])
    )
    return FoundRole(
        trust=_document(answer["Role"]["AssumeRolePolicyDocument"]),
        inline={
            name: document
            for name, document in zip(names["PolicyNames"], inline, strict=True)
            if document is not None
        },
    )


async def inline_policy(clients: Clients, role: str, name: str) -> dict[str, Any] | None:
    """An inline policy of a role; None where it has none of that name."""
    answer = await asked(clients, "iam", "GetRolePolicy", RoleName=role, PolicyName=name)
    return None if answer is None else _document(answer["PolicyDocument"])


async def _profile(clients: Clients, layout: Layout) -> tuple[str, ...] | None:
    answer = await asked(clients, "iam", "GetInstanceProfile", InstanceProfileName=layout.role)
    if answer is None:
        return None
    profile = answer["InstanceProfile"]
    _check_ours(f"instance profile {layout.role}", layout, profile.get("Tags", []))
    return tuple(role["RoleName"] for role in profile["Roles"])


async def _group(clients: Clients, layout: Layout) -> FoundGroup | None:
    groups = await clients.pages(
        "ec2",
        "DescribeSecurityGroups",
        "SecurityGroups",
        Filters=[
            {"Name": "group-name", "Values": [layout.group]},
            {"Name": "vpc-id", "Values": [layout.vpc]},
        ],
    )
    if not groups:
        return None
    _check_ours(f"security group {groups[0]['GroupId']} ({layout.group})", layout, groups[0].get("Tags", []))
    return FoundGroup(groups[0]["GroupId"], tuple(groups[0].get("IpPermissions", [])))


async def _airflow_policy(clients: Clients, layout: Layout) -> FoundPolicy | None:
    arn = layout.airflow_policy_arn
    if await asked(clients, "iam", "GetPolicy", PolicyArn=arn) is None:
        return None
    listed = await clients.call("iam", "ListPolicyVersions", PolicyArn=arn)
    [default] = [each["VersionId"] for each in listed["Versions"] if each["IsDefaultVersion"]]
    others = sorted(
        (each for each in listed["Versions"] if not each["IsDefaultVersion"]),
        key=lambda each: int(str(each["VersionId"]).removeprefix("v")),
    )
    version, entities = await asyncio.gather(
        clients.call("iam", "GetPolicyVersion", PolicyArn=arn, VersionId=default),
        clients.call("iam", "ListEntitiesForPolicy", PolicyArn=arn),
    )
    return FoundPolicy(
        _document(version["PolicyVersion"]["Document"]),
        tuple(each["VersionId"] for each in others),
        tuple(
            (kind.lower(), each[f"{kind}Name"])
            for kind in ("User", "Group", "Role")
            for each in entities.get(f"Policy{kind}s", [])
        ),
    )


def _check_ours(what: str, layout: Layout, tags: Iterable[Mapping[str, str]]) -> None:
    if _tags(tags).get(SETUP_TAG) != layout.name:
        raise InvalidInput(
            f"{what} is there already, and it is not of the set-up {layout.name!r}: choose another --name"
        )


def _tags(listed: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed}


def _document(policy: Any) -> dict[str, Any]:
    """A policy as the SDK gives it: decoded, or as URL-encoded text."""
    found: dict[str, Any] = json.loads(unquote(policy)) if isinstance(policy, str) else policy
    return found
