"""A task's process: it submits a job, drives it and finishes it, as the operator does that is not deferred.

``python -m tests.support.task_process FOLDER`` reads from standard input, pickled, a connection's id, a
function, its items, and what else ``runs.job_request`` takes. It pickles its run into ``FOLDER/run`` and what
came of it into ``FOLDER/outcome``, and prints the lines of the task's log, each after the seconds since the
epoch.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.worker import Worker
from tests.support.runs import REPOSITORY, job_request


class TaskProcess:
    """One such process, seen from the test. ``environment``: its connections, and what else it needs;
    ``options``: of ``runs.job_request``."""

    def __init__(
        self,
        conn_id: str,
        function: Callable[..., Any],
        items: list[Any],
        folder: Path,
        environment: Mapping[str, str],
        **options: Any,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.task_process", str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**os.environ, **environment},
            )
        assert self._process.stdin is not None
        with self._process.stdin as file:
            pickle.dump((conn_id, function, items, options), file)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> list[tuple[float, str]]:
        """The lines so far, each with its time."""
        lines = (self._folder / "log").read_text().splitlines()
        parts = [line.partition(" ") for line in lines]
        return [(float(at), text) for at, _, text in parts if at.replace(".", "", 1).isdigit()]

    @property
    def log(self) -> str:
        """All that it wrote, warnings and tracebacks too."""
        return (self._folder / "log").read_text()

    @property
    def run(self) -> Run | None:
        """Its run, once that is submitted."""
        return self._read("run")

    @property
    def outcome(self) -> Outcome:
        """What came of the job; only once it has ended."""
        assert self._process.wait(0) == 0, self.log
        outcome: Outcome = self._read("outcome")
        return outcome

    def kill(self) -> None:
        """Without a chance to end anything."""
        self._process.kill()
        self._process.wait()

    def _read(self, name: str) -> Any:
        path = self._folder / name
        return pickle.loads(path.read_bytes()) if path.exists() else None


def _write(path: Path, value: Any) -> None:
    draft = path.with_suffix(".draft")
    draft.write_bytes(pickle.dumps(value))
    draft.rename(path)


def main(folder: Path) -> None:
    conn_id, function, items, options = pickle.load(sys.stdin.buffer)
    worker = Worker(
        SpotBatchHook(conn_id).get_settings(), lambda line: print(f"{time.time():.3f}", line, flush=True)
    )
    worker.submit(job_request(function, items, **options))
    _write(folder / "run", worker.run)
    worker.drive()
    _write(folder / "outcome", worker.finish())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
