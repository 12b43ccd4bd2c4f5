"""The HTTP server before moto: handlers answer the calls that they know, the rest goes through."""

from __future__ import annotations

import http.client
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cloud.cloudbox.calls import Answer, Call, Handler, Refuse

PORT = 5000
SECONDS = 100.0
"""For one answer of moto's; long polls take 20."""

_PIECE = 256 * 1024
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "date", "server", "keep-alive"}


class Front:
    """Serves on ``address``; ``handlers`` are by service and operation. ``first`` are asked before them,
    about every call: they answer, or None lets it pass."""

    def __init__(
        self,
        address: str,
        moto_port: int,
        handlers: Mapping[tuple[str, str], Handler],
        first: Iterable[Refuse] = (),
    ) -> None:
        self.url = f"http://{address}:{PORT}"
        self._server = _Server((address, PORT), _Requests)
        self._server.handlers = handlers
        self._server.first = tuple(first)
        self._server.moto_port = moto_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # connections that clients keep alive are not waited for
    request_queue_size = 128
    handlers: Mapping[tuple[str, str], Handler]
    first: tuple[Refuse, ...]
    moto_port: int

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone before its answer is no fault of ours: machines and drivers are killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Requests(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = _PIECE

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.command, self.path, headers, self._body(headers))
        handler = self.server.handlers.get((call.service, call.operation))
        try:
            refusal = next(filter(None, (refuse(call) for refuse in self.server.first)), None)
            if refusal is not None:
                self._send(refusal)
            elif handler is not None:
                self._send(handler(call, self._forward))
            else:
                self._pass_through(call)
        except ConnectionError:
            self.close_connection = True  # the client gave up, or moto ended with the box
        except Exception:
            self._send(call.refuse("InternalError", f"in the box itself: {traceback.format_exc()}"))

    def handle_expect_100(self) -> bool:
        """At once: the client waits for it, a second, before it sends its body."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _ask(self, call: Call) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.moto_port, timeout=SECONDS)
        connection.putrequest(call.method, call.path, skip_host=True, skip_accept_encoding=True)
        for name, value in _our_headers(call).items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(call.body)))
        connection.endheaders(call.body)
        return connection, connection.getresponse()

    def _forward(self, call: Call) -> Answer:
        connection, response = self._ask(call)
        try:
            return Answer(response.status, response.read(), _their_headers(response))
        finally:
            connection.close()

    def _pass_through(self, call: Call) -> None:
        connection, response = self._ask(call)
        try:
            self.send_response(response.status)
            for name, value in _their_headers(response).items():
                self.send_header(name, value)
            length = response.getheader("Content-Length")
            if length is None:  # its end is that of the connection
                self.send_header("Connection", "close")
                self.close_connection = True
            else:
                self.send_header("Content-Length", length)
            self.end_headers()
            while piece := response.read(_PIECE):
                self.wfile.write(piece)
            self.wfile.flush()
        finally:
            connection.close()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        pass


def _our_headers(call: Call) -> dict[str, str]:
    """Those of the client, Host too: moto builds the addresses of queues from it."""
    gone = ("connection", "transfer-encoding", "content-length", "expect")
    headers = {name: value for name, value in call.headers.items() if name not in gone}
    if call.service == "s3" and headers.get("content-type") == "application/x-www-form-urlencoded":
        headers["content-type"] = (
            "binary/octet-stream"  # moto takes such a body for a form: it stores nothing
        )
    return headers


def _their_headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name: value for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS}
