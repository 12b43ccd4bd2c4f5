"""An interpreter for machines whose image has none of the wanted minor version, staged from this side.

Only relocatable ones can be sent: those that uv manages (for any architecture; it downloads them, or finds
them where ``UV_PYTHON_INSTALL_MIRROR`` says), else this process's own where a copy of it runs at another
place without a file of the old one (conda's do; Debian's and most that were built from source do not).
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from airflow_provider_spotbatch.environment.build_once import BUILD_SECONDS
from airflow_provider_spotbatch.environment.built_archive import Archive, built_archive
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.environment.uv import last_lines, try_uv
from airflow_provider_spotbatch.job.errors import InvalidInput

_UV_ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}

_LEFT_OUT = (
    "__pycache__",
    "site-packages",
    "test",
    "idlelib",
    "ensurepip",
    "tkinter",
    "turtledemo",
    "config-*",
)
"""Of the standard library: what no worker needs (site-packages belong to the environments)."""

_LOOK = "import ctypes, hashlib, lzma, ssl, zlib; print(open('/proc/self/maps').read())"


async def interpreter_archive(
    python: str, architecture: str, root: str, *, seconds: float = BUILD_SECONDS
) -> Archive:
    """A relocatable CPython of minor version ``python``: ``bin/python3.12``, ``lib/``. Raises InvalidInput
    where none can be had, with the cure."""
    deadline = time.monotonic() + seconds

    async def fill(folder: str) -> None:
        managed = await _managed(python, architecture, root, deadline)
        if isinstance(managed, Path):
            await asyncio.to_thread(_copy, managed, folder, python)
        elif not (python == CURRENT_PYTHON and _is_own(architecture) and await _copied_own(folder, python)):
            raise InvalidInput(
                f"no Python {python} for {architecture} can be sent to machines. Run 'uv python install "
                f"{python}' where Airflow runs, or use an image that has Python {python}. uv says:\n{managed}"
            )

    return await built_archive(["interpreter", python, architecture], fill, root, deadline)


async def _managed(python: str, architecture: str, root: str, deadline: float) -> Path | str:
    """The folder of uv's interpreter, downloaded if need be; or why there is none."""
    if _is_own(architecture):
        code, output = await try_uv(
            ["python", "find", "--managed-python", "--no-python-downloads", "--no-project", python], 60.0
        )
        if code == 0:
            return await asyncio.to_thread(_home, output.splitlines()[-1].strip())
    kept = os.path.join(root, "pythons")
    wanted = f"cpython-{python}-linux-{_UV_ARCHITECTURES[architecture]}-gnu"
    code, output = await try_uv(
        ["python", "install", "--no-bin", "--install-dir", kept, wanted], deadline - time.monotonic()
    )
    found = await asyncio.to_thread(_newest, kept, wanted.replace(python, f"{python}.*"))
    return found if code == 0 and found else last_lines(output)


def _home(program: str) -> Path:
    return Path(program).resolve().parents[1]


def _newest(folder: str, pattern: str) -> Path | None:
    found = Path(folder).glob(pattern)
    return max(found, key=lambda path: int(path.name.split("-")[1].split(".")[2]), default=None)


def _is_own(architecture: str) -> bool:
    return platform.machine() == _UV_ARCHITECTURES[architecture]


async def _copied_own(folder: str, python: str) -> bool:
    """Copy this process's interpreter, if that runs elsewhere."""
    home = Path(sys.base_prefix)
    if home == Path("/usr"):  # the system's, and everything else of it
        return False
    await asyncio.to_thread(_copy, home, folder, python)
    if await asyncio.to_thread(_runs_alone, Path(folder), python, home):
        return True
    await asyncio.to_thread(shutil.rmtree, folder)
    return False


def _copy(home: Path, folder: str, python: str) -> None:
    """What of an installation is needed to run it."""
    programs, libraries = Path(folder, "bin"), Path(folder, "lib")
    programs.mkdir(parents=True)
    name = f"python{python}"
    shutil.copy2((home / "bin" / name).resolve(), programs / name)
    shutil.copytree(
        home / "lib" / name, libraries / name, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    for library in sorted((home / "lib").glob("lib*.so*")):
        shutil.copy2(library, libraries / library.name, follow_symlinks=False)


def _runs_alone(folder: Path, python: str, home: Path) -> bool:
    """Whether the copy loads nothing from where it was copied from."""
    done = subprocess.run(
        [folder / "bin" / f"python{python}", "-I", "-S", "-c", _LOOK],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.defpath},
    )
    return done.returncode == 0 and f"{home}{os.sep}" not in done.stdout
