"""A stand-in for Amazon's SDK at its edge: scripted answers, recorded calls. For tables of error codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from airflow_provider_spotbatch.backends.aws.clients import Access, Clients


class Sdk:
    """``answers``: operation → answers in turn (the last one again and again): a dict, an error code to be
    raised, an exception, or a function of the call's parameters."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = {
            operation: list(its) if isinstance(its, list) else [its] for operation, its in answers.items()
        }
        self.sessions = 0
        self.made: list[dict[str, Any]] = []
        """How each client was asked for."""

    def clients(self) -> Clients:
        return Clients("us-east-2", access=Access(self._session))

    def asked(self, operation: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == operation]

    def _session(self) -> Any:
        self.sessions += 1
        return self

    def client(self, service: str, **how: Any) -> Any:
        """As boto3's session does."""
        self.made.append(how)
        return _Client(self)

    def answer(self, operation: str, parameters: dict[str, Any]) -> Any:
        self.calls.append((operation, parameters))
        script = self._answers.get(operation, [{}])
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, str):
            raise ClientError({"Error": {"Code": answer, "Message": "as scripted"}}, operation)
        if isinstance(answer, Exception):
            raise answer
        return answer(**parameters) if callable(answer) else answer


class _Client:
    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk

    def __getattr__(self, method: str) -> Callable[..., Any]:
        operation = next(name for name in OPERATIONS if xform_name(name) == method)
        return lambda **parameters: self._sdk.answer(operation, parameters)


OPERATIONS = (
    "ChangeMessageVisibility",
    "CreateFleet",
    "CreateLaunchTemplate",
    "CreateQueue",
    "DeleteLaunchTemplate",
    "DeleteMessage",
    "DeleteQueue",
    "DescribeImages",
    "DescribeInstances",
    "DescribeLaunchTemplates",
    "DescribeSpotPriceHistory",
    "DescribeSubnets",
    "GetCallerIdentity",
    "GetParameter",
    "GetProducts",
    "GetQueueUrl",
    "GetSecretValue",
    "GetServiceQuota",
    "ListQueues",
    "ReceiveMessage",
    "RunInstances",
    "SendMessageBatch",
    "TerminateInstances",
)
