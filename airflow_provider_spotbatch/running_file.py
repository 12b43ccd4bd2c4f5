"""The DAG file as the running task sees it. A process may have loaded the file more than once (``dag.test()``
does), and ``isinstance`` holds only for the classes of the copy that the task's function belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunningFile:
    """Globals of the running task's function; empty where no task runs, or none with a function."""

    names: Mapping[str, Any]

    @classmethod
    def of_this_task(cls) -> RunningFile:
        from airflow.providers.common.compat.sdk import get_current_context

        try:
            task = get_current_context()["task"]
        except RuntimeError:  # no task runs in this process
            return cls({})
        function = getattr(task, "python_callable", None)
        return cls(getattr(function, "__globals__", {}))

    def find(self, source: str, qualname: str) -> Any:
        """The class or function of this name, or None; ``source``: path below the DAG bundle of the file
        that it must come from."""
        file = os.path.realpath(self.names.get("__file__") or "/")
        if not source or not file.endswith(os.sep + source.replace("/", os.sep)):
            return None
        found: Any = None
        for depth, part in enumerate(qualname.split(".")):
            found = self.names.get(part) if depth == 0 else getattr(found, part, None)
        return getattr(found, "function", found) if hasattr(found, "_airflow_is_task_decorator") else found
