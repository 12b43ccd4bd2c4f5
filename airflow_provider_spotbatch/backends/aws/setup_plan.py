"""What ``spotbatch setup aws`` makes of an account, as data: what is wanted, what was found, and the calls
that lead from the one to the other. Pure.

A plan is made of what was found, so a set-up that was broken off, or that somebody has changed since, is
completed by the next one. What set-up did not make itself it neither changes nor removes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.backends.aws.policies import (
    Policy,
    Scope,
    airflow_policy,
    machine_policy,
    trust_policy,
)
from airflow_provider_spotbatch.job.errors import InvalidInput

DEFAULT_NAME = "spotbatch"

SETUP_TAG = "spotbatch:setup"
"""Marks what a set-up made; its value is the set-up's name."""

MACHINE_POLICY = "jobs"
DATA_POLICY = "data"
"""Names of the machines' inline policies: what jobs need, and what ``spotbatch grant`` adds."""

EXPIRE_DAYS = 365
"""Objects of the store are removed after a year: a net below ``spotbatch clean``, and longer by far than a
job may take (MAX_RUNTIME_DAYS) and than Airflow's own records of it are usually kept."""

MAX_RUNTIME_DAYS = 30
"""A job's ``max_runtime`` on AWS at most, so that nothing of a running job can expire."""

UPLOAD_DAYS = 7
"""Parts of uploads that were never completed are removed after so many days."""

SPOT_SERVICE = "spot.amazonaws.com"
SPOT_ROLES = f"/aws-service-role/{SPOT_SERVICE}/"
"""The role with which EC2 itself starts spot machines: one for each account, made by whoever comes first
(EC2 User Guide, "Service-linked role for Spot Instance requests")."""

POLICY_VERSIONS = 5
"""Versions of a managed policy that IAM keeps at most."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Without dots: they break TLS to the bucket (S3 User Guide, "Bucket naming rules")."""
_KEY = re.compile(r"arn:[a-z\-]+:kms:[a-z0-9\-]+:\d{12}:key/[a-zA-Z0-9\-]+")
_PARAMETER = re.compile(r"[a-zA-Z0-9_.\-/]+")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_.-]+/?)*")


@dataclass(frozen=True)
class Layout:
    """What is wanted. ``bucket``: where jobs and results go, ``prefix`` "" for all of it; ``subnets``: the
    machines', empty for the default ones of the region; ``vpc``: the one they are in; ``bucket_key`` and
    ``image_parameters``: as in :class:`Scope`."""

    account: str
    region: str
    vpc: str
    name: str = DEFAULT_NAME
    bucket: str = ""
    prefix: str = ""
    subnets: tuple[str, ...] = ()
    partition: str = "aws"
    bucket_key: str = ""
    image_parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"--name {self.name!r}: at most 24 small letters, digits and hyphens, a letter first"
            )
        if self.bucket and not _BUCKET.fullmatch(self.bucket):
            raise InvalidInput(f"--bucket {self.bucket!r}: 3 to 63 small letters, digits and hyphens")
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidInput(
                f"--bucket: the folder {self.prefix!r} may hold letters, digits, '_', '.', '-'"
            )
        if self.bucket_key and not _KEY.fullmatch(self.bucket_key):
            raise InvalidInput(f"--kms-key {self.bucket_key!r}: the ARN of a key (arn:aws:kms:…:key/…)")
        for name in self.image_parameters:
            if not _PARAMETER.fullmatch(name):
                raise InvalidInput(f"--image-parameter {name!r}: the name of a parameter, without wildcards")

    @property
    def own_bucket(self) -> str:
        """The name of the bucket where the user names none: nobody else can have taken it."""
        return f"{self.name}-{self.account}-{self.region}"

    @property
    def store_bucket(self) -> str:
        return self.bucket or self.own_bucket

    @property
    def store(self) -> str:
        return f"s3://{self.store_bucket}/{self.prefix.strip('/')}".rstrip("/")

    @property
    def role(self) -> str:
        """Of the machines; their instance profile has the same name."""
        return machine_role(self.name, self.region)

    @property
    def airflow_policy_arn(self) -> str:
        return f"arn:{self.partition}:iam::{self.account}:policy/{self.name}-airflow-{self.region}"

    @property
    def group(self) -> str:
        """Name of the machines' security group."""
        return f"{self.name}-machines"

    @property
    def tags(self) -> list[dict[str, str]]:
        return [{"Key": SETUP_TAG, "Value": self.name}]

    @property
    def scope(self) -> Scope:
        return Scope(
            account=self.account,
            region=self.region,
            store=self.store,
            machine_role=self.role,
            vpc=self.vpc,
            partition=self.partition,
            bucket_key=self.bucket_key,
            image_parameters=self.image_parameters,
        )


def machine_role(name: str, region: str) -> str:
    """IAM knows no regions, and each has its own bucket and queues: one role for each."""
    return f"{name}-machines-{region}"


# --- what is there ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundBucket:
    """``ours``: a set-up made it; the settings None where they are not set."""

    ours: bool
    empty: bool
    public_access: Mapping[str, Any] | None = None
    encryption: Any = None
    lifecycle: Any = None


@dataclass(frozen=True)
class FoundRole:
    """``inline``: its inline policies by name."""

    trust: Policy
    inline: Mapping[str, Policy] = field(default_factory=dict)


@dataclass(frozen=True)
class FoundPolicy:
    """A managed policy. ``others``: ids of its versions besides the default one, the oldest first;
    ``attached_to``: kind (``user``, ``role``, ``group``) and name of all who have it."""

    document: Policy
    others: tuple[str, ...] = ()
    attached_to: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FoundGroup:
    """A security group. ``inbound``: its rules, as EC2 describes them."""

    id: str
    inbound: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Found:
    """What is there of a layout. ``profile``: roles in the instance profile; None: there is none;
    ``machines``: ids of machines of the store that may still run."""

    spot_role: bool = False
    bucket: FoundBucket | None = None
    role: FoundRole | None = None
    profile: tuple[str, ...] | None = None
    group: FoundGroup | None = None
    airflow_policy: FoundPolicy | None = None
    machines: tuple[str, ...] = ()


# --- the plan ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of the SDK. ``harmless``: error codes that say that it is done already."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Change:
    """``what``: in words, for people."""

    what: str
    calls: tuple[Call, ...]


EXISTS = frozenset({"EntityAlreadyExists", "BucketAlreadyOwnedByYou", "InvalidGroup.Duplicate"})
GONE = frozenset({"NoSuchEntity", "NoSuchBucket", "InvalidGroup.NotFound"})


def plan_setup(layout: Layout, found: Found) -> list[Change]:
    """What is to be done so that everything is there; empty if it is."""
    return [
        *_spot_role(found),
        *_bucket(layout, found.bucket),
        *_role(layout, found.role),
        *_profile(layout, found.profile),
        *_group(layout, found.group),
        *_airflow_policy(layout, found.airflow_policy),
    ]


def plan_removal(layout: Layout, found: Found) -> list[Change]:
    """What is to be done so that nothing of it is left, but for a bucket that holds anything or that is not
    the set-up's own. Raises InvalidInput while machines may run."""
    if found.machines:
        raise InvalidInput(
            f"machines of {layout.store} still run ({', '.join(found.machines[:5])}): let their jobs end or "
            "cancel them, or end what is left with 'spotbatch sweep', then remove the set-up"
        )
    return [
        *_remove_profile(layout, found.profile),
        *_remove_role(layout, found.role),
        *_remove_group(found.group),
        *_remove_bucket(layout, found.bucket),
        *_remove_airflow_policy(layout, found.airflow_policy),
    ]


def notes(layout: Layout, found: Found) -> list[str]:
    """What set-up leaves alone and somebody should know of."""
    if found.bucket is None or found.bucket.ours:
        return []
    told = (
        f"bucket {layout.store_bucket} is not of this set-up: its settings are left as they are. See that it "
        "is private and encrypted, and that no lifecycle rule of it removes objects of jobs that run"
    )
    return [told]


def _spot_role(found: Found) -> Iterator[Change]:
    if not found.spot_role:
        yield Change(
            "the role with which EC2 starts spot machines, one for the whole account",
            (
                Call(
                    "iam",
                    "CreateServiceLinkedRole",
                    {"AWSServiceName": SPOT_SERVICE},
                    frozenset({"InvalidInput", *EXISTS}),  # InvalidInput: IAM's word for one that exists
                ),
            ),
        )


# --- the bucket --------------------------------------------------------------------------------------

PRIVATE = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}

ENCRYPTED = [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
"""By S3's own keys: they cost nothing, and no policy needs to name them."""

LIFECYCLE = [
    {
        "ID": "spotbatch",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "Expiration": {"Days": EXPIRE_DAYS},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_DAYS},
    }
]


def _bucket(layout: Layout, found: FoundBucket | None) -> Iterator[Change]:
    bucket = layout.store_bucket
    settings = _bucket_settings(bucket)
    if found is None:
        place = {"Bucket": bucket}
        where: dict[str, Any] = {} if layout.region == "us-east-1" else {"LocationConstraint": layout.region}
        yield Change(
            f"bucket {bucket}: private, encrypted; objects are removed after {EXPIRE_DAYS} days",
            (
                Call(
                    "s3",
                    "CreateBucket",
                    {**place, "CreateBucketConfiguration": where} if where else place,
                    EXISTS,
                ),
                Call("s3", "PutBucketTagging", {**place, "Tagging": {"TagSet": layout.tags}}),
                *settings.values(),
            ),
        )
    elif found.ours:
        wanted = {"public_access": PRIVATE, "encryption": ENCRYPTED, "lifecycle": LIFECYCLE}
        for name, value in wanted.items():
            if not _holds(getattr(found, name), value):
                yield Change(f"bucket {bucket}: {name.replace('_', ' ')} as set-up has it", (settings[name],))


def _bucket_settings(bucket: str) -> dict[str, Call]:
    place = {"Bucket": bucket}
    return {
        "public_access": Call(
            "s3", "PutPublicAccessBlock", {**place, "PublicAccessBlockConfiguration": PRIVATE}
        ),
        "encryption": Call(
            "s3",
            "PutBucketEncryption",
            {**place, "ServerSideEncryptionConfiguration": {"Rules": ENCRYPTED}},
        ),
        "lifecycle": Call(
            "s3",
            "PutBucketLifecycleConfiguration",
            {**place, "LifecycleConfiguration": {"Rules": LIFECYCLE}},
        ),
    }


def _holds(found: Any, wanted: Any) -> bool:
    """Whether what was found says all that is wanted: clouds add fields of their own."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_holds(found.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_holds, found, wanted))
    return bool(found == wanted)


def _remove_bucket(layout: Layout, found: FoundBucket | None) -> Iterator[Change]:
    if found is not None and found.ours and found.empty:
        bucket = layout.store_bucket
        yield Change(f"bucket {bucket}", (Call("s3", "DeleteBucket", {"Bucket": bucket}, GONE),))


# --- the machines' role and profile -----------------------------------------------------------------


def _role(layout: Layout, found: FoundRole | None) -> Iterator[Change]:
    role = layout.role
    trust, jobs = trust_policy(layout.partition), machine_policy(layout.scope)
    if found is None:
        create = Call(
            "iam",
            "CreateRole",
            {
                "RoleName": role,
                "AssumeRolePolicyDocument": _text(trust),
                "Description": "Machines of airflow-provider-spotbatch",
                "Tags": layout.tags,
            },
            EXISTS,
        )
        yield Change(
            f"role {role} of the machines: reads {layout.store}, writes only below its out/, takes work "
            "from its queues",
            (create, _put_jobs(role, jobs)),
        )
        return
    if found.trust != trust:
        update = {"RoleName": role, "PolicyDocument": _text(trust)}
        yield Change(
            f"role {role}: only EC2 may take it on", (Call("iam", "UpdateAssumeRolePolicy", update),)
        )
    if found.inline.get(MACHINE_POLICY) != jobs:
        yield Change(f"role {role}: what jobs need", (_put_jobs(role, jobs),))


def _put_jobs(role: str, jobs: Policy) -> Call:
    return Call(
        "iam",
        "PutRolePolicy",
        {"RoleName": role, "PolicyName": MACHINE_POLICY, "PolicyDocument": _text(jobs)},
    )


def _profile(layout: Layout, found: tuple[str, ...] | None) -> Iterator[Change]:
    profile = {"InstanceProfileName": layout.role}
    calls = []
    if found is None:
        calls.append(Call("iam", "CreateInstanceProfile", {**profile, "Tags": layout.tags}, EXISTS))
    if layout.role not in (found or ()):
        add = {**profile, "RoleName": layout.role}
        calls.append(Call("iam", "AddRoleToInstanceProfile", add, frozenset({"LimitExceeded"})))
    if calls:
        yield Change(f"instance profile {layout.role}, which gives machines that role", tuple(calls))


def _remove_profile(layout: Layout, found: tuple[str, ...] | None) -> Iterator[Change]:
    if found is None:
        return
    profile = {"InstanceProfileName": layout.role}
    yield Change(
        f"instance profile {layout.role}",
        (
            *(
                Call("iam", "RemoveRoleFromInstanceProfile", {**profile, "RoleName": role}, GONE)
                for role in found
            ),
            Call("iam", "DeleteInstanceProfile", profile, GONE),
        ),
    )


def _remove_role(layout: Layout, found: FoundRole | None) -> Iterator[Change]:
    if found is None:
        return
    role = {"RoleName": layout.role}
    yield Change(
        f"role {layout.role}" + (", with what was granted to it" if DATA_POLICY in found.inline else ""),
        (
            *(
                Call("iam", "DeleteRolePolicy", {**role, "PolicyName": name}, GONE)
                for name in sorted(found.inline)
            ),
            Call("iam", "DeleteRole", role, GONE),
        ),
    )


# --- the security group -------------------------------------------------------------------------------


def _group(layout: Layout, found: FoundGroup | None) -> Iterator[Change]:
    if found is None:
        yield Change(
            f"security group {layout.group} in {layout.vpc}: nothing comes in",
            (
                Call(
                    "ec2",
                    "CreateSecurityGroup",
                    {
                        "GroupName": layout.group,
                        "Description": "Machines of airflow-provider-spotbatch: no inbound rule",
                        "VpcId": layout.vpc,
                        "TagSpecifications": [{"ResourceType": "security-group", "Tags": layout.tags}],
                    },
                    EXISTS,
                ),
            ),
        )
    elif found.inbound:
        revoke = {"GroupId": found.id, "IpPermissions": [dict(rule) for rule in found.inbound]}
        yield Change(
            f"security group {found.id}: {len(found.inbound)} inbound rules that somebody added are removed",
            (Call("ec2", "RevokeSecurityGroupIngress", revoke),),
        )


def _remove_group(found: FoundGroup | None) -> Iterator[Change]:
    if found is not None:
        delete = Call("ec2", "DeleteSecurityGroup", {"GroupId": found.id}, GONE)
        yield Change(f"security group {found.id}", (delete,))


# --- Airflow's policy -----------------------------------------------------------------------------------


def _airflow_policy(layout: Layout, found: FoundPolicy | None) -> Iterator[Change]:
    arn, wanted = layout.airflow_policy_arn, airflow_policy(layout.scope)
    name = arn.rsplit("/", 1)[1]
    if found is None:
        create = {
            "PolicyName": name,
            "PolicyDocument": _text(wanted),
            "Description": "What Airflow needs to run jobs of airflow-provider-spotbatch",
            "Tags": layout.tags,
        }
        yield Change(
            f"policy {name}: what Airflow needs, to be attached to its own user or role",
            (Call("iam", "CreatePolicy", create, EXISTS),),
        )
    elif found.document != wanted:
        surplus = found.others[: max(0, len(found.others) + 2 - POLICY_VERSIONS)]
        calls = [
            *(Call("iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": each}) for each in surplus),
            Call(
                "iam",
                "CreatePolicyVersion",
                {"PolicyArn": arn, "PolicyDocument": _text(wanted), "SetAsDefault": True},
            ),
        ]
        yield Change(f"policy {name}: what Airflow needs now", tuple(calls))


def _remove_airflow_policy(layout: Layout, found: FoundPolicy | None) -> Iterator[Change]:
    if found is None:
        return
    arn = layout.airflow_policy_arn
    had_by = ", ".join(f"{kind} {name}" for kind, name in found.attached_to)
    yield Change(
        f"policy {arn.rsplit('/', 1)[1]}" + (f", which {had_by} had" if had_by else ""),
        (
            *(_detach(arn, kind, name) for kind, name in found.attached_to),
            *(
                Call("iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": each}, GONE)
                for each in found.others
            ),
            Call("iam", "DeletePolicy", {"PolicyArn": arn}, GONE),
        ),
    )


def _detach(arn: str, kind: str, name: str) -> Call:
    """IAM removes no policy that somebody has (IAM API reference, DeletePolicy)."""
    who = kind.capitalize()
    return Call("iam", f"Detach{who}Policy", {f"{who}Name": name, "PolicyArn": arn}, GONE)


def _text(policy: Policy) -> str:
    return json.dumps(policy, separators=(",", ":"))
