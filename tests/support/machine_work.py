"""Functions of jobs on machines of their own, where nothing of Airflow's or ours can be imported."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any


def look_around(item: int) -> dict[str, Any]:
    """What an item finds on its machine."""
    import dateutil

    return {
        "item": item,
        "root": os.getuid() == 0,
        "password": os.environ["PASSWORD"],
        "limit": os.environ["LIMIT"],
        "set up by": Path("/etc/set-up").read_text().strip(),
        "dateutil": dateutil.__version__,
        "command": subprocess.run(
            [shutil.which("jp.py") or "none", "--help"], capture_output=True
        ).returncode,
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
    }


def version_of_six(item: int) -> str:
    import six  # type: ignore[import-untyped]

    return str(six.__version__)


def wait(item: int, seconds: float) -> int:
    """A process of its own waits, so that the host sees which items run, on machines that stand still too."""
    subprocess.run(["sleep", str(seconds)], check=True)
    return item
