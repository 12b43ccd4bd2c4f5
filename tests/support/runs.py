"""Jobs on the local backend with every part real, driven as a task drives them, but without a DAG."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, MapResult
from airflow_provider_spotbatch.backends import local_machine
from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.worker import Worker
from tests.support.jobs import PATIENCE, processes_with

CONN_ID = "site"
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Site:
    """A local backend in a folder of its own. Make it with :func:`site_in`."""

    root: Path
    said: list[str] = field(default_factory=list)
    """The lines of the tasks' logs."""

    def worker(self, run: Run | None = None) -> Worker:
        return Worker(SpotBatchHook(CONN_ID).get_settings(), self.said.append, run)

    def submit(
        self, function: Callable[..., Any], items: Any, *, max_tries: int = 0, **policy: Any
    ) -> Worker:
        """A task process that has stored its job, and driven nothing yet."""
        worker = self.worker()
        request = job_request(function, items, max_tries=max_tries, **policy)
        assert worker.submit(request).outcome is None, "it was finished already"
        return worker

    def outcome(self, function: Callable[..., Any], items: Any, **options: Any) -> Outcome:
        """Submit a job and drive it to its end."""
        return drive(self.submit(function, items, **options))

    def results(self, function: Callable[..., Any], items: Any, **options: Any) -> MapResult:
        """The results of a job that succeeds."""
        outcome = self.outcome(function, items, **options)
        assert outcome.state == "succeeded", outcome.message
        return MapResult.of(outcome, CONN_ID, self.worker().store_uri)

    @property
    def machines(self) -> list[Path]:
        """The folders of all machines that were ever started."""
        return sorted(path for path in (self.root / "machines").glob("*") if not path.name.startswith("."))

    @property
    def processes(self) -> list[int]:
        """What still runs of any machine."""
        return [
            pid
            for path in self.machines
            for pid in processes_with(f"{local_machine.MARK}={local_machine.mark(str(path))}")
        ]


def site_in(root: Path, monkeypatch: pytest.MonkeyPatch, **extra: Any) -> Site:
    """A local backend below ``root``; ``extra``: more fields of its connection."""
    connection = {"conn_type": "spotbatch", "extra": {"path": str(root), **extra}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(connection))
    return Site(root)


@contextmanager
def peak_of_agents(site: Site) -> Iterator[dict[int, int]]:
    """Watch the machines' agents: pid → its highest resident memory in MB, once the block is left."""
    peaks: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for pid in site.processes:
                with suppress(OSError, ValueError):  # it has ended meanwhile
                    if b"airflow_provider_spotbatch.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        status = Path(f"/proc/{pid}/status").read_text()
                        peaks[pid] = int(status.partition("VmHWM:")[2].split()[0]) // 1024

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peaks
    finally:
        over.set()
        watching.join()


def drive(worker: Worker) -> Outcome:
    """Drive a submitted run to its end, as a task does that is not deferred."""
    worker.drive()
    return worker.finish()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once ``condition`` holds; fails after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE:.0f} s"
        time.sleep(0.05)


def job_request(
    function: Callable[..., Any],
    items: Any,
    *,
    name: str = "",
    kwargs: dict[str, Any] | None = None,
    max_tries: int = 0,
    started: str = "",
    **policy: Any,
) -> JobRequest:
    """``name``: of the task, by default the function's; ``kwargs``: shared by all items."""
    return JobRequest(
        deployment="tests",
        dag_id="dag",
        run_id="run",
        task_id=name or function.__name__,
        map_index=-1,
        max_tries=max_tries,
        dag_run_started=started,
        packing=Packing(
            function=function,
            dotted=None,
            command=None,
            kwargs=kwargs or {},
            call="item",
            environment=Environment(),
            bundle=str(REPOSITORY),
            name=function.__name__,
        ),
        items=items,
        policy=Policy(**policy),
    )
