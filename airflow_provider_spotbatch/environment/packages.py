"""The interpreter that local workers run: the Airflow side's own, or one with packages of its own.

A virtual environment is named by what is in it and appears whole: it is built aside and renamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import AsyncIterator

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.spec import WorkerEnvironment

BUILD_SECONDS = 1800.0
"""One build with all its downloads: protects the task from an index that is silent."""

_SHOWN_LINES = 20
_POLL_SECONDS = 0.2

CURRENT_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


async def local_interpreter(
    environment: WorkerEnvironment, root: str, *, seconds: float = BUILD_SECONDS
) -> str:
    """Path of the interpreter for workers on this machine; builds its packages below ``root`` if need be.

    Raises InvalidInput for what only a machine of its own can have (secrets, setup), for a Python
    that is not here, and for packages that cannot be installed, with uv's own last lines.
    """
    if environment.secrets:
        raise InvalidInput(
            "environment.secrets are resolved by a cloud's machines with their own rights; "
            "the local backend has none: use env, or an Airflow connection or variable in the DAG"
        )
    if environment.setup is not None:
        raise InvalidInput(
            "environment.setup runs as root on a machine of its own; the local backend runs on this one"
        )
    base = sys.executable
    if environment.python != CURRENT_PYTHON:
        base = await _find_python(environment.python)
    if not environment.packages:
        return base
    return await _with_packages(environment, base, root, time.monotonic() + seconds)


async def _find_python(version: str) -> str:
    code, output = await _uv(["python", "find", "--no-python-downloads", "--no-project", version], 60.0)
    if code != 0:
        raise InvalidInput(
            f"environment.python={version!r}: this machine has no Python {version}. Install it, or leave "
            f"python out to use {CURRENT_PYTHON}"
        )
    return output.splitlines()[-1].strip()


async def _with_packages(environment: WorkerEnvironment, base: str, root: str, deadline: float) -> str:
    identity = json.dumps([base, sysconfig.get_platform(), environment.packages])
    folder = os.path.join(root, hashlib.sha256(identity.encode()).hexdigest()[:32])
    interpreter = os.path.join(folder, "bin", "python")
    if not await _exists(interpreter):
        await asyncio.to_thread(os.makedirs, root, 0o700, True)
        async with _locked(f"{folder}.lock", deadline):
            if not await _exists(interpreter):
                await _build(environment.packages, base, folder, deadline)
    return interpreter


async def _exists(path: str) -> bool:
    return await asyncio.to_thread(os.path.exists, path)


async def _build(packages: tuple[str, ...], base: str, folder: str, deadline: float) -> None:
    partial = f"{folder}.partial"  # the lock is ours: what is there was left by a build that died
    await asyncio.to_thread(shutil.rmtree, partial, True)
    try:
        await _run_uv(["venv", "--relocatable", "--no-project", "--python", base, partial], deadline)
        listed = os.path.join(partial, "requirements.txt")
        await asyncio.to_thread(_write, listed, "\n".join(packages) + "\n")
        python = os.path.join(partial, "bin", "python")
        await _run_uv(["pip", "install", "--python", python, "--requirement", listed], deadline)
        await asyncio.to_thread(os.rename, partial, folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, True)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.asynccontextmanager
async def _locked(path: str, deadline: float) -> AsyncIterator[None]:
    """Hold a file's lock, which ends with the process; another's build is waited for."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InvalidInput(
                        f"another process has been building the environment {path} for too long; "
                        "end it, or try again"
                    ) from None
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


async def _run_uv(arguments: list[str], deadline: float) -> None:
    code, output = await _uv(arguments, max(1.0, deadline - time.monotonic()))
    if code != 0:
        tail = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise InvalidInput(
            f"environment.packages could not be installed; the last lines of uv {arguments[0]}:\n{tail}"
        )


async def _uv(arguments: list[str], seconds: float) -> tuple[int, str]:
    """Run uv; its exit code and all it printed. It is ended when time is up or the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        _uv_binary(),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        raise InvalidInput(
            f"environment.packages: uv {arguments[0]} did not end within {seconds:.0f} s; "
            "is the package index reachable from here?"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


def _uv_binary() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise InvalidInput("environment.packages needs uv, which is not here: pip install uv")
    return found
