"""Functions of jobs on machines of their own, where nothing of Airflow's or ours can be imported."""

from __future__ import annotations

import subprocess


def greet(item: int) -> str:
    return "hello"


def version_of_six(item: int) -> str:
    import six  # type: ignore[import-untyped]

    return str(six.__version__)


def wait(item: int, seconds: float) -> int:
    """A process of its own waits, so that the host sees which items run, on machines that stand still too."""
    subprocess.run(["sleep", str(seconds)], check=True)
    return item
