"""What the tests of DAGs look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ran:
    """A DAG run that came to its end. ``folder``: where its tasks left what tests look at; ``log``: what
    its tasks wrote, up to the messages of their failures."""

    dag: Any
    run: Any
    folder: Path
    log: str = ""

    @property
    def states(self) -> dict[str, str]:
        """Task, or task with map index → state."""
        return {
            ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]": str(ti.state)
            for ti in self.run.get_task_instances()
        }

    def report(self, name: str = "report") -> Any:
        """What a task of the DAG reported under this name."""
        return json.loads((self.folder / f"{name}.json").read_text())

    def calls(self) -> list[str]:
        """What functions noted on the machines, a line each, sorted: they run at the same time."""
        path = self.folder / "calls"
        return sorted(path.read_text().splitlines()) if path.exists() else []


RunDag = Callable[..., Ran]
