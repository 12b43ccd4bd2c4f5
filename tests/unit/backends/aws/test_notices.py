"""The instance metadata service, played by a server of this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_provider_spotbatch.backends.aws import notices
from airflow_provider_spotbatch.backends.aws.notices import ACTION, ADVICE, Ec2Notices, Metadata


class Service(ThreadingHTTPServer):
    """``documents``: path → text; ``tokens``: those that it gave out and still takes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.documents: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.given = 0
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Requests(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
        self.server.given += 1
        token = f"token-{self.server.given}"
        self.server.tokens.add(token)
        self._send(200, token)

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] not in self.server.tokens:
            self._send(401, "")
        elif self.path in self.server.documents:
            self._send(200, self.server.documents[self.path])
        else:
            self._send(404, "")
        self.server.asked.set()

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with Service() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # never for the machine's own metadata
        monkeypatch.setattr(notices, "POLL_SECONDS", 0.02)
        yield server
        server.shutdown()


def test_what_is_not_there_is_none(service: Service) -> None:
    assert Metadata(service.url).read(ACTION) is None


def test_an_expired_token_is_renewed(service: Service) -> None:
    metadata = Metadata(service.url)
    assert metadata.read(ACTION) is None
    service.tokens.clear()
    service.documents[ACTION] = "{}"
    assert metadata.read(ACTION) == "{}"
    assert service.given == 2


def test_a_token_serves_many_looks(service: Service) -> None:
    metadata = Metadata(service.url)
    for _ in range(5):
        metadata.read(ACTION)
    assert service.given == 1


def test_the_notice_is_heard_when_it_appears(service: Service) -> None:
    async def main() -> str:
        hearing = asyncio.ensure_future(Ec2Notices().wait())
        await asyncio.to_thread(service.asked.wait, 20)
        assert not hearing.done()
        service.documents[ACTION] = json.dumps({"action": "terminate", "time": "2026-01-01T00:00:00Z"})
        return await asyncio.wait_for(hearing, 20)

    assert asyncio.run(main()) == "EC2 takes this machine back: terminate at 2026-01-01T00:00:00Z"


def test_advice_is_no_notice(service: Service) -> None:
    async def main() -> str:
        service.documents[ADVICE] = json.dumps({"noticeTime": "2026-01-01T00:00:00Z"})
        own = Ec2Notices()
        hearing = asyncio.ensure_future(own.wait())
        advice = await asyncio.wait_for(own.wait_for_advice(), 20)
        assert not hearing.done()
        hearing.cancel()
        return advice

    assert "likely to be taken back" in asyncio.run(main())


def test_a_service_that_is_silent_for_a_while_is_asked_again(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        own = Ec2Notices()
        asked = own._service._ask
        failures = iter(range(3))

        def sometimes(method: str, path: str, headers: dict[str, str]) -> str:
            if next(failures, None) is not None:
                raise ConnectionRefusedError("not yet")
            return asked(method, path, headers)

        own._service._ask = sometimes  # type: ignore[method-assign]
        service.documents[ACTION] = "{}"
        await asyncio.wait_for(own.wait(), 20)

    asyncio.run(main())
    assert len([line for line in caplog.records if "does not answer" in line.message]) == 1
