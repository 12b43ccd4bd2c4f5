from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from botocore.config import Config
from botocore.exceptions import ConnectTimeoutError, NoCredentialsError, ParamValidationError
from botocore.parsers import ResponseParserError

from airflow_provider_spotbatch.backends.aws import clients as clients_module
from airflow_provider_spotbatch.backends.aws.clients import Access, Clients, ErrorCode
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    CloudUnavailable,
    SpotBatchError,
    Throttled,
)
from tests.unit.backends.aws.sdk import Sdk


def asked(clients: Clients, *answers: str) -> object:
    return asyncio.run(clients.call("sqs", "DeleteQueue", answers=answers, QueueUrl="u"))


def test_a_code_that_the_caller_knows_is_an_answer() -> None:
    with pytest.raises(ErrorCode) as caught:
        asked(Sdk(DeleteQueue="QueueDoesNotExist").clients(), "QueueDoesNotExist")
    assert caught.value.code == "QueueDoesNotExist"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("RequestThrottled", Throttled),
        (ConnectTimeoutError(endpoint_url="https://sqs"), CloudUnavailable),
        (ResponseParserError("Unable to parse response, invalid XML received: b'<html>'"), CloudUnavailable),
        (NoCredentialsError(), AccessDenied),
        (ParamValidationError(report="Invalid type for parameter Value, value: 7"), BadRequest),
    ],
)
def test_every_other_failure_is_a_verdict(failure: object, kind: type[SpotBatchError]) -> None:
    with pytest.raises(kind):
        asked(Sdk(DeleteQueue=failure).clients())


def test_credentials_that_were_replaced_are_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "RENEW_SECONDS", 0.0)
    sdk = Sdk(DeleteQueue=["ExpiredToken", {"done": True}])
    assert asked(sdk.clients()) == {"done": True}
    assert sdk.sessions == 2


def test_credentials_that_stay_refused_are_told() -> None:
    sdk = Sdk(DeleteQueue="ExpiredToken")
    with pytest.raises(AccessDenied, match="ExpiredToken"):
        asked(sdk.clients())
    assert sdk.sessions == 1


def test_certificates_and_proxies_are_the_connections_and_time_limits_our_own() -> None:
    sdk = Sdk()
    theirs = Config(proxies={"https": "http://proxy:3128"}, read_timeout=5)
    asked(Clients("us-east-2", access=Access(lambda: sdk, verify="/etc/ca.pem", config=theirs)))
    [made] = sdk.made
    assert (made["verify"], made["config"].proxies) == ("/etc/ca.pem", theirs.proxies)
    assert made["config"].read_timeout == clients_module.READ_SECONDS


def test_a_service_that_hangs_holds_back_no_other() -> None:
    """More queues that do not answer than there are threads for them, and machines that must end."""
    answer = threading.Event()
    sdk = Sdk(DeleteQueue=lambda **_: {"in_time": answer.wait(20)}, TerminateInstances={"ended": True})

    async def main() -> None:
        clients = sdk.clients()
        hanging = [
            asyncio.ensure_future(clients.call("sqs", "DeleteQueue"))
            for _ in range(clients_module.THREADS + 8)
        ]
        try:
            ending = clients.call("ec2", "TerminateInstances")
            assert await asyncio.wait_for(ending, 10) == {"ended": True}
        finally:
            answer.set()
            await asyncio.gather(*hanging)

    asyncio.run(main())


def test_all_pages_are_read() -> None:
    pages = [{"Found": [1, 2], "NextToken": "more"}, {"Found": [3]}]
    sdk = Sdk(DescribeInstances=pages)
    assert asyncio.run(sdk.clients().pages("ec2", "DescribeInstances", "Found")) == [1, 2, 3]
    assert sdk.asked("DescribeInstances") == [{}, {"NextToken": "more"}]
