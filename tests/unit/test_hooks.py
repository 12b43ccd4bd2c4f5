from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources

Connect = Callable[..., SpotBatchHook]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def make(password: str | None = None, conn_type: str = "spotbatch", **extra: Any) -> SpotBatchHook:
        stored = {"conn_type": conn_type, "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SITE", json.dumps(stored))
        return SpotBatchHook("site")

    return make


def test_every_field_is_read_as_text_or_as_json(connect: Connect, tmp_path: Path) -> None:
    written = connect(
        "secret",
        path=str(tmp_path),
        instances="3",
        store="s3://bucket/prefix",
        store_options='{"region": "eu-west-1"}',
        old_keys="one\n two \n",
        max_instances=7,
        max_usd_per_hour="2.5",
        budget_usd=10,
        idle_timeout="90",
        orphan_after=600,
        retention_days="30",
        tags={"team": "film"},
    )
    assert written.get_settings() == Settings(
        conn_id="site",
        backend="local",
        key=b"secret",
        old_keys=(b"one", b"two"),
        store="s3://bucket/prefix",
        store_options={"region": "eu-west-1"},
        max_instances=7,
        max_usd_per_hour=2.5,
        budget_usd=10,
        idle_timeout=90.0,
        orphan_after=600,
        retention_days=30.0,
        options={"path": str(tmp_path), "instances": 3, "tags": {"team": "film"}},
    )


@pytest.mark.parametrize(
    ("written", "store"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket//", "s3://bucket"),
        ("file:///", "file:///"),
        ("memory://", "memory://"),
    ],
)
def test_a_store_has_one_name_with_and_without_a_slash_at_its_end(
    connect: Connect, written: str, store: str
) -> None:
    assert connect("secret", store=written).get_settings().store == store


def test_empty_fields_of_the_form_are_left_at_their_defaults(connect: Connect) -> None:
    settings = connect("secret", store="", max_instances=None, idle_timeout="").get_settings()
    assert settings == Settings(conn_id="site", backend="local", key=b"secret")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"max_instance": 3}, "unknown fields in its extra: max_instance"),
        ({"backend": "vax"}, "not 'vax'"),
        ({"max_instances": 2.5}, "'max_instances' must be a whole number"),
        ({"max_instances": "many"}, "'max_instances' must be a number above 0"),
        ({"budget_usd": -1}, "'budget_usd' must be a number above 0"),
        ({"idle_timeout": True}, "'idle_timeout' must be a number above 0"),
        ({"retention_days": 0}, "'retention_days' must be a number above 0"),
        ({"idle_timeout": 44}, "'idle_timeout' must be at least 45 s"),
        ({"store": 5}, "'store' must be text"),
        ({"store_options": "region=x"}, "'store_options' must be a JSON object"),
        ({"tags": "[1]"}, "'tags' must be a JSON object"),
        ({"old_keys": [1]}, "'old_keys' must be a list of texts"),
        ({"rehearse": "often"}, "connection 'site': 'rehearse' must be a rate for each machine"),
        ({"rehearse": "2/h", "backend": "memory"}, "'rehearse' interrupts machines of the local backend"),
    ],
)
def test_a_wrong_field_is_named(connect: Connect, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        connect("secret", **extra).get_settings()


def test_a_connection_of_another_type_is_refused(connect: Connect) -> None:
    with pytest.raises(InvalidInput, match="of type 'http'"):
        connect(conn_type="http").get_settings()


def test_the_local_backend_makes_its_own_key_and_keeps_it(connect: Connect, tmp_path: Path) -> None:
    hook = connect(path=str(tmp_path / "root"))
    key = hook.get_settings().key
    assert len(key) == 32
    assert hook.get_settings().key == key
    assert (tmp_path / "root" / "key").stat().st_mode & 0o777 == 0o600


def test_secrets_are_not_shown(connect: Connect) -> None:
    settings = connect("very-secret", old_keys=["older-secret"]).get_settings()
    assert "secret" not in repr(settings)


def test_the_event_loop_reads_the_same(connect: Connect) -> None:
    hook = connect("secret", max_instances=3)
    assert asyncio.run(hook.aget_settings()) == hook.get_settings()


def test_only_the_default_connection_may_be_missing() -> None:
    with pytest.raises(InvalidInput, match="'elsewhere' does not exist"):
        SpotBatchHook("elsewhere").get_settings()
    assert SpotBatchHook().get_settings().backend == "local"
    assert asyncio.run(SpotBatchHook().aget_settings()) == SpotBatchHook().get_settings()


def test_the_fallback_to_local_is_said_aloud() -> None:
    said: list[str] = []
    assert SpotBatchHook().settings_for(Policy(), said.append).backend == "local"
    assert len(said) == 1
    assert "'spotbatch_default' does not exist" in said[0]


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (Policy(purchase="on-demand"), "purchase='on-demand'"),
        (Policy(budget_usd=5.0), "budget_usd=5.0"),
        (Policy(resources=Resources(gpus=2)), "2 GPUs"),
    ],
)
def test_no_fallback_where_a_cloud_was_meant(policy: Policy, asked: str) -> None:
    with pytest.raises(InvalidInput, match=asked):
        SpotBatchHook().settings_for(policy, print)


def test_a_site_can_forbid_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SPOTBATCH__LOCAL_FALLBACK", "False")
    with pytest.raises(InvalidInput, match="local_fallback is False"):
        SpotBatchHook().get_settings()


def test_the_connection_test_writes_to_the_store(connect: Connect, tmp_path: Path) -> None:
    works, message = connect(path=str(tmp_path)).test_connection()
    assert (works, str(tmp_path) in message) == (True, True)
    assert "store: create only once" in message
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_the_connection_test_tells_the_first_failure_and_its_cure(connect: Connect, tmp_path: Path) -> None:
    hook = connect(path=str(tmp_path))
    assert hook.test_connection()[0]
    tmp_path.chmod(0o755)
    works, message = hook.test_connection()
    assert not works
    assert message.startswith("folder: private: ")
    assert message.endswith(f"chmod 700 {tmp_path}")


def test_the_connection_test_says_what_is_wrong(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a folder must be")
    works, message = connect(path=str(tmp_path)).test_connection()
    assert not works
    assert "cannot be made" in message
