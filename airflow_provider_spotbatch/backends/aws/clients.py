"""Calls of Amazon's SDK from an event loop: in threads, with time limits, every failure as a verdict."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_spotbatch.backends.aws.verdicts import is_about_credentials, verdict
from airflow_provider_spotbatch.job.errors import AccessDenied, BadRequest, CloudUnavailable

if TYPE_CHECKING:
    from boto3.session import Session  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

CONNECT_SECONDS = 5.0

READ_SECONDS = 60.0
"""One request: longer than SQS's longest poll (20 s) and than an instant fleet takes for its answer."""

ATTEMPTS = 4
"""Tries of one request, with the SDK's own backoff and jitter."""

ONCE_SECONDS = 30.0
"""A request that is asked no more than once: an instant fleet answers within seconds."""

THREADS = 32
"""Calls of one service at once in a process; more wait their turn. A service that does not answer holds back
no other: machines must end while queues hang."""

RENEW_SECONDS = 60.0
"""Credentials that were refused are looked up anew, but no more often than this."""

_pools: dict[tuple[int, str], ThreadPoolExecutor] = {}


def _threads(service: str) -> ThreadPoolExecutor:
    """The threads for a service in this process: those of a parent do not survive a fork."""
    name = (os.getpid(), service)
    if name not in _pools:
        for process, of in list(_pools):
            if process != name[0]:
                del _pools[process, of]
        _pools[name] = ThreadPoolExecutor(THREADS, thread_name_prefix=f"spotbatch-{service}")
    return _pools[name]


class ErrorCode(Exception):
    """An error code that the caller had named as one of the possible answers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Access:
    """How calls reach the account, as an Amazon connection says.

    ``session`` returns a boto3 session with credentials that refresh themselves; None: the SDK's own chain
    (environment, files, instance profile). ``verify``: of certificates, as boto3 takes it: None as usual,
    False not at all, or the path of a bundle; ``config``: proxies and the like, below our own limits of time.
    ``identity`` differs where the connection says something else.
    """

    session: Callable[[], Session] | None = None
    verify: bool | str | None = None
    config: Config | None = None
    identity: str = ""


class Clients:
    """The SDK's clients of one region. Making one does no I/O and imports nothing.

    ``endpoint_url``: of an emulator, for every service.
    """

    def __init__(self, region: str, endpoint_url: str = "", access: Access | None = None) -> None:
        self.region = region
        self.endpoint_url = endpoint_url
        self._access = access or Access()
        self._session: Session | None = None
        self._session_since = 0.0
        self._clients: dict[tuple[str, str, bool], Any] = {}
        self._lock = threading.Lock()

    async def call(
        self,
        service: str,
        operation: str,
        *,
        answers: Container[str] = (),
        region: str = "",
        until: float | None = None,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Call an operation by its API name (``CreateFleet``), in ``region`` where it is not everywhere.

        ``until``: of ``time.monotonic``; it goes out no more than once, and not at all after that moment,
        however long it had to wait for a thread or for credentials.
        Raises ErrorCode for the error codes in ``answers``, a verdict of ``job.errors`` for all others, and
        CloudUnavailable where nothing is known of the call's effect.
        """
        asking = partial(
            self.call_now, service, operation, answers=answers, region=region, until=until, **parameters
        )
        return await asyncio.get_running_loop().run_in_executor(_threads(service), asking)

    async def pages(
        self,
        service: str,
        operation: str,
        key: str,
        *,
        region: str = "",
        **parameters: Any,
    ) -> list[Any]:
        """What all pages of a listing hold under ``key``."""
        found: list[Any] = []
        token: dict[str, Any] = {}
        while True:
            page = await self.call(service, operation, region=region, **parameters, **token)
            found += page.get(key, [])
            if not page.get("NextToken"):
                return found
            token = {"NextToken": page["NextToken"]}

    def call_now(
        self,
        service: str,
        operation: str,
        *,
        answers: Container[str] = (),
        region: str = "",
        until: float | None = None,
        **parameters: Any,
    ) -> dict[str, Any]:
        """:meth:`call` for a thread: blocks."""
        try:
            return self._call(service, operation, answers, region, until, parameters)
        except _CredentialsRefused as refused:
            if not self._renew():
                raise refused.verdict from None
        try:
            return self._call(service, operation, answers, region, until, parameters)
        except _CredentialsRefused as refused:
            raise refused.verdict from None

    def use(self, access: Access) -> None:
        """From now on reach the account so: whoever read the connection last knows it best."""
        with self._lock:
            if access.identity != self._access.identity:
                self._session = None
                self._clients.clear()
            self._access = access

    def session_now(self) -> Session:
        """The session in use, opened when first asked for. Blocks."""
        with self._lock:
            return self._opened()

    def _call(
        self,
        service: str,
        operation: str,
        answers: Container[str],
        region: str,
        until: float | None,
        parameters: dict[str, Any],
    ) -> dict[str, Any]:
        from botocore import xform_name  # type: ignore[import-untyped]
        from botocore.exceptions import (  # type: ignore[import-untyped]
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            HTTPClientError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
        )
        from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]

        try:
            client = self._client(service, region, once=until is not None)
            if until is not None and time.monotonic() >= until:
                raise CloudUnavailable(f"{service}:{operation} was not asked: it was too late for it")
            answer: dict[str, Any] = getattr(client, xform_name(operation))(**parameters)
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if code in answers:
                raise ErrorCode(code, message) from None
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            told = verdict(code, message, f"{service}:{operation}", http_status=status)
            if is_about_credentials(code):
                raise _CredentialsRefused(told) from None
            raise told from error
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise AccessDenied(
                f"there are no credentials for {service}:{operation}: {error}",
                remedy="Name an Amazon connection in 'aws_conn_id', or give this process credentials",
            ) from error
        except (HTTPClientError, ResponseParserError) as error:  # the latter: a page of some gateway
            raise CloudUnavailable(f"{service}:{operation} got no answer: {error}") from error
        except ParamValidationError as error:
            raise BadRequest(f"{service}:{operation} takes no such thing: {error}") from error
        except BotoCoreError as error:
            raise CloudUnavailable(f"{service}:{operation} could not be asked: {error}") from error
        return answer

    def _client(self, service: str, region: str, once: bool) -> Any:
        """Clients may be shared by threads, but not made by several at once."""
        from botocore.config import Config

        with self._lock:
            place = (service, region or self.region, once)
            if place not in self._clients:
                limits = Config(
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=ONCE_SECONDS if once else READ_SECONDS,
                    retries={"mode": "standard", "total_max_attempts": 1 if once else ATTEMPTS},
                    max_pool_connections=THREADS,
                )
                self._clients[place] = self._opened().client(
                    service,
                    region_name=place[1],
                    endpoint_url=self.endpoint_url or None,
                    verify=self._access.verify,
                    config=self._access.config.merge(limits) if self._access.config else limits,
                )
            return self._clients[place]

    def _opened(self) -> Session:
        if self._session is None:
            if self._access.session is None:
                import boto3  # type: ignore[import-untyped]

                self._session = boto3.Session(region_name=self.region)
            else:
                self._session = self._access.session()
            self._session_since = time.monotonic()
        return self._session

    def _renew(self) -> bool:
        """Forget a session whose credentials were refused; False if it is too young for that to help."""
        with self._lock:
            if self._session is None or time.monotonic() - self._session_since < RENEW_SECONDS:
                return False
            self._session = None
            self._clients.clear()
            return True


class _CredentialsRefused(Exception):
    """The credentials themselves were refused; they may have been replaced meanwhile."""

    def __init__(self, told: Exception) -> None:
        super().__init__(str(told))
        self.verdict = told
