"""The boot program's requests to S3. Its whole is run on machines of the box: tests/cloud/test_boot.py."""

from __future__ import annotations

import ast
import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws import boot_program
from airflow_provider_spotbatch.backends.aws.boot_program import BootFailed, Store, signed

CREDENTIALS = {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": "a/session+token="}
OLDEST_IMAGE = (3, 9)
"""Amazon Linux 2023's."""


def test_the_oldest_image_can_read_it() -> None:
    ast.parse(Path(boot_program.__file__).read_text(), feature_version=OLDEST_IMAGE)


def test_it_needs_the_standard_library_alone() -> None:
    tree = ast.parse(Path(boot_program.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("body", [b"", b"a body"])
@pytest.mark.parametrize("path", ["/prefix/blobs/abc", "/p%20x/~a-b_c.d/i-1.json"])
def test_it_signs_as_the_sdk_does(body: bytes, path: str) -> None:
    from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
    from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
    from botocore.credentials import Credentials  # type: ignore[import-untyped]

    ours = signed("PUT", "bucket.s3.us-east-2.amazonaws.com", path, body, "us-east-2", CREDENTIALS, 1.7e9)
    moment = ours["x-amz-date"]
    request = AWSRequest("PUT", f"https://bucket.s3.us-east-2.amazonaws.com{path}", data=body)
    keys = Credentials(CREDENTIALS["AccessKeyId"], CREDENTIALS["SecretAccessKey"], CREDENTIALS["Token"])
    auth = S3SigV4Auth(keys, "s3", "us-east-2")
    request.context["timestamp"] = moment
    request.headers["X-Amz-Date"] = moment
    request.headers["X-Amz-Security-Token"] = CREDENTIALS["Token"]
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert ours["Authorization"].endswith(f"Signature={signature}")


class Bucket(ThreadingHTTPServer):
    """Serves one object and does to requests what it is told: ``faults``, one for each."""

    daemon_threads = True

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = data
        self.faults: list[Any] = []
        self.ranges: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked[len("bytes=") : -1]) if asked else 0
        fault = self.server.faults.pop(0) if self.server.faults else None
        body = self.server.data[start:]
        if isinstance(fault, tuple):
            status, body = fault
            self.send_response(status)
        else:
            self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:fault] if isinstance(fault, int) else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket(bytes(range(256)) * 4096) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(boot_program, "pause", lambda failures: None)
    place = {"url": f"http://127.0.0.1:{bucket.server_port}/bucket/prefix", "region": "us-east-2"}
    return Store(place, lambda: CREDENTIALS)


def fetched(store: Store, bucket: Bucket, path: Path, deadline: float = float("inf")) -> bytes:
    store.fetch("blobs/x", str(path), hashlib.sha256(bucket.data).hexdigest(), deadline)
    return path.read_bytes()


def test_a_broken_download_goes_on_where_it_stopped(store: Store, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults = [1000, 5000]
    assert fetched(store, bucket, tmp_path / "x") == bucket.data
    assert bucket.ranges == [None, "bytes=1000-", "bytes=6000-"]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_is_busy_is_asked_again(
    store: Store, bucket: Bucket, tmp_path: Path, status: int
) -> None:
    bucket.faults = [(status, b"SlowDown")] * (boot_program.ATTEMPTS - 1)
    assert fetched(store, bucket, tmp_path / "x") == bucket.data


def test_it_is_not_asked_for_ever(store: Store, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults = [(503, b"")] * 100
    with pytest.raises(BootFailed, match="Machines need a route to S3"):
        fetched(store, bucket, tmp_path / "x")
    assert len(bucket.ranges) == boot_program.ATTEMPTS


def test_time_for_a_download_is_limited_though_it_goes_on(
    store: Store, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.faults = [1] * 1000
    with pytest.raises(BootFailed, match="cannot be fetched"):
        fetched(store, bucket, tmp_path / "x", deadline=0.0)
    assert len(bucket.ranges) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((403, b"AccessDenied"), "allow s3:GetObject and s3:ListBucket to the role"),
        ((301, b"PermanentRedirect"), r"check the region of the store \(us-east-2\)"),
        ((404, b"<Code>NoSuchBucket</Code>"), "NoSuchBucket"),
        ((404, b"<Code>NoSuchKey</Code>"), "blobs/x is missing in the store"),
    ],
)
def test_a_refusal_is_told_at_once_with_its_cure(
    store: Store, bucket: Bucket, tmp_path: Path, fault: tuple[int, bytes], message: str
) -> None:
    bucket.faults = [fault]
    with pytest.raises(BootFailed, match=message):
        fetched(store, bucket, tmp_path / "x")
    assert len(bucket.ranges) == 1


# --- which archives a machine takes ----------------------------------------------------------------------


class Orders:
    """Orders for both architectures, and what the machine fetched by them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, kernel: str, own_python: str) -> None:
        self.fetched: dict[str, str] = {}
        image = folder / "image"
        image.mkdir()
        (image / f"python{own_python}").symlink_to(sys.executable)
        monkeypatch.setattr(boot_program, "ROOT", str(folder / "root"))
        monkeypatch.setattr(boot_program.platform, "machine", lambda: kernel)
        monkeypatch.setattr(boot_program, "PROGRAMS", str(image))
        monkeypatch.setattr(boot_program, "make_user", lambda: None)
        monkeypatch.setattr(boot_program, "check_interpreter", lambda python: None)
        monkeypatch.setattr(boot_program, "fetch_all", lambda store, wanted: self.fetched.update(wanted))

    def prepare(self, **archives: dict[str, str]) -> str:
        orders = {"archives": archives, "python_version": "3.12"}
        return boot_program.prepare(orders, None)  # type: ignore[arg-type]


X86 = {"agent": "agent of x86", "packages": "packages of x86", "interpreter": "interpreter of x86"}
ARM = {"agent": "agent of arm", "packages": "packages of arm", "interpreter": "interpreter of arm"}


@pytest.mark.parametrize(("kernel", "whose"), [("x86_64", "x86"), ("aarch64", "arm")])
def test_a_machine_takes_the_archives_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, whose: str
) -> None:
    """As Ubuntu 24.04, whose own Python is the wanted one."""
    orders = Orders(monkeypatch, tmp_path, kernel, own_python="3.12")
    orders.prepare(x86_64=X86, arm64=ARM)
    assert orders.fetched == {"agent": f"agent of {whose}", "packages": f"packages of {whose}"}


@pytest.mark.parametrize(("kernel", "whose"), [("x86_64", "x86"), ("aarch64", "arm")])
def test_an_image_with_another_python_takes_the_interpreter_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, whose: str
) -> None:
    """As Amazon Linux 2023, whose own Python is 3.9."""
    orders = Orders(monkeypatch, tmp_path, kernel, own_python="3.9")
    orders.prepare(x86_64=X86, arm64=ARM)
    assert orders.fetched["python"] == f"interpreter of {whose}"
    for part in ("agent", "packages"):
        link = tmp_path / "root" / part / "bin" / "python"
        assert str(link.readlink()) == str(tmp_path / "root/python/bin/python3.12")


def test_a_machine_whose_architecture_has_no_archives_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    orders = Orders(monkeypatch, tmp_path, "aarch64", own_python="3.12")
    with pytest.raises(BootFailed, match="no environment for machines of arm64, only for x86_64"):
        orders.prepare(x86_64=X86)
