"""The task that runs in this process, if one does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def globals_of_its_function() -> Mapping[str, Any]:
    """Globals of the running task's function; empty where no task runs, or none with a function."""
    from airflow.providers.common.compat.sdk import get_current_context

    try:
        task = get_current_context()["task"]
    except RuntimeError:  # no task runs in this process
        return {}
    function = getattr(task, "python_callable", None)
    names: Mapping[str, Any] = getattr(function, "__globals__", {})
    return names
