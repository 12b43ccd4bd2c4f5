"""Calls to the cloud's API and answers, as the front's handlers see them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.cloud.cloudbox import ec2_protocol

_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")
_S3_OPERATIONS = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}

STATUSES = {
    "RequestLimitExceeded": 503,
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "InternalError": 500,
    "InsufficientInstanceCapacity": 500,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AuthFailure": 401,
    "InvalidClientTokenId": 403,
    "AccessDeniedException": 400,
    "DryRunOperation": 412,
}
"""HTTP status of an error code; 400 for others.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html and each service's own."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One request. Service and region are those that it was signed for; "" if it is not signed."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def region(self) -> str:
        return self._scope[0]

    @cached_property
    def service(self) -> str:
        return self._scope[1]

    @cached_property
    def _scope(self) -> tuple[str, str]:
        scope = _SCOPE.search(self.headers.get("authorization", ""))
        return (scope.group(1), scope.group(2)) if scope else ("", "")

    @cached_property
    def operation(self) -> str:
        """Name of the operation as the SDK's documentation spells it; "" where it cannot be told."""
        if target := self.headers.get("x-amz-target"):
            return target.rpartition(".")[2]
        if self.service == "s3":
            return self._s3_operation()
        if self.service in ("ec2", "iam", "sts"):
            return parse_qs(self.body.decode()).get("Action", [""])[0]
        return ""

    def _s3_operation(self) -> str:
        parts = urlsplit(self.path)
        if "list-type=2" in parts.query:
            return "ListObjectsV2"
        if self.method == "POST" and parts.query.startswith("delete"):
            return "DeleteObjects"
        return _S3_OPERATIONS.get(self.method, "") if parts.path.strip("/").count("/") else ""

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The parameters, by the names that the SDK gives them."""
        if self.service == "ec2":
            return ec2_protocol.decode(self.operation, self.body)
        parameters: dict[str, Any] = json.loads(self.body or b"{}")
        return parameters

    def answer(self, result: dict[str, Any]) -> Answer:
        """Success, in the service's own form."""
        if self.service == "ec2":
            return Answer(200, ec2_protocol.encode(self.operation, result), {"Content-Type": "text/xml"})
        return Answer(200, json.dumps(result).encode(), {"Content-Type": _json_type(self)})

    def refuse(self, code: str, message: str) -> Answer:
        """An error, in the service's own form."""
        status = STATUSES.get(code, 400)
        if "x-amz-target" in self.headers:
            return self._json_refusal(status, code, message)
        inner = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
        if self.service == "ec2":
            request = f"<RequestID>{uuid.uuid4()}</RequestID>"
            text = f"<Response><Errors><Error>{inner}</Error></Errors>{request}</Response>"
        elif self.service == "s3":
            text = f"<Error>{inner}<RequestId>{uuid.uuid4()}</RequestId></Error>"
        else:
            text = f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error></ErrorResponse>"
        return Answer(status, text.encode(), {"Content-Type": "text/xml"})

    def _json_refusal(self, status: int, code: str, message: str) -> Answer:
        """SQS once spoke XML: clients read the codes of that time from a header of their own."""
        body = json.dumps({"__type": code.rpartition(".")[2], "message": message}).encode()
        compatible = {"x-amzn-query-error": f"{code};Sender"} if self.service == "sqs" else {}
        return Answer(status, body, {"Content-Type": _json_type(self), **compatible})


Forward = Callable[[Call], Answer]
Handler = Callable[[Call, Forward], Answer]
"""Answers a call, by itself or by what moto says to it."""
Refuse = Callable[[Call], "Answer | None"]
"""Looks at every call before its handler does: an answer ends it, None lets it pass."""


def _json_type(call: Call) -> str:
    return call.headers.get("content-type", "application/x-amz-json-1.0")
