from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.secrets import secret_value
from airflow_provider_spotbatch.job.errors import SpotBatchError
from tests.unit.backends.aws.sdk import Sdk

SECRET = "arn:aws:secretsmanager:us-east-2:123456789012:secret:db-AbCdEf"
PARAMETER = "arn:aws:ssm:us-east-2:123456789012:parameter/db/limit"


def resolved(reference: str, **answers: Any) -> str:
    return asyncio.run(secret_value(Sdk(**answers).clients(), reference))


def test_a_secret_and_a_parameter_are_read_as_text() -> None:
    assert resolved(SECRET, GetSecretValue=lambda SecretId: {"SecretString": SecretId[-6:]}) == "AbCdEf"
    answer = {"Parameter": {"Value": "12"}}
    assert resolved(PARAMETER, GetParameter=lambda Name, WithDecryption: answer) == "12"


@pytest.mark.parametrize(
    ("reference", "answers", "message"),
    [
        (SECRET, {"GetSecretValue": "AccessDeniedException"}, f"spotbatch grant aws --secret {SECRET}"),
        (PARAMETER, {"GetParameter": "AccessDeniedException"}, f"spotbatch grant aws --secret {PARAMETER}"),
        (SECRET, {"GetSecretValue": "ResourceNotFoundException"}, f"{SECRET} does not exist"),
        (PARAMETER, {"GetParameter": "ParameterNotFound"}, f"{PARAMETER} does not exist"),
        (SECRET, {"GetSecretValue": {"SecretBinary": b"hidden"}}, "a variable can only hold text"),
        ("db/password", {}, "is no ARN of a secret"),
        ("arn:aws:s3:::bucket", {}, "is no ARN of a secret"),
    ],
)
def test_what_cannot_be_read_names_the_reference_and_the_cure(
    reference: str, answers: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpotBatchError) as caught:
        resolved(reference, **answers)
    told = f"{caught.value} {getattr(caught.value, 'remedy', '')}"
    assert reference in told
    assert message in told
    assert "hidden" not in told
