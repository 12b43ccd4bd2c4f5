"""Where a command looks, with which key, and how it says what is wrong with that."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_spotbatch.cli import main, place
from airflow_provider_spotbatch.job.errors import InvalidInput, SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Unchecked, key_id

KEY = bytes(range(32))
GENERATION = Generation("job", 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)
    return tmp_path


def opened(root: Path) -> place.Place:
    return asyncio.run(place.open_place(argparse.Namespace(store=f"file://{root}/store")))


def test_a_local_stores_key_is_the_file_beside_it(root: Path) -> None:
    keyring = opened(root).keyring

    assert not isinstance(keyring.signer(GENERATION, key_id(KEY)), Unchecked)
    with pytest.raises(SignatureMismatch, match="old_keys"):
        keyring.signer(GENERATION, "of another")


def test_the_key_of_the_environment_comes_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTBATCH_KEY", "a password")

    opened(root).keyring.signer(GENERATION, key_id(b"a password"))
    with pytest.raises(SignatureMismatch):
        opened(root).keyring.signer(GENERATION, key_id(KEY))


@pytest.mark.parametrize("spoil", ["mode", "text", "folder", "missing"])
def test_without_a_good_key_it_says_that_nothing_was_checked(
    root: Path, capsys: pytest.CaptureFixture[str], spoil: str
) -> None:
    key = root / "key"
    if spoil == "mode":
        key.chmod(0o644)
    elif spoil == "text":
        key.write_text("no hex")
    else:
        key.unlink()
        if spoil == "folder":
            key.mkdir()

    keyring = opened(root).keyring

    assert isinstance(keyring.signer(GENERATION, "any"), Unchecked)
    told = capsys.readouterr().err
    assert "signatures were not checked" in told
    assert KEY.hex() not in told


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no store"):
        opened(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_command_that_needs_a_connection_refuses_a_store_alone(root: Path) -> None:
    with pytest.raises(InvalidInput, match="--conn-id"):
        _ = opened(root).site


@pytest.mark.parametrize("uri", ["ftp://host/path", "s3://", "no-uri", "file://relative"])
def test_a_wrong_uri_is_one_clear_line(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--store", uri]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "Traceback" not in shown.err


def test_an_empty_store_is_fine_and_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--store", f"file://{root}/store"]) == 0
    assert "there are no jobs" in capsys.readouterr().err
    assert main(["show", "any", "--store", f"file://{root}/store"]) == 1
    assert "there are no jobs" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["jobs", "--limit", "0"], ["show"]])
def test_wrong_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: spotbatch" in capsys.readouterr().err


def test_a_store_is_looked_at_without_airflow(root: Path) -> None:
    program = (  # ended as the command ends itself: see cli.program
        "import os, sys; from airflow_provider_spotbatch.cli import main\n"
        f"code = main(['jobs', '--store', 'file://{root}/store'])\n"
        "os._exit(3 if 'airflow' in sys.modules else code)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("uri", ["store", "/srv/store", "", "http://host/store", "C://store"])
def test_what_is_no_store_is_refused_at_once(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--store", uri]) == 1
    assert "must be a URI: file:///…, s3://bucket/prefix or gs://bucket/prefix" in capsys.readouterr().err


def test_what_the_amazon_provider_logs_stays_off_standard_output(tmp_path: Path) -> None:
    extra = {
        "backend": "aws",
        "region": "us-east-2",
        "store": "s3://a-bucket",
        "instance_profile": "machines",
    }
    connection = json.dumps({"conn_type": "spotbatch", "password": "key", "extra": extra})
    program = (
        "from airflow_provider_spotbatch.cli import place\n"
        "place.read_connection('spotbatch_default').options['session']()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_SPOTBATCH_DEFAULT": connection},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout == ""
