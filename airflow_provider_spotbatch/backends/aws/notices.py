"""What EC2 tells a machine of its end: the instance metadata service, version 2."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.error
import urllib.request

POLL_SECONDS = 2.0
"""AWS recommends a look every 5 s; the notice comes two minutes ahead, if it comes."""

REQUEST_SECONDS = 2.0

TOKEN_SECONDS = 6 * 3600
"""The longest life of a token (EC2 User Guide, "Use IMDSv2")."""

ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""The SDKs' own variable for another address of the service."""

ACTION = "/latest/meta-data/spot/instance-action"
ADVICE = "/latest/meta-data/events/recommendations/rebalance"

log = logging.getLogger(__name__)


class Ec2Notices:
    """See :class:`~airflow_provider_spotbatch.backends.base.Notices`."""

    def __init__(self) -> None:
        self._service = Metadata(os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)

    async def wait(self) -> str:
        action = json.loads(await self._appeared(ACTION))
        what, when = action.get("action", "terminate"), action.get("time", "an unknown time")
        return f"EC2 takes this machine back: {what} at {when}"

    async def wait_for_advice(self) -> str:
        advice = json.loads(await self._appeared(ADVICE))
        since = advice.get("noticeTime", "an unknown time")
        return f"EC2 says since {since} that this machine is likely to be taken back"

    async def _appeared(self, path: str) -> str:
        silent = False
        while True:
            try:
                found = await asyncio.to_thread(self._service.read, path)
            except OSError as error:
                if not silent:
                    log.warning("the metadata service does not answer: %s", error)
                silent = True
            else:
                silent = False
                if found is not None:
                    return found
            await asyncio.sleep(POLL_SECONDS)


class Metadata:
    """The instance metadata service, with its tokens. Blocks."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._token: str | None = None

    def read(self, path: str) -> str | None:
        """What stands there; None if nothing does. Raises OSError where the service does not answer."""
        for _ in range(2):
            if self._token is None:
                self._token = self._ask(
                    "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                )
            try:
                return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401:
                    raise
                self._token = None  # it has expired
        raise OSError("the metadata service refuses its own tokens")

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(  # noqa: S310 - http, to the machine's own metadata
            self._endpoint + path, method=method, headers=headers
        )
        with self._open(request, timeout=REQUEST_SECONDS) as answer:
            text: str = answer.read().decode()
        return text
