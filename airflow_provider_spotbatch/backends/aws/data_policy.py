"""What machines may do with the user's own data: a policy of its own, which ``spotbatch grant`` edits. Pure.

The policy itself is where the grants are kept: they are read back from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.aws.policies import Policy, allow, policy
from airflow_provider_spotbatch.job.errors import InvalidInput

_PLACE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.\-]{2,62})(?:/(?P<prefix>[^*?$]*))?")
_OBJECTS = re.compile(r"arn:[a-z\-]+:s3:::(?P<place>[^*]+?)(?:/\*)?")
_SECRET = re.compile(
    r"arn:[a-z\-]+:(?:secretsmanager:[a-z0-9\-]+:\d{12}:secret:|ssm:[a-z0-9\-]+:\d{12}:parameter/)"
    r"[^*?$\s]+"
)

_READ, _WRITE, _LIST, _SECRETS, _PARAMETERS = (
    "ReadData",
    "WriteData",
    "ListData",
    "ReadSecrets",
    "ReadParameters",
)
_OURS = (_READ, _WRITE, _LIST, _SECRETS, _PARAMETERS)


@dataclass(frozen=True)
class Grants:
    """``read`` and ``write``: places as ``s3://bucket/prefix``, with all that is below; who may write may
    also read there, and nobody may delete. ``secrets``: ARNs in Secrets Manager and of SSM parameters."""

    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()

    @classmethod
    def of(cls, read: Iterable[str], write: Iterable[str], secrets: Iterable[str]) -> Grants:
        """Grants as a user writes them. Raises InvalidInput naming what is wrong."""
        return cls(
            frozenset(map(_checked_place, read)),
            frozenset(map(_checked_place, write)),
            frozenset(map(_checked_secret, secrets)),
        )

    def __or__(self, other: Grants) -> Grants:
        return Grants(self.read | other.read, self.write | other.write, self.secrets | other.secrets)

    def __sub__(self, other: Grants) -> Grants:
        return Grants(self.read - other.read, self.write - other.write, self.secrets - other.secrets)

    def __bool__(self) -> bool:
        return bool(self.read or self.write or self.secrets)


def data_policy(grants: Grants, partition: str, others: Iterable[Mapping[str, Any]] = ()) -> Policy:
    """The policy of these grants. ``others``: statements that somebody else added to it, which stay."""
    places = grants.read | grants.write
    parameters = {arn for arn in grants.secrets if ":ssm:" in arn}
    statements: list[Mapping[str, Any]] = [
        *others,
        *_statement(_READ, ("s3:GetObject",), _objects(places, partition)),
        *_statement(_WRITE, ("s3:AbortMultipartUpload", "s3:PutObject"), _objects(grants.write, partition)),
        # Without a condition on s3:prefix: asked for an object that is not there, S3 would answer 403.
        *_statement(_LIST, ("s3:ListBucket",), (_bucket(place, partition) for place in places)),
        *_statement(_SECRETS, ("secretsmanager:GetSecretValue",), grants.secrets - parameters),
        *_statement(_PARAMETERS, ("ssm:GetParameter",), parameters),
    ]
    return policy(*statements)


def grants_of(stored: Mapping[str, Any]) -> tuple[Grants, list[dict[str, Any]]]:
    """What a stored policy grants, and the statements in it that are not of ``spotbatch grant``."""
    ours: dict[str, set[str]] = {sid: set() for sid in _OURS}
    others: list[dict[str, Any]] = []
    for statement in stored.get("Statement", []):
        if statement.get("Sid") in ours:
            ours[statement["Sid"]].update(statement["Resource"])
        else:
            others.append(statement)
    write = frozenset(map(_place_of, ours[_WRITE]))
    grants = Grants(
        read=frozenset(map(_place_of, ours[_READ])) - write,
        write=write,
        secrets=frozenset(ours[_SECRETS] | ours[_PARAMETERS]),
    )
    return grants, others


def _statement(sid: str, actions: Iterable[str], resources: Iterable[str]) -> list[dict[str, Any]]:
    found = sorted(set(resources))
    return [allow(sid, actions, found)] if found else []


def _checked_place(uri: str) -> str:
    """The place in one spelling: a prefix stands for a folder and has no slash at its end."""
    found = _PLACE.fullmatch(uri)
    if found is None:
        raise InvalidInput(f"{uri!r} is no place in S3: write s3://bucket/folder, without wildcards")
    prefix = (found["prefix"] or "").strip("/")
    return f"s3://{found['bucket']}/{prefix}".rstrip("/")


def _checked_secret(arn: str) -> str:
    if not _SECRET.fullmatch(arn):
        raise InvalidInput(
            f"{arn!r} is no secret: write the ARN of one in Secrets Manager "
            "(arn:aws:secretsmanager:…:secret:…) or of an SSM parameter (arn:aws:ssm:…:parameter/…), "
            "without wildcards"
        )
    return arn


def _objects(places: Iterable[str], partition: str) -> Iterator[str]:
    """ARNs of all that is below the places, and of the objects that bear their names."""
    for place in places:
        arn = f"arn:{partition}:s3:::{place[len('s3://') :]}"
        yield f"{arn}/*"
        if "/" in place[len("s3://") :]:
            yield arn


def _bucket(place: str, partition: str) -> str:
    return f"arn:{partition}:s3:::{place[len('s3://') :].split('/')[0]}"


def _place_of(arn: str) -> str:
    found = _OBJECTS.fullmatch(arn)
    if found is None:
        raise InvalidInput(f"the data policy of the machines holds {arn!r}, which no grant wrote: correct it")
    return f"s3://{found['place']}"
