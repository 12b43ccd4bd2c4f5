"""The few verbs of S3 that a store needs, served from memory, any of which can be denied."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass
class TinyS3:
    """A bucket. ``denied``: verbs that are refused, of write, read, list and delete; ``overwrites``: it
    does not know conditional writes."""

    endpoint: str = ""
    denied: set[str] = field(default_factory=set)
    overwrites: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Of the store ``s3://bucket/…``."""
        return {
            "endpoint": self.endpoint,
            "region": "eu-west-1",
            "access_key_id": "tests",
            "secret_access_key": "tests",
            "client_options": {"allow_http": True},
        }


@contextmanager
def tiny_s3() -> Iterator[TinyS3]:
    bucket = TinyS3()
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    bucket.endpoint = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: TinyS3

    def do_PUT(self) -> None:
        data, name = self._body(), self._name
        if "write" in self.bucket.denied:
            self._answer(403, DENIED)
        elif self.headers.get("If-None-Match") and name in self.bucket.objects and not self.bucket.overwrites:
            self._answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self.bucket.objects[name] = data
            self._answer(200, tag=data)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query["prefix"][0])
        elif "read" in self.bucket.denied:
            self._answer(403, DENIED)
        elif self._name not in self.bucket.objects:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")
        else:
            data = self.bucket.objects[self._name]
            self._answer(200, data, tag=data)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Several are deleted at once: S3 answers for each of them, also where it may not."""
        names = re.findall(r"<Key>(.*?)</Key>", self._body().decode())
        if "delete" in self.bucket.denied:
            rows = "".join(
                f"<Error><Key>{name}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
                for name in names
            )
        else:
            for name in names:
                self.bucket.objects.pop(name, None)
            rows = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        self._answer(200, f"<DeleteResult>{rows}</DeleteResult>")

    def do_DELETE(self) -> None:
        if "delete" in self.bucket.denied:
            self._answer(403, DENIED)
        else:
            self.bucket.objects.pop(self._name, None)
            self._answer(204)

    def _list(self, prefix: str) -> None:
        if "list" in self.bucket.denied:
            return self._answer(403, DENIED)
        rows = "".join(
            f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_tag(data)}</ETag><Size>{len(data)}</Size></Contents>"
            for name, data in sorted(self.bucket.objects.items())
            if name.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: str | bytes = b"", tag: bytes | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if tag is not None:
            self.send_header("ETag", _tag(tag))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
        """Nobody reads it."""


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
