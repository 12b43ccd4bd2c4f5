"""uv, run as a program: it resolves and installs packages, and finds interpreters."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

from airflow_provider_spotbatch.job.errors import InvalidInput

_SHOWN_LINES = 20


async def run_uv(arguments: list[str], deadline: float, what: str) -> str:
    """Run uv until ``deadline`` (monotonic); what it printed. Raises InvalidInput with its last lines:
    ``what`` could not be done."""
    code, output = await try_uv(arguments, max(1.0, deadline - time.monotonic()))
    if code != 0:
        raise InvalidInput(f"{what}; the last lines of uv {arguments[0]}:\n{last_lines(output)}")
    return output


def last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-_SHOWN_LINES:])


async def try_uv(arguments: list[str], seconds: float) -> tuple[int, str]:
    """Run uv; its exit code and all it printed. It is ended when time is up or the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        _binary(),
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


def _binary() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise InvalidInput("environment.packages needs uv, which is not here: pip install uv")
    return found
