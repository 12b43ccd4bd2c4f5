"""The local workers' interpreter, with packages installed by the real uv from files made here."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON, local_interpreter
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.spec import WorkerEnvironment


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """The requirement line of a distribution that exists nowhere else."""
    path = tmp_path / "spotbatch_demo-1.0-py3-none-any.whl"
    files = {
        "spotbatch_demo.py": b"VALUE = 42\n",
        "spotbatch_demo-1.0.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: spotbatch-demo\nVersion: 1.0\n"
        ),
        "spotbatch_demo-1.0.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for name, data in files.items()
    )
    files["spotbatch_demo-1.0.dist-info/RECORD"] = (
        record + "spotbatch_demo-1.0.dist-info/RECORD,,\n"
    ).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return f"spotbatch-demo @ {path.as_uri()}"


def interpreter(root: Path, **environment: object) -> str:
    given = WorkerEnvironment(**{"python": CURRENT_PYTHON, **environment})  # type: ignore[arg-type]
    return asyncio.run(local_interpreter(given, str(root)))


def printed(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_without_packages_it_is_the_interpreter_at_hand(tmp_path: Path) -> None:
    assert interpreter(tmp_path) == sys.executable
    assert list(tmp_path.iterdir()) == []


def test_packages_are_installed_once_and_apart(tmp_path: Path, wheel: str) -> None:
    root = tmp_path / "environments"
    python = interpreter(root, packages=(wheel,))
    assert printed(python, "import spotbatch_demo; print(spotbatch_demo.VALUE)") == "42\n"
    assert printed(python, "import sys; print('%d.%d' % sys.version_info[:2])").strip() == CURRENT_PYTHON
    built = Path(python).stat().st_ctime_ns
    assert interpreter(root, packages=(wheel,)) == python
    assert Path(python).stat().st_ctime_ns == built
    assert [path.suffix for path in sorted(root.iterdir())] == ["", ".lock"]


def test_builds_at_the_same_time_share_one(tmp_path: Path, wheel: str) -> None:
    async def both() -> list[str]:
        given = WorkerEnvironment(CURRENT_PYTHON, packages=(wheel,))
        return await asyncio.gather(*(local_interpreter(given, str(tmp_path / "e")) for _ in range(2)))

    one, two = asyncio.run(both())
    assert one == two
    assert len([path for path in (tmp_path / "e").iterdir() if path.is_dir()]) == 1


def test_what_cannot_be_installed_is_told_in_the_words_of_uv(tmp_path: Path) -> None:
    missing = f"spotbatch-demo @ {(tmp_path / 'gone-1.0-py3-none-any.whl').as_uri()}"
    with pytest.raises(
        InvalidInput, match=r"could not be installed; the last lines of uv pip:\n[\s\S]*gone-1\.0"
    ):
        interpreter(tmp_path / "e", packages=(missing,))
    assert [path.suffix for path in (tmp_path / "e").iterdir()] == [".lock"]


def test_a_build_by_another_process_is_not_waited_for_without_end(tmp_path: Path, wheel: str) -> None:
    given = WorkerEnvironment(CURRENT_PYTHON, packages=(wheel,))

    root = tmp_path / "e"
    shutil.rmtree(Path(asyncio.run(local_interpreter(given, str(root)))).parents[1])
    (lock,) = root.glob("*.lock")
    with open(lock) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="another process has been building"):
            asyncio.run(local_interpreter(given, str(root), seconds=0.5))


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"secrets": {"TOKEN": "arn:x"}}, "secrets are resolved by a cloud's machines"),
        ({"setup": "apt-get install x"}, "runs as root on a machine of its own"),
        ({"python": "3.99"}, r"this machine has no Python 3\.99"),
    ],
)
def test_what_only_a_machine_of_its_own_can_have_is_refused(
    environment: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        interpreter(tmp_path, **environment)
