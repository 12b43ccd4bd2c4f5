"""What Airflow and its machines may do in an account, as IAM policies: the least that works. Pure.

Resources and conditions of each action: Service Authorization Reference, 2026, "Actions, resources, and
condition keys" for Amazon EC2, SQS, S3, IAM, Systems Manager, Secrets Manager and Service Quotas. A tag of
the store marks what belongs to a connection: machines, disks and launch templates are made with it, and
ended or removed only where they carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.queue import queue_prefix

Policy = dict[str, Any]

VERSION = "2012-10-17"

WITHOUT_RESOURCES = (
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
    "sqs:ListQueues",
)
"""Actions that only look, and for which no narrower resource than ``*`` exists (Service Authorization
Reference: their "Resource types" are empty)."""


@dataclass(frozen=True)
class Scope:
    """Where a connection's things are. ``store``: ``s3://bucket/prefix``, exactly as the connection has it;
    ``machine_role``: name of the role that machines take on; ``vpc``: id of the one they are in;
    ``partition``: ``aws``, ``aws-cn`` …; ``bucket_key``: ARN of the bucket's own KMS key, if it has one;
    ``image_parameters``: names of the user's own SSM parameters that hold images."""

    account: str
    region: str
    store: str
    machine_role: str
    vpc: str
    partition: str = "aws"
    bucket_key: str = ""
    image_parameters: tuple[str, ...] = ()

    @property
    def bucket(self) -> str:
        return urlsplit(self.store).netloc

    @property
    def prefix(self) -> str:
        """Of the store's objects: empty, or ending with a slash."""
        path = urlsplit(self.store).path.strip("/")
        return f"{path}/" if path else ""

    def objects(self, below: str = "") -> str:
        """ARN of all objects of the store below a folder."""
        return f"{self.bucket_arn}/{self.prefix}{below}*"

    @property
    def bucket_arn(self) -> str:
        return f"arn:{self.partition}:s3:::{self.bucket}"

    @property
    def queues(self) -> str:
        return f"arn:{self.partition}:sqs:{self.region}:{self.account}:{queue_prefix(self.store)}*"

    @property
    def vpc_arn(self) -> str:
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:vpc/{self.vpc}"

    def ec2(self, kind: str) -> str:
        """ARN of all of the region's resources of a kind, in this account."""
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:{kind}/*"

    def ec2_of_anybody(self, kind: str) -> str:
        """The same, whoever owns them: images and their snapshots have no account in their ARN."""
        return f"arn:{self.partition}:ec2:{self.region}::{kind}/*"


def airflow_policy(scope: Scope) -> Policy:
    """For the credentials of ``aws_conn_id``: start machines, end its own, hand out work."""
    tagged = {"StringEquals": {f"aws:ResourceTag/{STORE_TAG}": scope.store}}
    tagging = {"StringEquals": {f"aws:RequestTag/{STORE_TAG}": scope.store}}
    launching = ("ec2:CreateFleet", "ec2:RunInstances")
    made = [scope.ec2(kind) for kind in ("instance", "volume")]
    in_vpc = {"ArnEquals": {"ec2:Vpc": scope.vpc_arn}}
    return policy(
        allow("Look", WITHOUT_RESOURCES, ["*"]),
        allow("StartByOwnTemplates", launching, [scope.ec2("launch-template")], tagged),
        allow("StartOwnMachines", ("ec2:RunInstances",), made, tagging),
        # What a fleet starts is tagged by its template, which only RunInstances is shown.
        allow("StartFleets", ("ec2:CreateFleet",), [scope.ec2("fleet"), *made]),
        allow("StartInVpc", launching, [scope.ec2("subnet")], in_vpc),
        allow(
            "ConnectInVpc",
            ("ec2:RunInstances",),
            [scope.ec2(kind) for kind in ("network-interface", "security-group")],
            in_vpc,
        ),
        allow("StartFromImages", launching, [scope.ec2_of_anybody("image")]),
        allow("FillDisks", ("ec2:RunInstances",), [scope.ec2_of_anybody("snapshot")]),
        allow("MakeTemplates", ("ec2:CreateLaunchTemplate",), [scope.ec2("launch-template")], tagging),
        allow(
            "TagWhatIsMade",
            ("ec2:CreateTags",),
            [*made, *(scope.ec2(kind) for kind in ("launch-template", "network-interface"))],
            {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}},
        ),
        allow("EndOwnMachines", ("ec2:TerminateInstances",), [scope.ec2("instance")], tagged),
        allow("RemoveOwnTemplates", ("ec2:DeleteLaunchTemplate",), [scope.ec2("launch-template")], tagged),
        allow(
            "GiveMachinesTheirRole",
            ("iam:PassRole",),
            [f"arn:{scope.partition}:iam::{scope.account}:role/{scope.machine_role}"],
            {"StringEquals": {"iam:PassedToService": _ec2_service(scope.partition)}},
        ),
        allow(
            "FindImages",
            ("ssm:GetParameter",),
            [
                f"arn:{scope.partition}:ssm:{scope.region}::parameter/aws/service/*",
                *(
                    f"arn:{scope.partition}:ssm:{scope.region}:{scope.account}:parameter/{name.lstrip('/')}"
                    for name in scope.image_parameters
                ),
            ],
        ),
        allow(
            "ExplainQuotas",
            ("servicequotas:GetServiceQuota",),
            [f"arn:{scope.partition}:servicequotas:{scope.region}:{scope.account}:ec2/*"],
        ),
        allow(
            "SendWork",
            (
                "sqs:CreateQueue",
                "sqs:DeleteQueue",
                "sqs:GetQueueUrl",
                "sqs:SendMessage",
                "sqs:TagQueue",
            ),
            [scope.queues],
        ),
        allow("KeepJobs", ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"), [scope.objects()]),
        _list_store(scope),
        *_use_key(scope),
    )


def machine_policy(scope: Scope) -> Policy:
    """For the machines: read the store, write results, take work. Nothing of EC2, no access to data of the
    user: that is :func:`data_policy`."""
    return policy(
        allow("ReadJobs", ("s3:GetObject",), [scope.objects()]),
        allow("WriteResults", ("s3:PutObject",), [scope.objects("out/")]),
        _list_store(scope),
        allow(
            "TakeWork",
            (
                "sqs:ChangeMessageVisibility",
                "sqs:DeleteMessage",
                "sqs:GetQueueUrl",
                "sqs:ReceiveMessage",
            ),
            [scope.queues],
        ),
        *_use_key(scope),
    )


def trust_policy(partition: str = "aws") -> Policy:
    """Who may take on the machines' role: EC2, for them."""
    return policy(
        {
            "Effect": "Allow",
            "Principal": {"Service": _ec2_service(partition)},
            "Action": "sts:AssumeRole",
        }
    )


def _list_store(scope: Scope) -> dict[str, Any]:
    """Who may not list is told 403, not 404, of an object that is not there, and agents ask for such all the
    time. That question carries no ``s3:prefix``, so a condition on it must let its absence pass.
    """
    condition = {"StringLikeIfExists": {"s3:prefix": f"{scope.prefix}*"}} if scope.prefix else None
    return allow("ListStore", ("s3:ListBucket",), [scope.bucket_arn], condition)


def _use_key(scope: Scope) -> Iterator[dict[str, Any]]:
    """What S3 asks of who reads and writes objects under a key of the user's own (S3 User Guide, "Using
    server-side encryption with AWS KMS keys", permissions). The key's own policy must allow it too."""
    if scope.bucket_key:
        yield allow("UseBucketKey", ("kms:Decrypt", "kms:GenerateDataKey"), [scope.bucket_key])


def _ec2_service(partition: str) -> str:
    return "ec2.amazonaws.com.cn" if partition == "aws-cn" else "ec2.amazonaws.com"


def policy(*statements: Mapping[str, Any]) -> Policy:
    """A policy of these statements."""
    return {"Version": VERSION, "Statement": [dict(each) for each in statements]}


def allow(
    sid: str,
    actions: Iterable[str],
    resources: Sequence[str],
    condition: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A statement. Lists are sorted, so that equal policies are equal texts."""
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": sorted(resources),
    }
    if condition:
        statement["Condition"] = dict(condition)
    return statement
