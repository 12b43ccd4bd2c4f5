"""What a call must be allowed: actions, each on a resource, with what conditions may ask about.

Actions, resources and condition keys: Service Authorization Reference
(https://docs.aws.amazon.com/service-authorization/latest/reference/), for the services that jobs use. A call
that is not known here needs its own action on ``*``, as those do that only look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from tests.cloud.cloudbox.calls import Call
from tests.cloud.cloudbox.moto import ACCOUNT, Moto


@dataclass(frozen=True)
class Right:
    """``context``: condition key → value; keys that a request does not have are missing."""

    action: str
    resource: str = "*"
    context: dict[str, str] = field(default_factory=dict)


def rights_for(call: Call, moto: Moto) -> list[Right]:
    """All of them are needed."""
    find = {"ec2": _ec2, "s3": _s3, "sqs": _sqs, "secretsmanager": _secret, "ssm": _parameter}.get(
        call.service
    )
    return list(find(call, moto)) if find else [Right(f"{call.service}:{call.operation}")]


# --- S3, SQS, secrets -----------------------------------------------------------------------------------

_OBJECT_ACTIONS = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject"}


def _s3(call: Call, moto: Moto) -> Iterator[Right]:
    parts = urlsplit(call.path)
    bucket, _, key = unquote(parts.path).strip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    arn = f"arn:aws:s3:::{bucket}"
    if key and call.method == "DELETE":
        yield Right("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", f"{arn}/{key}")
    elif key:
        yield Right(f"s3:{_OBJECT_ACTIONS[call.method]}", f"{arn}/{key}")
        if source := call.headers.get("x-amz-copy-source"):
            yield Right("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}")
    elif "delete" in query:
        keys = (each.text for each in ElementTree.fromstring(call.body).iter() if each.tag.endswith("Key"))
        yield from (Right("s3:DeleteObject", f"{arn}/{each}") for each in keys)
    elif call.method == "HEAD" or (call.method == "GET" and {"list-type", "prefix"} & set(query)):
        context = {"s3:prefix": query["prefix"][0]} if "prefix" in query else {}
        yield Right("s3:ListBucket", arn, context)
    else:  # of the bucket itself: jobs have nothing to do with it
        yield Right(f"s3:{call.method}{''.join(sorted(query))}", arn)


def _sqs(call: Call, moto: Moto) -> Iterator[Right]:
    action = f"sqs:{call.operation.removesuffix('Batch')}"
    name = call.parameters.get("QueueName") or call.parameters.get("QueueUrl", "").rpartition("/")[2]
    yield Right(action, f"arn:aws:sqs:{call.region}:{ACCOUNT}:{name}" if name else "*")


def _secret(call: Call, moto: Moto) -> Iterator[Right]:
    name = call.parameters.get("SecretId", "*")
    if not name.startswith(("arn:", "*")):
        name = moto.client("secretsmanager", call.region).describe_secret(SecretId=name)["ARN"]
    yield Right(f"secretsmanager:{call.operation}", name)


def _parameter(call: Call, moto: Moto) -> Iterator[Right]:
    for name in call.parameters.get("Names") or [call.parameters.get("Name", "*")]:
        owner = "" if name.startswith("/aws/") else ACCOUNT
        arn = f"arn:aws:ssm:{call.region}:{owner}:parameter/{name.lstrip('/')}"
        yield Right(f"ssm:{call.operation}", name if name.startswith(("arn:", "*")) else arn)


# --- EC2 ------------------------------------------------------------------------------------------------


def _ec2(call: Call, moto: Moto) -> Iterator[Right]:
    find = {
        "CreateFleet": _start_fleet,
        "CreateLaunchTemplate": _make_template,
        "DeleteLaunchTemplate": _remove_template,
        "RunInstances": _run_instances,
        "TerminateInstances": _end_machines,
    }.get(call.operation)
    if find is None:
        return iter([Right(f"ec2:{call.operation}")])
    return find(call, moto)


def _end_machines(call: Call, moto: Moto) -> Iterator[Right]:
    tags = _tags_of(call, moto, call.parameters["InstanceIds"])
    for instance in call.parameters["InstanceIds"]:
        yield Right("ec2:TerminateInstances", _arn(call, "instance", instance), tags.get(instance, {}))


def _remove_template(call: Call, moto: Moto) -> Iterator[Right]:
    template = _template(call, moto, call.parameters)
    if template:
        yield _of_template("ec2:DeleteLaunchTemplate", call, template)


def _make_template(call: Call, moto: Moto) -> Iterator[Right]:
    tags = _requested(call.parameters.get("TagSpecifications", []), "launch-template")
    arn = _arn(call, "launch-template", "*")
    yield Right("ec2:CreateLaunchTemplate", arn, tags)
    yield from _tagging(call, arn, tags)


def _start_fleet(call: Call, moto: Moto) -> Iterator[Right]:
    """What the fleet starts is started with its caller's rights to run instances."""
    yield Right("ec2:CreateFleet", _arn(call, "fleet", "*"))
    yield Right("ec2:CreateFleet", _arn(call, "instance", "*"))
    for config in call.parameters.get("LaunchTemplateConfigs", []):
        template = _template(call, moto, config["LaunchTemplateSpecification"])
        if not template:
            continue
        data = _data_of(call, moto, template)
        overrides = config.get("Overrides") or [{}]
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield _of_template(action, call, template)
            yield from _places(action, call, moto, [{**data, **each} for each in overrides])
        yield from _started(call, moto, data)


def _run_instances(call: Call, moto: Moto) -> Iterator[Right]:
    """By a template, of which what the call says itself takes the place."""
    named = call.parameters.get("LaunchTemplate")
    template = _template(call, moto, named) if named else {}
    data = {**(_data_of(call, moto, template) if template else {}), **call.parameters}
    if template:
        yield _of_template("ec2:RunInstances", call, template)
    yield from _places("ec2:RunInstances", call, moto, [data])
    yield from _started(call, moto, data)


def _places(action: str, call: Call, moto: Moto, asked: list[dict[str, Any]]) -> Iterator[Right]:
    """The images and subnets that machines are started from and in."""
    for image in sorted({each["ImageId"] for each in asked if "ImageId" in each}):
        yield Right(action, f"arn:aws:ec2:{call.region}::image/{image}")
    subnets = sorted({each["SubnetId"] for each in asked if "SubnetId" in each})
    if subnets:
        found = moto.client("ec2", call.region).describe_subnets(SubnetIds=subnets)["Subnets"]
        for subnet in found:
            yield Right(action, _arn(call, "subnet", subnet["SubnetId"]), _in_vpc(call, subnet["VpcId"]))


def _started(call: Call, moto: Moto, data: dict[str, Any]) -> Iterator[Right]:
    """The machine itself, with what comes with it: its disk, its place in the network, its role."""
    specifications = data.get("TagSpecifications", [])
    for kind in ("instance", "volume", "network-interface"):
        tags = _requested(specifications, kind)
        if kind != "network-interface":
            yield Right("ec2:RunInstances", _arn(call, kind, "*"), tags)
        yield from _tagging(call, _arn(call, kind, "*"), tags)
    groups = [*data.get("SecurityGroupIds", ())]
    for each in data.get("NetworkInterfaces", []):
        groups += each.get("Groups", [])
    if groups:
        described = moto.client("ec2", call.region).describe_security_groups(GroupIds=groups)
        for group in described["SecurityGroups"]:
            vpc = _in_vpc(call, group["VpcId"])
            yield Right("ec2:RunInstances", _arn(call, "security-group", group["GroupId"]), vpc)
            yield Right("ec2:RunInstances", _arn(call, "network-interface", "*"), vpc)
    if profile := data.get("IamInstanceProfile"):
        name = profile.get("Name") or profile["Arn"].rpartition("/")[2]
        found = moto.client("iam", "us-east-1").get_instance_profile(InstanceProfileName=name)
        for role in found["InstanceProfile"]["Roles"]:
            yield Right("iam:PassRole", role["Arn"], {"iam:PassedToService": "ec2.amazonaws.com"})


def _tagging(call: Call, arn: str, tags: dict[str, str]) -> Iterator[Right]:
    if tags:
        yield Right("ec2:CreateTags", arn, {**tags, "ec2:CreateAction": call.operation})


def _requested(specifications: list[dict[str, Any]], kind: str) -> dict[str, str]:
    return {
        f"aws:RequestTag/{tag['Key']}": tag["Value"]
        for each in specifications
        if each.get("ResourceType") == kind
        for tag in each["Tags"]
    }


def _of_template(action: str, call: Call, template: dict[str, Any]) -> Right:
    return Right(action, _arn(call, "launch-template", template["LaunchTemplateId"]), _tags(template))


def _template(call: Call, moto: Moto, named: dict[str, Any]) -> dict[str, Any]:
    """The launch template that a call names; empty if there is none."""
    by_id = {"LaunchTemplateIds": [named["LaunchTemplateId"]]} if "LaunchTemplateId" in named else {}
    by_name = {} if by_id else {"LaunchTemplateNames": [named["LaunchTemplateName"]]}
    ec2 = moto.client("ec2", call.region)
    try:
        found: list[dict[str, Any]] = ec2.describe_launch_templates(**by_id, **by_name)["LaunchTemplates"]
    except ec2.exceptions.ClientError:
        return {}
    return found[0] if found else {}


def _data_of(call: Call, moto: Moto, template: dict[str, Any]) -> dict[str, Any]:
    versions = moto.client("ec2", call.region).describe_launch_template_versions(
        LaunchTemplateId=template["LaunchTemplateId"], Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    data: dict[str, Any] = versions[0]["LaunchTemplateData"]
    return data


def _tags_of(call: Call, moto: Moto, instances: list[str]) -> dict[str, dict[str, str]]:
    described = moto.client("ec2", call.region).describe_instances(
        Filters=[{"Name": "instance-id", "Values": instances}]
    )
    return {
        instance["InstanceId"]: _tags(instance)
        for reservation in described["Reservations"]
        for instance in reservation["Instances"]
    }


def _tags(described: dict[str, Any]) -> dict[str, str]:
    return {f"aws:ResourceTag/{tag['Key']}": tag["Value"] for tag in described.get("Tags", [])}


def _in_vpc(call: Call, vpc: str) -> dict[str, str]:
    return {"ec2:Vpc": _arn(call, "vpc", vpc)}


def _arn(call: Call, kind: str, name: str) -> str:
    return f"arn:aws:ec2:{call.region}:{ACCOUNT}:{kind}/{name}"


_SERVICES = {"ec2": _ec2, "s3": _s3, "secretsmanager": _secret, "sqs": _sqs, "ssm": _parameter}
