"""Grants: what a user writes, the policy it makes, and what is read back from it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.data_policy import Grants, data_policy, grants_of
from airflow_provider_spotbatch.job.errors import InvalidInput

SECRET = "arn:aws:secretsmanager:us-east-2:123456789012:secret:token-AbCdEf"
PARAMETER = "arn:aws:ssm:us-east-2:123456789012:parameter/scans/token"


def resources(policy: dict[str, Any], action: str) -> set[str]:
    return {
        resource
        for statement in policy["Statement"]
        if action in statement["Action"]
        for resource in statement["Resource"]
    }


def test_a_place_is_read_with_all_below_it() -> None:
    policy = data_policy(Grants.of(["s3://data/scans/"], [], []), "aws")
    assert resources(policy, "s3:GetObject") == {"arn:aws:s3:::data/scans", "arn:aws:s3:::data/scans/*"}
    assert resources(policy, "s3:ListBucket") == {"arn:aws:s3:::data"}
    assert resources(policy, "s3:PutObject") == set()


def test_a_bucket_is_read_as_a_whole() -> None:
    policy = data_policy(Grants.of(["s3://data"], [], []), "aws")
    assert resources(policy, "s3:GetObject") == {"arn:aws:s3:::data/*"}


def test_who_may_write_may_read_there_and_delete_nothing() -> None:
    policy = data_policy(Grants.of([], ["s3://out/a"], []), "aws")
    assert resources(policy, "s3:PutObject") == resources(policy, "s3:GetObject")
    assert not any("Delete" in action for each in policy["Statement"] for action in each["Action"])


def test_secrets_are_read_by_their_own_arn() -> None:
    policy = data_policy(Grants.of([], [], [SECRET, PARAMETER]), "aws")
    assert resources(policy, "secretsmanager:GetSecretValue") == {SECRET}
    assert resources(policy, "ssm:GetParameter") == {PARAMETER}


@pytest.mark.parametrize(
    "grants",
    [
        Grants(),
        Grants.of(["s3://data", "s3://scans/2024"], [], []),
        Grants.of(["s3://data/a.csv"], ["s3://out", "s3://data/b"], [SECRET, PARAMETER]),
    ],
)
def test_grants_are_read_back_from_their_policy(grants: Grants) -> None:
    assert grants_of(data_policy(grants, "aws")) == (grants, [])


def test_grants_are_added_and_taken_away() -> None:
    one, other = Grants.of(["s3://one"], ["s3://out"], []), Grants.of(["s3://two"], [], [SECRET])
    assert (one | other) - one == other
    assert not one - one


def test_statements_of_others_stay() -> None:
    theirs = {"Sid": "Theirs", "Effect": "Deny", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::x/*"]}
    policy = data_policy(Grants.of(["s3://data"], [], []), "aws", [theirs])
    grants, others = grants_of(policy)
    assert (grants.read, others) == ({"s3://data"}, [theirs])
    assert data_policy(grants, "aws", others) == policy


@pytest.mark.parametrize(
    "place", ["data", "s3://", "s3://x", "s3://data/*", "s3://data/a?b", "gs://data", "s3://D"]
)
def test_what_is_no_place_is_refused_by_name(place: str) -> None:
    with pytest.raises(InvalidInput, match="no place in S3") as refused:
        Grants.of([place], [], [])
    assert repr(place) in str(refused.value)


@pytest.mark.parametrize("arn", ["token", f"{SECRET}*", "arn:aws:iam::123456789012:role/x", "*"])
def test_what_is_no_secret_is_refused_by_name(arn: str) -> None:
    with pytest.raises(InvalidInput, match="no secret") as refused:
        Grants.of([], [], [arn])
    assert repr(arn) in str(refused.value)


def test_a_policy_that_no_grant_wrote_is_not_guessed_at() -> None:
    stored = {"Statement": [{"Sid": "ReadData", "Action": ["s3:GetObject"], "Resource": ["*"]}]}
    with pytest.raises(InvalidInput, match="no grant wrote"):
        grants_of(stored)
