"""The policies are the least that works: checked against what the actions can be narrowed to, and against
what the code calls."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.data_policy import Grants, data_policy
from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.policies import (
    WITHOUT_RESOURCES,
    Policy,
    Scope,
    airflow_policy,
    machine_policy,
    trust_policy,
)
from airflow_provider_spotbatch.backends.aws.queue import queue_prefix
from airflow_provider_spotbatch.job.keys import MAX_JOB_ID, Generation, Run

SCOPE = Scope(
    account="123456789012",
    region="us-east-2",
    store="s3://team-bucket/spot",
    machine_role="spotbatch-machines-us-east-2",
    vpc="vpc-0123456789abcdef0",
)
AIRFLOW, MACHINES = airflow_policy(SCOPE), machine_policy(SCOPE)
DATA = data_policy(
    Grants.of(
        ["s3://data/scans"],
        ["s3://results"],
        [
            "arn:aws:secretsmanager:us-east-2:123456789012:secret:token-AbCdEf",
            "arn:aws:ssm:us-east-2:123456789012:parameter/scans/token",
        ],
    ),
    "aws",
)
POLICIES = {"airflow": AIRFLOW, "machines": MACHINES, "data": DATA}

REQUIRED = {
    "ec2:CreateFleet": {"fleet", "instance"},
    "ec2:CreateLaunchTemplate": {"launch-template"},
    "ec2:DeleteLaunchTemplate": {"launch-template"},
    "ec2:RunInstances": {"image", "instance", "network-interface", "security-group", "subnet"},
    "ec2:TerminateInstances": {"instance"},
}
OPTIONAL = {
    "ec2:CreateFleet": {"image", "launch-template", "placement-group", "subnet", "volume"},
    "ec2:CreateTags": {"instance", "launch-template", "network-interface", "volume"},
    "ec2:RunInstances": {"launch-template", "snapshot", "volume"},
}
"""Resource types of EC2's actions: a call fails where one of the first is not allowed, and asks for the
others where the request names them (Service Authorization Reference, Amazon EC2, 2026)."""


def statements(policy: Policy) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Action, resource and condition, one by one."""
    for statement in policy["Statement"]:
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                yield action, resource, statement.get("Condition", {})


ALL = [(name, *each) for name, policy in POLICIES.items() for each in statements(policy)]


def kind_of(arn: str) -> str:
    """``instance`` of ``arn:aws:ec2:…:instance/*``."""
    return arn.split(":", 5)[5].split("/")[0]


def test_a_wildcard_alone_stands_only_where_nothing_narrower_exists() -> None:
    wide = {action for _, action, resource, _ in ALL if resource == "*"}
    assert wide == set(WITHOUT_RESOURCES)
    assert all(re.match(r"\w+:(Describe|Get|List)", action) for action in wide)


def test_no_action_is_a_wildcard() -> None:
    assert [action for _, action, *_ in ALL if "*" in action] == []


def test_every_arn_names_partition_service_region_and_account() -> None:
    for _, action, resource, _ in ALL:
        if resource == "*":
            continue
        arn, partition, service, region, account, rest = resource.split(":", 5)
        assert (arn, partition) == ("arn", "aws"), resource
        assert service == action.split(":")[0], (action, resource)
        anybodys = service == "s3" or kind_of(resource) in ("image", "snapshot") or "/aws/service/" in rest
        assert (account == "123456789012") != anybodys, resource
        assert (region == "us-east-2") != (service in ("s3", "iam")), resource


def test_a_wildcard_stands_at_the_end_of_an_arn_alone_below_a_name() -> None:
    for _, action, resource, _ in ALL:
        if resource != "*":
            assert "*" not in resource[:-1], (action, resource)
            assert not resource.endswith(":*"), (action, resource)


@pytest.mark.parametrize("policy", [AIRFLOW, MACHINES], ids=["airflow", "machines"])
def test_objects_are_the_stores_alone_and_queues_too(policy: Policy) -> None:
    """A bucket may hold more than a store, and an account more queues than a connection's."""
    resources = {
        service: {
            resource
            for action, resource, _ in statements(policy)
            if action.split(":")[0] == service and resource not in ("*", "arn:aws:s3:::team-bucket")
        }
        for service in ("s3", "sqs")
    }
    assert resources["s3"]
    assert all(each.startswith("arn:aws:s3:::team-bucket/spot/") for each in resources["s3"])
    assert resources["sqs"] == {f"arn:aws:sqs:us-east-2:123456789012:{queue_prefix(SCOPE.store)}*"}


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("ec2:CreateFleet", "launch-template"),
        ("ec2:RunInstances", "launch-template"),
        ("ec2:TerminateInstances", "instance"),
        ("ec2:DeleteLaunchTemplate", "launch-template"),
    ],
)
def test_what_exists_is_used_and_ended_only_where_it_carries_the_stores_tag(action: str, kind: str) -> None:
    conditions = [
        condition
        for each, resource, condition in statements(AIRFLOW)
        if each == action and kind_of(resource) == kind
    ]
    assert conditions == [{"StringEquals": {f"aws:ResourceTag/{STORE_TAG}": SCOPE.store}}]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("ec2:RunInstances", "instance"),
        ("ec2:RunInstances", "volume"),
        ("ec2:CreateLaunchTemplate", "launch-template"),
    ],
)
def test_what_is_made_must_be_tagged_as_the_stores(action: str, kind: str) -> None:
    conditions = [
        condition
        for each, resource, condition in statements(AIRFLOW)
        if each == action and resource != "*" and kind_of(resource) == kind
    ]
    assert conditions == [{"StringEquals": {f"aws:RequestTag/{STORE_TAG}": SCOPE.store}}]


def test_what_is_tagged_is_only_what_is_being_made() -> None:
    conditions = [c for action, _, c in statements(AIRFLOW) if action == "ec2:CreateTags"]
    made_by = {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}}
    assert conditions
    assert all(condition == made_by for condition in conditions)


@pytest.mark.parametrize("kind", ["network-interface", "security-group", "subnet"])
def test_machines_are_started_in_one_vpc_alone(kind: str) -> None:
    conditions = [
        condition
        for action, resource, condition in statements(AIRFLOW)
        if action in ("ec2:RunInstances", "ec2:CreateFleet") and f":{kind}/" in resource
    ]
    vpc = "arn:aws:ec2:us-east-2:123456789012:vpc/vpc-0123456789abcdef0"
    assert conditions
    assert all(condition == {"ArnEquals": {"ec2:Vpc": vpc}} for condition in conditions)


@pytest.mark.parametrize("action", sorted({*REQUIRED, *OPTIONAL}))
def test_each_action_of_ec2_has_the_resources_it_needs_and_no_others(action: str) -> None:
    given = {kind_of(resource) for each, resource, _ in statements(AIRFLOW) if each == action}
    assert REQUIRED.get(action, set()) <= given
    assert given <= REQUIRED.get(action, set()) | OPTIONAL.get(action, set())


def test_every_action_of_ec2_that_changes_anything_is_in_the_table() -> None:
    changing = {
        action for action, resource, _ in statements(AIRFLOW) if action.startswith("ec2:") and resource != "*"
    }
    assert changing == {*REQUIRED, *OPTIONAL}


def test_the_role_is_handed_to_machines_alone() -> None:
    [(resource, condition)] = [(r, c) for action, r, c in statements(AIRFLOW) if action == "iam:PassRole"]
    assert resource == "arn:aws:iam::123456789012:role/spotbatch-machines-us-east-2"
    assert condition == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def test_machines_write_below_out_alone() -> None:
    writing = {
        (action, resource)
        for action, resource, _ in statements(MACHINES)
        if not re.match(r"\w+:(Get|List)", action) and action.startswith("s3:")
    }
    assert writing == {("s3:PutObject", "arn:aws:s3:::team-bucket/spot/out/*")}


def test_machines_have_no_power_over_machines() -> None:
    assert {action.split(":")[0] for action, *_ in statements(MACHINES)} == {"s3", "sqs"}


def test_machines_take_work_and_send_none() -> None:
    assert {action for action, *_ in statements(MACHINES) if action.startswith("sqs:")} == {
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    }


def test_a_listing_is_of_the_stores_prefix_and_lets_an_absent_object_be_told() -> None:
    [(resource, condition)] = [(r, c) for action, r, c in statements(MACHINES) if action == "s3:ListBucket"]
    assert resource == "arn:aws:s3:::team-bucket"
    assert condition == {"StringLikeIfExists": {"s3:prefix": "spot/*"}}


def test_a_bucket_of_its_own_is_listed_as_a_whole() -> None:
    policy = machine_policy(replace(SCOPE, store="s3://team-bucket"))
    [condition] = [c for action, _, c in statements(policy) if action == "s3:ListBucket"]
    assert condition == {}
    assert ("s3:PutObject", "arn:aws:s3:::team-bucket/out/*") in {(a, r) for a, r, _ in statements(policy)}


def test_queues_of_the_store_are_allowed_and_those_of_another_are_not() -> None:
    run = Run(Generation("x" * MAX_JOB_ID, 999), 999)
    name = queue_prefix(SCOPE.store) + run.queue(0)
    assert len(name) <= 80
    assert SCOPE.queues == f"arn:aws:sqs:us-east-2:123456789012:{queue_prefix(SCOPE.store)}*"
    assert queue_prefix("s3://other/spot") != queue_prefix(SCOPE.store)


def test_the_managed_policy_is_as_small_as_iam_asks() -> None:
    assert len(json.dumps(AIRFLOW, separators=(",", ":"))) <= 6144


KEY = "arn:aws:kms:us-east-2:123456789012:key/0a1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize("policy_of", [airflow_policy, machine_policy])
def test_a_bucket_with_a_key_of_its_own_needs_the_use_of_that_key_alone(
    policy_of: Callable[[Scope], Policy],
) -> None:
    plain, keyed = policy_of(SCOPE), policy_of(replace(SCOPE, bucket_key=KEY))
    assert "kms:" not in json.dumps(plain)
    [more] = [each for each in keyed["Statement"] if each not in plain["Statement"]]
    assert (more["Action"], more["Resource"]) == (["kms:Decrypt", "kms:GenerateDataKey"], [KEY])


def test_images_named_by_parameters_of_the_users_own_can_be_found() -> None:
    policy = airflow_policy(replace(SCOPE, image_parameters=("/team/image",)))
    [found] = [each["Resource"] for each in policy["Statement"] if each["Sid"] == "FindImages"]
    assert "arn:aws:ssm:us-east-2:123456789012:parameter/team/image" in found
    assert len(found) == 2


def test_china_has_its_own_names() -> None:
    there = replace(SCOPE, partition="aws-cn", region="cn-north-1")
    text = json.dumps([airflow_policy(there), machine_policy(there), trust_policy("aws-cn")])
    assert "arn:aws:" not in text
    assert '"ec2.amazonaws.com.cn"' in text


# --- what the code calls -------------------------------------------------------------------------------

FOLDER = Path(__file__).parents[4] / "airflow_provider_spotbatch" / "backends" / "aws"
BY_HAND = {"grants.py", "setup.py", "setup_look.py", "setup_plan.py"}
"""Called by whoever sets an account up, with their own credentials."""

ACTIONS = {
    "service-quotas:GetServiceQuota": "servicequotas:GetServiceQuota",
    "sqs:SendMessageBatch": "sqs:SendMessage",
}
"""Calls whose permission has another name."""

FREE = {"sts:GetCallerIdentity"}
"""Needs no permission (STS API reference)."""


def called() -> Iterator[str]:
    """``service:Operation`` of every call in the code of the backend."""
    for path in sorted(FOLDER.glob("*.py")):
        if path.name in BY_HAND:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in ("call", "call_now", "pages") and len(words) >= 2:
                yield f"{words[0]}:{words[1]}"
            elif name == "_dry_run":
                yield f"ec2:{words[0]}"


def test_every_call_of_the_code_is_allowed() -> None:
    allowed = {action for _, action, *_ in ALL}
    found = {ACTIONS.get(call, call) for call in called()} - FREE
    assert "ec2:CreateFleet" in found
    assert "sqs:ReceiveMessage" in found
    assert found - allowed == set()


def test_nothing_is_allowed_that_the_code_does_not_call() -> None:
    allowed = {action for _, action, *_ in ALL if not action.startswith("s3:")}  # of the store's own library
    with_others = {"ec2:CreateTags", "iam:PassRole", "sqs:TagQueue"}
    assert allowed - {ACTIONS.get(call, call) for call in called()} == with_others
