"""The same work mapped by this provider and by Airflow itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_spotbatch import SpotMapOperator

ITEMS = 1000
EXPANDED = 100
"""Tasks that Airflow is measured with; what more of them take is reckoned from that."""


def nothing(item: int) -> int:
    return item


def note_begin(context: Any) -> None:
    """Called in the task's process just before its ``execute()``, and again before it is resumed."""
    begin = Path(context["params"]["folder"], "execute")
    if not begin.exists():
        begin.write_text(str(time.time()))


with DAG("by_spotbatch", schedule=None, params={"folder": "/nowhere"}):
    SpotMapOperator(task_id="work", python_callable=nothing, items=list(range(ITEMS)), pre_execute=note_begin)

with DAG("by_expand", schedule=None):
    task(nothing).expand(item=list(range(EXPANDED)))
