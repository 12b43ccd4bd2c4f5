"""A machine's instance metadata service: version 2 only, at 169.254.169.254 in its own network.

Paths and answers: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html;
tokens: …/configuring-instance-metadata-service.html; notices: …/spot-instance-termination-notices.html
and …/rebalance-recommendations.html.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_TTL = range(1, 21601)
"""Seconds that a token may live: six hours at most."""


@dataclass
class Metadata:
    """What the service tells. ``values`` are by path below ``latest/``; ``credentials`` is asked each
    time they are wanted, and None means that the machine has no role."""

    values: dict[str, str]
    user_data: bytes
    role: str | None
    credentials: Callable[[], dict[str, str]]
    hop_limit: int = 1
    _tokens: dict[str, float] = field(default_factory=dict)

    def notice(self, action: str, at: float) -> None:
        """The interruption notice: both of its paths."""
        when = _stamp(at)
        self.values["meta-data/spot/instance-action"] = json.dumps({"action": action, "time": when})
        self.values["meta-data/spot/termination-time"] = when

    def recommend_rebalance(self, at: float) -> None:
        self.values["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": _stamp(at)})

    def grant_token(self, seconds: int) -> str:
        token = secrets.token_urlsafe(40)
        self._tokens[token] = time.monotonic() + seconds
        return token

    def accepts(self, token: str | None) -> bool:
        return token is not None and time.monotonic() < self._tokens.get(token, 0.0)

    def answer(self, path: str) -> bytes | None:
        """The body at a path below ``latest/``; None is 404."""
        path = path.strip("/")
        if path == "user-data":
            return self.user_data or None
        if path.startswith("meta-data/iam/"):
            return self._iam(path)
        if path in self.values:
            return self.values[path].encode()
        return self._listing(path)

    def _iam(self, path: str) -> bytes | None:
        if self.role is None:
            return None
        if path == "meta-data/iam/security-credentials":
            return self.role.encode()
        if path == f"meta-data/iam/security-credentials/{self.role}":
            return json.dumps({"Code": "Success", "Type": "AWS-HMAC", **self.credentials()}).encode()
        return None

    def _listing(self, folder: str) -> bytes | None:
        below = [name[len(folder) + 1 :] for name in self.values if name.startswith(f"{folder}/")]
        names = {name.split("/")[0] + ("/" if "/" in name else "") for name in below}
        return "\n".join(sorted(names)).encode() or None


class MetadataServer:
    """Serves one machine's metadata on a socket in its network namespace."""

    def __init__(self, listener: socket.socket, metadata: Metadata) -> None:
        # An answer that goes through more routers than allowed is dropped: containers are one away.
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, metadata.hop_limit)
        self._server = _Server(listener, metadata)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, metadata: Metadata) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.metadata = metadata

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone before its answer is no fault of ours: machines and drivers are killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    disable_nagle_algorithm = True
    timeout = 60

    def do_PUT(self) -> None:
        # Headers that a proxy adds: such a request may come from elsewhere.
        if self.path != "/latest/api/token" or "X-Forwarded-For" in self.headers:
            return self._send(HTTPStatus.FORBIDDEN)
        asked = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not asked.isdigit() or int(asked) not in TOKEN_TTL:
            return self._send(HTTPStatus.BAD_REQUEST)
        token = self.server.metadata.grant_token(int(asked)).encode()
        self._send(HTTPStatus.OK, token, {"X-aws-ec2-metadata-token-ttl-seconds": asked})

    def do_GET(self) -> None:
        if not self.server.metadata.accepts(self.headers.get("X-aws-ec2-metadata-token")):
            return self._send(HTTPStatus.UNAUTHORIZED)
        _, _, path = self.path.lstrip("/").partition("/")  # "latest" or the date of a version
        body = self.server.metadata.answer(path)
        self._send(HTTPStatus.OK, body) if body is not None else self._send(HTTPStatus.NOT_FOUND)

    def _send(self, status: HTTPStatus, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
