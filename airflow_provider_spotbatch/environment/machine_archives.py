"""Archives that make bare machines able to work: packages, resolved and installed for the machines' platform
on the Airflow side, so that no machine needs a package index.

An archive is laid out as a virtual environment without its interpreter: ``bin/`` and
``lib/python3.12/site-packages/``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import airflow_provider_spotbatch
from airflow_provider_spotbatch.environment.build_once import BUILD_SECONDS
from airflow_provider_spotbatch.environment.built_archive import Archive, built_archive
from airflow_provider_spotbatch.environment.installed import installed_requirement, installed_versions
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON, write_lines
from airflow_provider_spotbatch.environment.uv import last_lines, run_uv, try_uv
from airflow_provider_spotbatch.job.errors import InvalidInput

PLATFORMS = {"x86_64": "x86_64-manylinux_2_34", "arm64": "aarch64-manylinux_2_34"}
"""uv's platforms by architecture. glibc 2.34 is the oldest among the images that machines may boot: Amazon
Linux 2023 has 2.34, Ubuntu 22.04 2.35, Debian 12 2.36."""

OLDEST_PYTHON = (3, 10)
"""Of the agent, which runs on the workers' interpreter."""

_AGENT_PARTS = ("agent", "backends", "job")
_AGENT_DISTRIBUTIONS = ("cloudpickle", "obstore")
_OF_THIS_MACHINE = ("direct_url.json", "uv_cache.json")
"""Files of a dist-info folder that tell where and when something was installed from."""


def check_python(python: str) -> None:
    """Raise InvalidInput for a minor version that no agent runs on."""
    if tuple(map(int, python.split("."))) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise InvalidInput(f"environment.python={python!r}: machines of a cloud need {oldest} or newer")


async def packages_archive(
    requirements: Sequence[str],
    constraints: Sequence[str],
    python: str,
    architecture: str,
    root: str,
    *,
    seconds: float = BUILD_SECONDS,
) -> Archive:
    """The workers' packages for machines of ``architecture`` with Python ``python``, built below ``root`` if
    need be.

    ``constraints`` are versions to take if a distribution is needed at all. Wheels are used where there are
    any; source distributions of pure Python are built here. Raises InvalidInput, with uv's last lines, for
    what cannot be resolved, and by name for what would have to be compiled.
    """
    deadline = time.monotonic() + seconds

    async def fill(folder: str) -> None:
        target = _site_packages(folder, python)
        await _install(requirements, constraints, python, architecture, target, deadline)
        await asyncio.to_thread(_finish_install, folder, target)
        await _compile(folder, target, python)

    identity = ["packages", list(requirements), list(constraints), python, architecture]
    return await built_archive(identity, fill, root, deadline)


async def agent_archive(
    distributions: Sequence[str],
    only: Mapping[str, Sequence[str]],
    python: str,
    architecture: str,
    root: str,
    *,
    seconds: float = BUILD_SECONDS,
) -> Archive:
    """The agent for such machines, with what it imports, at this side's versions.

    ``distributions``: those that the backend's own code imports there; ``only``: folder below
    site-packages → patterns of the entries that it needs of it.
    """
    deadline = time.monotonic() + seconds
    requirements = [installed_requirement(name) for name in sorted({*_AGENT_DISTRIBUTIONS, *distributions})]
    constraints = installed_versions()
    sources = await asyncio.to_thread(_agent_sources)

    async def fill(folder: str) -> None:
        target = _site_packages(folder, python)
        await _install(requirements, constraints, python, architecture, target, deadline)
        await asyncio.to_thread(_finish_install, folder, target)
        await asyncio.to_thread(_keep_only, target, only)
        await asyncio.to_thread(_write_files, target, sources)
        await _compile(folder, target, python)

    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()
    identity = ["agent", digest, requirements, constraints, sorted(only.items()), python, architecture]
    return await built_archive(identity, fill, root, deadline)


# --- what is in them ----------------------------------------------------------------------------------


def _site_packages(folder: str, python: str) -> str:
    return os.path.join(folder, "lib", f"python{python}", "site-packages")


async def _install(
    requirements: Sequence[str],
    constraints: Sequence[str],
    python: str,
    architecture: str,
    target: str,
    deadline: float,
) -> None:
    # Versions that run here were chosen for this very Python; for others the oldest of its minor counts.
    version = platform.python_version() if constraints and python == CURRENT_PYTHON else python
    lists = await asyncio.to_thread(_write_lists, os.path.dirname(target), requirements, constraints)
    arguments = [
        *("pip", "install", "--target", target, "--python-version", version),
        *("--python-platform", PLATFORMS[architecture], "--python", sys.executable),
        *("--requirement", lists[0]),
        *(("--constraint", lists[1]) if constraints else ()),
    ]
    code, output = await try_uv([*arguments, "--only-binary", ":all:"], deadline - time.monotonic())
    if code:  # something has no wheel: what is pure Python can be built here
        failed = (
            f"environment.packages could not be installed for {architecture} machines with Python {python}. "
            "Ask for versions that have wheels for it; what must be compiled has to be made into a wheel of "
            f"your own elsewhere. From wheels alone:\n{last_lines(output)}\n"
            "With source distributions built here"
        )
        await run_uv(arguments, deadline, failed)
    await asyncio.to_thread(_check_pure, target, architecture)


def _write_lists(folder: str, requirements: Sequence[str], constraints: Sequence[str]) -> tuple[str, str]:
    os.makedirs(folder)
    names = os.path.join(folder, "requirements.txt"), os.path.join(folder, "constraints.txt")
    write_lines(names[0], requirements)
    write_lines(names[1], constraints)
    return names


def _check_pure(target: str, architecture: str) -> None:
    """Raise InvalidInput for what was compiled here: its tags name this system, not one that wheels are
    made for (PEP 425, PEP 600)."""
    compiled = []
    for file in sorted(Path(target).glob("*.dist-info/WHEEL")):
        tags = [line.split("-")[-1] for line in file.read_text().splitlines() if line.startswith("Tag:")]
        if not any(tag == "any" or tag.startswith(("manylinux", "musllinux")) for tag in tags):
            compiled.append(file.parent.name.removesuffix(".dist-info").replace("-", " "))
    if compiled:
        raise InvalidInput(
            f"environment.packages: {', '.join(compiled)} must be compiled, and there is no wheel of it for "
            f"{architecture} machines. Name a version that has wheels, or a wheel of your own by its URL, or "
            "limit item_resources.architectures to those that have one"
        )


def _finish_install(folder: str, target: str) -> None:
    for name in ("requirements.txt", "constraints.txt"):
        os.unlink(os.path.join(os.path.dirname(target), name))
    for name in _OF_THIS_MACHINE:
        for file in Path(target).glob(f"*.dist-info/{name}"):
            file.unlink()
    Path(target, ".lock").unlink(missing_ok=True)
    programs = os.path.join(target, "bin")
    if os.path.isdir(programs):
        os.rename(programs, os.path.join(folder, "bin"))
        for file in Path(folder, "bin").iterdir():
            _make_relocatable(file)


def _make_relocatable(program: Path) -> None:
    """Let a console script find the interpreter beside it: uv wrote the path of this one."""
    data = program.read_bytes()
    first, _, rest = data.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        beside = (
            b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"\n\' \'\'\'\n'
        )
        program.write_bytes(beside + rest)


def _keep_only(target: str, only: Mapping[str, Sequence[str]]) -> None:
    for folder, patterns in only.items():
        for path in sorted(Path(target, folder).glob("*")):
            if any(path.match(pattern) for pattern in patterns):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _agent_sources() -> dict[str, bytes]:
    """Name below site-packages → bytes, of the parts of this package that run on machines."""
    home = Path(airflow_provider_spotbatch.__file__).parent
    paths = [home / "__init__.py", *(path for part in _AGENT_PARTS for path in (home / part).rglob("*.py"))]
    return {str(path.relative_to(home.parent)): path.read_bytes() for path in sorted(paths)}


def _write_files(target: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = Path(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


async def _compile(folder: str, target: str, python: str) -> None:
    """Byte-compile, where this interpreter can: the folder is read-only to who imports from it, so it would
    be compiled again by every process. Hash-based and by one process, for the same bytes every time."""
    if python != CURRENT_PYTHON:
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "compileall", "-q", "-j", "1"),
        *("--invalidation-mode", "unchecked-hash", "-s", folder, "-p", "/", target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    try:
        await process.wait()  # its code is of no use: some distributions carry files of other Pythons
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
