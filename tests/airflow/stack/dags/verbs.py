"""Jobs whose last items wait for a file, so that something can befall them meanwhile."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_spotbatch import Resources, SpotMapOperator

FOLDER = "{{ params.folder }}"
ITEMS = 6
HELD = 2
"""The last two items wait for the file ``go``."""

LONGEST = 300.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LONGEST
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.05)


def work(item: int, folder: str) -> int:
    """Note that it runs, where and as what; the last ones wait."""
    with Path(folder, "calls").open("a") as calls:
        calls.write(f"{item} {os.environ['SPOTBATCH_INSTANCE']}\n")
    if item >= ITEMS - HELD:
        wait_for(Path(folder, "go"))
    return item * 10


def odd_one_out(item: int, folder: str) -> int:
    """Item 3 fails until the file ``mended`` is there."""
    with Path(folder, "calls").open("a") as calls:
        calls.write(f"{item} {os.environ['SPOTBATCH_INSTANCE']}\n")
    if item == 3 and not Path(folder, "mended").exists():
        raise ValueError("item 3 is broken")
    return item * 10


class BrokenTrigger(SpotMapOperator):
    """Its first try waits in a trigger that raises."""

    def defer(self, *, trigger: Any, **kwargs: Any) -> None:
        from raising_trigger import RaisingTrigger

        raise_at = os.path.join(self.op_kwargs["folder"], "raise")
        if not os.path.exists(raise_at):
            trigger = RaisingTrigger(raise_at, **trigger.serialize()[1])
        super().defer(trigger=trigger, **kwargs)


class Held(SpotMapOperator):
    """Its task process stops for a file before it defers and before it finishes."""

    def defer(self, **kwargs: Any) -> None:
        self._hold("deferring")
        super().defer(**kwargs)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        self._hold("finishing")
        return super().execute_complete(context, event)

    def _hold(self, where: str) -> None:
        """Leave the process's id in a file of this name; the first process goes on by another's leave."""
        folder = Path(self.op_kwargs["folder"])
        try:
            draft = folder / f"{where}.draft"
            draft.write_text(str(os.getpid()))
            os.link(draft, folder / where)
        except FileExistsError:
            return
        wait_for(folder / f"{where}.go")


@task
def report(results: Any, folder: str) -> None:
    Path(folder, "report.json").write_text(json.dumps(list(results)))


def verb(
    dag_id: str, operator: type[SpotMapOperator] = SpotMapOperator, function: Any = work, **kwargs: Any
) -> None:
    """A DAG of one job and a task that reads its results."""
    with DAG(
        dag_id,
        schedule=None,
        params={"folder": "/nowhere"},
        default_args={"retry_delay": timedelta(seconds=1)},
    ):
        done = operator(
            task_id="work",
            python_callable=function,
            items=list(range(ITEMS)),
            op_kwargs={"folder": FOLDER},
            concurrency=2,
            item_resources=Resources(cpus=0.5, memory_gb=0.25),
            item_retries=0,
            **kwargs,
        )
        report(done.output, folder=FOLDER)


verb("plain")
verb("in_worker", deferrable=False)
verb("retried", retries=1)
verb("failing", function=odd_one_out, retries=1)
verb("limited", retries=1, execution_timeout=timedelta(seconds=20))
verb("broken_trigger", BrokenTrigger, retries=1)
verb("held", Held, retries=1)
verb("held_alone", Held, retries=1, conn_id="alone")
verb("orphans", conn_id="orphans")
