"""Which interpreters can be sent to machines. One that was sent is booted in tests/cloud/test_boot.py."""

from __future__ import annotations

import asyncio
import stat
import tarfile
from pathlib import Path

import pytest

from airflow_provider_spotbatch.environment import interpreters, uv
from airflow_provider_spotbatch.environment.interpreters import interpreter_archive
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.job.errors import InvalidInput
from tests.unit.environment.test_machine_archives import OWN


def play_uv(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a program of ours in the place of uv."""
    program = folder / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(uv, "_binary", lambda: str(program))


def test_one_that_uv_manages_is_packed_without_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cpython-3.12.9-linux"
    for name in (
        "bin/python3.12",
        "lib/python3.12/os.py",
        "lib/python3.12/site-packages/pip.py",
        "lib/libx.so.1",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    play_uv(tmp_path, monkeypatch, f"echo {home}/bin/python3.12")
    archive = asyncio.run(interpreter_archive("3.12", OWN, str(tmp_path / "root")))
    with tarfile.open(archive.path) as packed:
        files = sorted(entry.name for entry in packed.getmembers() if entry.isfile())
    assert files == ["bin/python3.12", "lib/libx.so.1", "lib/python3.12/os.py"]


def test_where_none_can_be_had_the_cure_and_the_reason_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_uv(tmp_path, monkeypatch, "echo no network here; exit 2")
    with pytest.raises(InvalidInput, match=r"uv python install 3\.99[\s\S]*no network here"):
        asyncio.run(interpreter_archive("3.99", "arm64", str(tmp_path / "root")))


def test_a_copy_that_still_loads_from_the_old_place_is_not_sent(tmp_path: Path) -> None:
    """As interpreters do that find their shared library by an absolute path."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    (home / "lib").mkdir(parents=True)
    (copy / "bin").mkdir(parents=True)
    program = copy / "bin" / f"python{CURRENT_PYTHON}"
    program.write_text(f"#!/bin/sh\necho 7f00-7f01 r-xp {home}/lib/libpython.so\n")
    program.chmod(0o755)
    assert not interpreters._runs_alone(copy, CURRENT_PYTHON, home)
    program.write_text("#!/bin/sh\necho 7f00-7f01 r-xp /lib/libc.so\n")
    assert interpreters._runs_alone(copy, CURRENT_PYTHON, home)
