"""Each missing permission is named, with what would cure it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.base import Check
from airflow_provider_spotbatch.backends.local_checks import check_root
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.control.checks import check_settings, check_store
from tests.support.tiny_s3 import TinyS3, tiny_s3

VERBS = ["write", "read", "list", "create only once", "delete"]


@pytest.fixture(scope="module")
def server() -> Iterator[TinyS3]:
    with tiny_s3() as bucket:
        yield bucket


@pytest.fixture
def bucket(server: TinyS3) -> TinyS3:
    server.denied, server.overwrites = set(), False
    server.objects.clear()
    return server


def checks_of(bucket: TinyS3) -> dict[str, Check]:
    checks = asyncio.run(check_store(open_store("s3://bucket/prefix", bucket.options)))
    return {check.name.removeprefix("store: "): check for check in checks}


def test_a_store_that_works_passes_and_is_left_as_it_was(bucket: TinyS3) -> None:
    checks = checks_of(bucket)
    assert list(checks) == VERBS
    assert all(check.ok and not check.remedy for check in checks.values())
    assert bucket.objects == {}


@pytest.mark.parametrize(
    ("denied", "failed", "permission"),
    [
        ("write", ["write", "create only once"], "s3:PutObject"),
        ("read", ["read"], "s3:GetObject"),
        ("list", ["list"], "s3:ListBucket"),
        ("delete", ["delete"], "s3:DeleteObject"),
    ],
)
def test_a_denied_verb_names_its_permission_and_no_other_check_fails(
    bucket: TinyS3, denied: str, failed: list[str], permission: str
) -> None:
    bucket.denied = {denied}
    checks = checks_of(bucket)
    assert list(checks) == VERBS
    assert [name for name, check in checks.items() if not check.ok] == failed
    for name in failed:
        assert permission in checks[name].remedy
        assert "s3://bucket/prefix" in checks[name].found


def test_a_store_without_conditional_writes_is_refused(bucket: TinyS3) -> None:
    bucket.overwrites = True
    failed = [check for check in checks_of(bucket).values() if not check.ok]
    assert [check.name for check in failed] == ["store: create only once"]
    assert "If-None-Match" in failed[0].remedy


def test_a_folder_that_is_none_fails_once_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("a file where a folder must be")
    [check] = asyncio.run(check_store(store))
    assert (check.name, check.ok) == ("store: write", False)
    assert "is a folder that this user may write" in check.remedy


def test_a_store_that_cannot_be_made_is_one_failed_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(
        "site", "local", b"k", store=f"file://{tmp_path}/file", options={"path": str(tmp_path)}
    )
    checks = asyncio.run(check_settings(settings))
    assert [check.name for check in checks] == ["connection", "key", "store"]
    assert not checks[-1].ok
    assert "cannot be made" in checks[-1].found


def test_a_root_that_others_may_look_into_is_named_with_its_cure(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    failed = [check for check in check_root(str(tmp_path)) if not check.ok]
    assert [check.name for check in failed] == ["folder: private"]
    assert failed[0].remedy == f"chmod 700 {tmp_path}"


def test_an_item_that_fits_no_machine_is_a_failed_check() -> None:
    from airflow_provider_spotbatch.backends.memory import MemoryBackend, MemoryCloud
    from airflow_provider_spotbatch.job.resources import Resources

    cloud = MemoryCloud("small", largest=Resources(cpus=0.5, memory_gb=1))
    settings = Settings("small", "memory", b"k", options={"cloud": "small"})
    assert MemoryBackend(settings).cloud is cloud
    checks = asyncio.run(check_settings(settings))
    assert [check.name for check in checks if not check.ok] == ["machines"]
    assert "does not fit" in checks[-1].found


def test_no_check_tells_the_key() -> None:
    settings = Settings("site", "memory", b"very-secret", options={"cloud": "secretive"})
    assert "very-secret" not in repr(asyncio.run(check_settings(settings)))
