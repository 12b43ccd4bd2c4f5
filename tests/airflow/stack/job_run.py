"""One DAG run of the tests, seen from all sides: Airflow's states, the store, the machines, the items."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.job.chunks import Batch
from airflow_provider_spotbatch.job.keys import ChunkId, Generation, Run, job_id
from airflow_provider_spotbatch.job.signing import unverified_body
from tests.airflow.stack import machines
from tests.airflow.stack.airflow_stack import DEPLOYMENT, Stack
from tests.airflow.stack.waiting import until

ITEMS = 6
HELD = 2
EXPECTED = [item * 10 for item in range(ITEMS)]

FLEET_ENDS_WITHIN = 30.0
"""What is promised: seconds from a user's verb to the last process of its machines."""

STEP_SECONDS = 150.0
"""Until the next state of a task: a try takes some 5 s, more while many start at once."""

_numbers = itertools.count(1)


@dataclass
class JobRun:
    """A DAG run of ``work`` and ``report``. ``root``: the local backend's folder."""

    stack: Stack
    dag_id: str
    folder: Path
    root: Path
    watcher: machines.Watcher
    run_id: str = field(default_factory=lambda: f"r{next(_numbers)}")

    def begin(self) -> JobRun:
        self.folder.mkdir()
        body = {
            "dag_run_id": self.run_id,
            "logical_date": None,
            "conf": {"folder": str(self.folder)},
        }
        self.stack.api.post(f"dags/{self.dag_id}/dagRuns", body)
        return self

    # --- verbs -----------------------------------------------------------------------------------

    def mark(self, state: str) -> None:
        self.stack.api.patch(f"{self._path}/taskInstances/work", {"new_state": state})

    def mark_dag_run(self, state: str) -> None:
        self.stack.api.patch(self._path, {"state": state})

    def clear_when_over(self) -> None:
        """Clear once the DAG run has its end: Airflow forgets a clear that meets the end being written."""
        self.wait_until(lambda: self.stack.api.get(self._path)["state"] in ("success", "failed"))
        self.clear()

    def clear(self) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": ["work"],
            "only_failed": False,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        self.stack.api.post(f"dags/{self.dag_id}/clearTaskInstances", body)

    def let_go(self, name: str = "go") -> None:
        """Let what waits for this file go on."""
        (self.folder / name).touch()

    def held_process(self, where: str) -> int:
        """The id of the task process that is held there (see the operator ``Held``)."""
        file = self.folder / where
        self.wait_until(file.exists)
        return int(file.read_text())

    # --- Airflow ---------------------------------------------------------------------------------

    def task(self, task_id: str = "work") -> dict[str, Any]:
        found: dict[str, Any] = self.stack.api.get(f"{self._path}/taskInstances/{task_id}")
        return found

    def wait_for(self, state: str, task_id: str = "work", tries: int | None = None) -> dict[str, Any]:
        """The task once it is in this state (and of this try)."""

        def there() -> dict[str, Any] | None:
            now = self.task(task_id)
            return now if now["state"] == state and tries in (None, now["try_number"]) else None

        return until(there, STEP_SECONDS, lambda: self.task(task_id))

    def wait_until_held(self, number: int = 1, generation: int = 1) -> None:
        """Until the task is deferred, results are durable, and the last items are running in this run."""
        self.wait_for("deferred")
        self.wait_until(lambda: self.held(number, generation))

    def wait_until(self, condition: Callable[[], Any], seconds: float = STEP_SECONDS) -> None:
        until(condition, seconds, lambda: (self.dag_id, self.task(), self.calls(), self.finished()))

    def held(self, number: int, generation: int) -> bool:
        of_run = f"-{generation}-{number}-"
        waiting = {item for item, instance in self.calls() if item >= ITEMS - HELD and of_run in instance}
        return bool(waiting) and len(self.finished()) >= ITEMS - 2 * HELD

    def succeeds(self) -> None:
        """The task and the one that reads its results come to their good end, and nothing is left."""
        self._succeeds_after_all()
        self.wait_for("success", "report")
        assert self.report() == EXPECTED
        assert self.machines() == frozenset()
        value = self.stack.api.get(
            f"{self._path}/taskInstances/work/xcomEntries/return_value?deserialize=false"
        )
        assert self.job in json.dumps(value["value"])

    def ran_only_the_rest(self, before: set[int]) -> dict[str, Any]:
        """A second run did what was not finished ``before``, and that alone, beside no other machine."""
        counts = self.counts()
        assert {item: counts[item] for item in before} == dict.fromkeys(before, 1)
        assert set(counts) == set(range(ITEMS))
        assert self.runs_alive_together() == 1
        assert self.runs() == [1, 2]
        return {"finished before": len(before), "times begun": sum(counts.values())}

    def _succeeds_after_all(self) -> None:
        """Airflow fails a task that it resumes before it has taken in that the deferring process ended
        ("finished with state success, but the task instance's state attribute is queued"), which a slow
        machine brings about. The user clears it, and the finished job is handed on."""
        ended = ("success", "failed")
        self.wait_until(lambda: self.task()["state"] in ended)
        if self.task()["state"] == "failed" and self.stack.resumed_too_early(self.run_id):
            self.clear_when_over()
        self.wait_for("success")

    def report(self) -> Any:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def _path(self) -> str:
        return f"dags/{self.dag_id}/dagRuns/{self.run_id}"

    # --- the store -------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        return job_id(DEPLOYMENT, self.dag_id, self.run_id, "work", -1)

    def run(self, number: int = 1, generation: int = 1) -> Run:
        return Run(Generation(self.job, generation), number)

    def stored(self, name: str) -> Path:
        return self.root / "store" / name

    def outcome(self, number: int = 1, generation: int = 1) -> dict[str, Any] | None:
        """What a run's outcome says."""
        path = self.stored(self.run(number, generation).outcome)
        if not path.exists():
            return None
        return unverified_body(path.read_bytes())

    def beat(self) -> bytes:
        """What the controllers last told the machines: another at least every 10 s while one drives."""
        return self.stored(self.run().control).read_bytes()

    def cancelled(self, number: int = 1, generation: int = 1) -> bool:
        return self.stored(self.run(number, generation).cancel).exists()

    def runs(self, generation: int = 1) -> list[int]:
        """Numbers of the generation's runs."""
        folder = self.stored(f"{Generation(self.job, generation).prefix}/runs")
        return sorted(int(path.parent.name) for path in folder.glob("*/run.json"))

    def finished(self, generation: int = 1) -> set[int]:
        """Items whose result is durable."""
        results = self.stored(Generation(self.job, generation).results)
        durable = {ChunkId.parse(path.name) for path in results.iterdir()} if results.exists() else set()
        return {
            item
            for path in self.stored(Generation(self.job, generation).prefix).glob("runs/*/chunks/*.json")
            for chunk in Batch.from_bytes(path.read_bytes()).chunks
            if chunk.id in durable
            for item in chunk.items()
        }

    # --- machines and items ----------------------------------------------------------------------

    def machines(self) -> frozenset[str]:
        return self._own(machines.alive())

    def fleet_gone(self, seconds: float = FLEET_ENDS_WITHIN) -> float:
        """Wait for the end of the fleet; seconds it took."""
        began = time.monotonic()
        until(lambda: not self.machines(), seconds, self.machines)
        return round(time.monotonic() - began, 1)

    def first_fleet_gone(self, seconds: float = FLEET_ENDS_WITHIN) -> float:
        """As ``fleet_gone``, for the machines that are there now: others may come meanwhile."""
        began = time.monotonic()
        now = self.machines()
        until(lambda: not now & self.machines(), seconds, self.machines)
        return round(time.monotonic() - began, 1)

    def all_machines(self) -> set[str]:
        """Every machine that was ever seen alive."""
        return {name for _, names in self.watcher.seen for name in self._own(names)}

    def runs_alive_together(self) -> int:
        """The most runs whose machines were alive at the same time."""
        together = ({name.rsplit("-", 3)[0] for name in self._own(names)} for _, names in self.watcher.seen)
        return max((len(runs) for runs in together), default=0)

    def _own(self, names: frozenset[str]) -> frozenset[str]:
        prefix = f"{self.job[-16:].strip('-')}-"
        return frozenset(name for name in names if name.startswith(prefix))

    def calls(self) -> list[tuple[int, str]]:
        """Each time that an item began: its number, and the instance it was on."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(item), instance) for item, instance in (line.split() for line in lines)]

    def counts(self) -> dict[int, int]:
        """Item → how often it began."""
        return dict(Counter(item for item, _ in self.calls()))


Begin = Callable[..., JobRun]
"""Start a DAG run of this DAG id; keyword ``root`` for a connection with a folder of its own."""
