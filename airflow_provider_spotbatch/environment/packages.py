"""The interpreter that local workers run: the Airflow side's own, or one with packages of its own.

A virtual environment is named by what is in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Sequence

from airflow_provider_spotbatch.environment.build_once import BUILD_SECONDS, build_once
from airflow_provider_spotbatch.environment.uv import run_uv, try_uv
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.spec import WorkerEnvironment

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
    code, output = await try_uv(["python", "find", "--no-python-downloads", "--no-project", version], 60.0)
    if code != 0:
        raise InvalidInput(
            f"environment.python={version!r}: this machine has no Python {version}. Install it, or leave "
            f"python out to use {CURRENT_PYTHON}"
        )
    return output.splitlines()[-1].strip()


async def _with_packages(environment: WorkerEnvironment, base: str, root: str, deadline: float) -> str:
    identity = json.dumps([base, sysconfig.get_platform(), environment.packages])
    folder = os.path.join(root, hashlib.sha256(identity.encode()).hexdigest()[:32])

    async def build(partial: str) -> None:
        failed = "environment.packages could not be installed"
        await run_uv(["venv", "--relocatable", "--no-project", "--python", base, partial], deadline, failed)
        listed = os.path.join(partial, "requirements.txt")
        await asyncio.to_thread(write_lines, listed, environment.packages)
        python = os.path.join(partial, "bin", "python")
        await run_uv(["pip", "install", "--python", python, "--requirement", listed], deadline, failed)

    await build_once(folder, deadline, build)
    return os.path.join(folder, "bin", "python")


def write_lines(path: str, lines: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
