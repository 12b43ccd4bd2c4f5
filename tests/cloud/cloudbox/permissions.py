"""Whether a caller may do what it asks for: by the IAM policies of its user or role, and nothing else.

moto enforces policies too, but knows resources of S3, SQS and IAM alone, and few conditions; here every
statement counts with its resources and conditions, as IAM evaluates identity policies
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.cloud.cloudbox.calls import Answer, Call
from tests.cloud.cloudbox.moto import ACCOUNT, Moto
from tests.cloud.cloudbox.rights import Right, rights_for

Statement = Mapping[str, Any]

_KEY = re.compile(r"Credential=([^/]+)/")
_FREE = {"sts:GetCallerIdentity"}
"""Needs no permission (STS API reference)."""


class Permissions:
    """Asked about every call before it is answered. The box's own key may do everything."""

    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        self.enforced = False

    def refuse(self, call: Call) -> Answer | None:
        if not self.enforced:
            return None
        found = _KEY.search(call.headers.get("authorization", ""))
        if found is None or found[1] == self._moto.key_id:
            return None
        who = self._moto.role_of(found[1]) or self._user_of(found[1])
        if who is None:
            return call.refuse(
                "AuthFailure" if call.service == "ec2" else "InvalidClientTokenId", "unknown key"
            )
        statements = self._statements(*who)
        for right in rights_for(call, self._moto):
            if right.action not in _FREE and not is_allowed(statements, right):
                code = "UnauthorizedOperation" if call.service == "ec2" else "AccessDenied"
                return call.refuse(code, _told(who, right))
        return None

    def _user_of(self, key: str) -> tuple[str, str] | None:
        iam = self._moto.client("iam", "us-east-1")
        try:
            return "user", iam.get_access_key_last_used(AccessKeyId=key)["UserName"]
        except iam.exceptions.ClientError:
            return None

    def _statements(self, kind: str, name: str) -> list[Statement]:
        """Of all policies, inline and attached, of a user or role."""
        iam = self._moto.client("iam", "us-east-1")
        whose = {f"{kind.title()}Name": name}
        inline = getattr(iam, f"list_{kind}_policies")(**whose)["PolicyNames"]
        documents = [
            getattr(iam, f"get_{kind}_policy")(**whose, PolicyName=each)["PolicyDocument"] for each in inline
        ]
        for each in getattr(iam, f"list_attached_{kind}_policies")(**whose)["AttachedPolicies"]:
            arn = each["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            stored = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
            documents.append(json.loads(stored) if isinstance(stored, str) else stored)
        return [statement for document in documents for statement in _listed(document["Statement"])]


def is_allowed(statements: Iterable[Statement], right: Right) -> bool:
    """A matching Deny wins over any Allow; without an Allow the answer is no."""
    effects = {each["Effect"] for each in statements if _matches(each, right)}
    return effects == {"Allow"}


def _matches(statement: Statement, right: Right) -> bool:
    return (
        any(_like(right.action.lower(), each.lower()) for each in _listed(statement["Action"]))
        and any(_like(right.resource, each) for each in _listed(statement["Resource"]))
        and all(
            _holds(operator, key, _listed(wanted), right.context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _holds(operator: str, key: str, wanted: list[str], context: Mapping[str, str]) -> bool:
    compare = _OPERATORS[operator.removesuffix("IfExists")]
    if key not in context:
        return operator.endswith("IfExists")
    return any(compare(context[key], each) for each in wanted)


def _like(value: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(value, pattern.replace("[", "[[]"))


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "ArnEquals": _like,
    "ArnLike": _like,
    "StringEquals": str.__eq__,
    "StringLike": _like,
}
"""Those that policies here use (IAM User Guide, "Condition operators"): another one is an error."""


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _told(who: tuple[str, str], right: Right) -> str:
    kind, name = who
    arn = f"iam::{ACCOUNT}:user/{name}" if kind == "user" else f"sts::{ACCOUNT}:assumed-role/{name}/machine"
    return (
        f"User: arn:aws:{arn} is not authorized to perform: {right.action} on resource: {right.resource} "
        f"because no identity-based policy allows the {right.action} action"
    )
