"""Archives for bare machines, built by the real uv from distributions made here: no index is asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.aws.boot_program import make_environment
from airflow_provider_spotbatch.environment.built_archive import Archive
from airflow_provider_spotbatch.environment.machine_archives import check_python, packages_archive
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.job.errors import InvalidInput

OWN = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]

BUILDS_A_WHEEL = """
import os
def build_wheel(folder, config_settings=None, metadata_directory=None):
    from make_wheel import make_wheel
    return make_wheel(folder, {name!r}, {tag!r})
"""


def make_wheel(folder: str, name: str, tag: str) -> str:
    """A wheel with a module of the distribution's name and a command of the same; its file name."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": b"VALUE = 42\ndef main():\n    import sys\n    print(VALUE, sys.executable)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-run = {name}:main\n".encode(),
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(f"{folder}/{name}-1.0-{tag}.whl", "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return f"{name}-1.0-{tag}.whl"


def wheel(folder: Path, tag: str = "py3-none-any", name: str = "demo") -> str:
    """The requirement line of a wheel."""
    return f"{name} @ {(folder / make_wheel(str(folder), name, tag)).as_uri()}"


def source(folder: Path, tag: str, name: str = "demo") -> str:
    """The requirement line of a source distribution that is built into a wheel of this tag."""
    import inspect

    helper = "import base64, hashlib, zipfile\n" + inspect.getsource(make_wheel)
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": (
            f'[project]\nname = "{name}"\nversion = "1.0"\n'
            '[build-system]\nrequires = []\nbuild-backend = "builds"\nbackend-path = ["."]\n'
        ),
        "builds.py": BUILDS_A_WHEEL.format(name=name, tag=tag),
        "make_wheel.py": helper,
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name} @ {path.as_uri()}"


def built(root: Path, *requirements: str, architecture: str = OWN) -> Archive:
    return asyncio.run(packages_archive(requirements, (), CURRENT_PYTHON, architecture, str(root)))


def unpacked(archive: Archive, folder: Path) -> Path:
    with tarfile.open(archive.path) as packed:
        packed.extractall(folder, filter="fully_trusted")
    return folder


def test_it_is_laid_out_as_a_virtual_environment_and_compiled(tmp_path: Path) -> None:
    archive = built(tmp_path / "root", wheel(tmp_path))
    with tarfile.open(archive.path) as packed:
        names = packed.getnames()
    site = f"lib/python{CURRENT_PYTHON}/site-packages"
    assert f"{site}/demo.py" in names
    assert f"{site}/__pycache__/demo.{sys.implementation.cache_tag}.pyc" in names
    assert "bin/demo-run" in names
    assert not [name for name in names if name.endswith(("requirements.txt", "constraints.txt", ".lock"))]


def test_its_bytes_are_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    given = wheel(tmp_path)
    one, two = built(tmp_path / "one", given), built(tmp_path / "somewhere" / "else", given)
    data = Path(one.path).read_bytes()
    assert data == Path(two.path).read_bytes()
    assert one.sha256 == two.sha256 == hashlib.sha256(data).hexdigest()


def test_nothing_in_it_tells_where_it_was_built(tmp_path: Path) -> None:
    folder = unpacked(built(tmp_path / "root", wheel(tmp_path)), tmp_path / "unpacked")
    for path in folder.rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path


def test_the_machine_makes_an_environment_of_it_whose_commands_work(tmp_path: Path) -> None:
    folder = unpacked(built(tmp_path / "root", wheel(tmp_path)), tmp_path / "machine")
    make_environment(str(folder), sys.executable)
    ran = subprocess.run([folder / "bin/demo-run"], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == f"42 {folder}/bin/python\n"


def test_it_is_built_once_for_many_who_ask(tmp_path: Path) -> None:
    given = [wheel(tmp_path)]

    async def both() -> list[Archive]:
        asked = packages_archive(given, (), CURRENT_PYTHON, OWN, str(tmp_path / "root"))
        again = packages_archive(given, (), CURRENT_PYTHON, OWN, str(tmp_path / "root"))
        return list(await asyncio.gather(asked, again))

    one, two = asyncio.run(both())
    assert one == two


def test_a_kept_one_needs_nothing_of_what_it_was_made_of(tmp_path: Path) -> None:
    given = wheel(tmp_path)
    first = built(tmp_path / "root", given)
    (tmp_path / "demo-1.0-py3-none-any.whl").unlink()
    assert built(tmp_path / "root", given) == first


@pytest.mark.parametrize("architecture", ["x86_64", "arm64"])
def test_wheels_are_the_machines_and_not_this_ones(tmp_path: Path, architecture: str) -> None:
    tag = "py3-none-manylinux_2_17_aarch64"
    if architecture == "arm64":
        assert built(tmp_path / "root", wheel(tmp_path, tag), architecture="arm64")
    else:
        with pytest.raises(InvalidInput, match=r"for x86_64 machines .* versions that have wheels"):
            built(tmp_path / "root", wheel(tmp_path, tag), architecture="x86_64")


@pytest.mark.parametrize("architecture", ["x86_64", "arm64"])
def test_pure_source_is_built_here_for_all(tmp_path: Path, architecture: str) -> None:
    archive = built(tmp_path / "root", source(tmp_path, "py3-none-any"), architecture=architecture)
    with tarfile.open(archive.path) as packed:
        assert f"lib/python{CURRENT_PYTHON}/site-packages/demo.py" in packed.getnames()


def test_what_must_be_compiled_is_refused_by_name_with_the_cure(tmp_path: Path) -> None:
    given = source(tmp_path, f"py3-none-linux_{platform.machine()}")
    with pytest.raises(InvalidInput, match=r"demo 1\.0 must be compiled[\s\S]*a version that has wheels"):
        built(tmp_path / "root", given)


def test_what_cannot_be_had_is_told_in_the_words_of_uv(tmp_path: Path) -> None:
    missing = f"demo @ {(tmp_path / 'gone-1.0-py3-none-any.whl').as_uri()}"
    with pytest.raises(InvalidInput, match=r"environment\.packages could not be installed[\s\S]*gone-1\.0"):
        built(tmp_path / "root", missing)
    assert not list((tmp_path / "root").rglob("*.tar.gz"))


def test_the_agent_runs_on_its_oldest_python_and_newer() -> None:
    check_python("3.10")
    check_python("3.14")
    with pytest.raises(InvalidInput, match=r"need 3\.10 or newer"):
        check_python("3.9")
