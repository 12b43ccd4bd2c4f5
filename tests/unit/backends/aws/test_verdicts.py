"""What each of Amazon's error codes means, and that its cure is named."""

from __future__ import annotations

import pytest

from airflow_provider_spotbatch.backends.aws.quotas import UNKNOWN, quota_class, quota_code
from airflow_provider_spotbatch.backends.aws.verdicts import verdict
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    CloudUnavailable,
    NoCapacity,
    QuotaExceeded,
    Refusal,
    SpotBatchError,
    Throttled,
)


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        ("InsufficientInstanceCapacity", NoCapacity, "Other types and zones are tried"),
        ("UnfulfillableCapacity", NoCapacity, "Other types and zones are tried"),
        ("InsufficientFreeAddressesInSubnet", NoCapacity, "'subnets' of the connection"),
        ("Unsupported", NoCapacity, "others are tried"),
        ("MaxSpotInstanceCountExceeded", QuotaExceeded, ""),
        ("VcpuLimitExceeded", QuotaExceeded, ""),
        ("MaxFleetCountExceeded", QuotaExceeded, "AWS Support"),
        ("RequestLimitExceeded", Throttled, "less often"),
        ("InvalidLaunchTemplateName.NotFoundException", Throttled, "less often"),
        ("MaxTemplateLimitExceeded", Throttled, "spotbatch sweep"),
        ("UnauthorizedOperation", AccessDenied, "iam:PassRole"),
        ("AccessDenied", AccessDenied, "Allow ec2:CreateFleet"),
        ("ExpiredToken", AccessDenied, "Renew the credentials"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", AccessDenied, "create-service-linked-role"),
        ("InvalidAMIID.NotFound", BadRequest, "'image' of the connection"),
        ("InvalidSubnetID.NotFound", BadRequest, "'subnets' of the connection"),
        ("InvalidGroup.NotFound", BadRequest, "'security_groups' of the connection"),
        ("NeverHeardOfThis", BadRequest, ""),
    ],
)
def test_an_error_code_is_a_verdict_with_its_cure(code: str, kind: type[Refusal], remedy: str) -> None:
    told = verdict(code, "the message", "ec2:CreateFleet")
    assert type(told) is kind
    assert isinstance(told, Refusal)
    assert remedy in told.remedy
    assert told.code == code
    assert told.message == f"ec2:CreateFleet was refused: {code}: the message"


@pytest.mark.parametrize("code", ["InternalError", "Unavailable", "ServiceUnavailable"])
def test_of_a_failing_service_nothing_is_known(code: str) -> None:
    told = verdict(code, "", "ec2:CreateFleet")
    assert isinstance(told, CloudUnavailable)
    assert not isinstance(told, Refusal)


def test_an_unknown_code_is_whose_fault_the_status_tells() -> None:
    assert isinstance(verdict("NewTrouble", "", "ec2:CreateFleet", http_status=503), CloudUnavailable)
    assert isinstance(
        verdict("InsufficientInstanceCapacity", "", "ec2:RunInstances", http_status=500), NoCapacity
    )


def test_a_missing_permission_is_named() -> None:
    told: SpotBatchError = verdict("AccessDenied", "", "sqs:SendMessageBatch")
    assert isinstance(told, AccessDenied)
    assert told.remedy == "Allow sqs:SendMessage for the credentials in use"


@pytest.mark.parametrize(
    ("action", "remedy"),
    [
        ("ec2:CreateFleet", "Allow ec2:CreateFleet, ec2:RunInstances"),
        ("iam:PassRole", "Allow iam:PassRole (and what comes with it: ec2:CreateFleet"),
    ],
)
def test_who_lacks_which_permission_is_told_as_far_as_the_message_tells(action: str, remedy: str) -> None:
    who = "arn:aws:sts::123456789012:assumed-role/airflow/worker-1"
    message = f"You are not authorized. User: {who} is not authorized to perform: {action} on resource: *"
    told = verdict("UnauthorizedOperation", message, "ec2:CreateFleet")
    assert isinstance(told, AccessDenied)
    assert told.remedy.startswith(remedy)
    assert told.remedy.endswith(f" for {who}")


@pytest.mark.parametrize("code", ["InvalidFleetConfiguration", "InvalidParameterValue"])
def test_what_is_wrong_of_one_pool_leaves_the_others(code: str) -> None:
    assert isinstance(verdict(code, "", "ec2:CreateFleet", of_a_pool=True), NoCapacity)
    assert isinstance(verdict(code, "", "ec2:CreateFleet"), BadRequest)


@pytest.mark.parametrize(
    ("type_", "spot", "on_demand"),
    [
        ("m6i.large", "L-34B43A08", "L-1216C47A"),
        ("i4i.large", "L-34B43A08", "L-1216C47A"),
        ("im4gn.large", "L-34B43A08", "L-1216C47A"),
        ("inf2.xlarge", "L-B5D1601B", "L-1945791B"),
        ("g5.xlarge", "L-3819A6DF", "L-DB2E81BA"),
        ("gr6.4xlarge", "L-3819A6DF", "L-DB2E81BA"),
        ("vt1.3xlarge", "L-3819A6DF", "L-DB2E81BA"),
        ("p4d.24xlarge", "L-7212CCBC", "L-417A185B"),
        ("x2idn.16xlarge", "L-E3A00192", "L-7295265B"),
        ("dl1.24xlarge", "L-85EED4F7", "L-6E869C2A"),
        ("trn1.2xlarge", "L-6B0D517C", "L-2C3B7624"),
        ("f2.6xlarge", "L-88CF9481", "L-74FC7D96"),
        ("p5en.48xlarge", "L-C4BD4855", "L-417A185B"),
        ("hpc7a.96xlarge", UNKNOWN, "L-F7808C92"),
        ("u-6tb1.112xlarge", UNKNOWN, "L-43DA4232"),
        ("u7i-12tb.224xlarge", UNKNOWN, "L-43DA4232"),
        ("p6-b200.48xlarge", UNKNOWN, UNKNOWN),
    ],
)
def test_the_quota_of_a_type(type_: str, spot: str, on_demand: str) -> None:
    assert quota_code(quota_class(type_), "spot") == spot
    assert quota_code(quota_class(type_), "on-demand") == on_demand
