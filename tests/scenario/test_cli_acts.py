"""The command line's deeds on real jobs: cancel, sweep, clean, check."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.job.errors import StoreUnavailable
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.worker import Worker
from tests.support.jobs import PATIENCE
from tests.support.runs import CONN_ID, REPOSITORY, Site, wait_until
from tests.support.work import same

ITEMS = 4
SOON = "0.0000001"
"""Days of retention after which any finished job may go."""


@pytest.fixture(autouse=True)
def _machines_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


class Command:
    """Runs commands on the site's connection, and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        where = () if "--store" in words or words[0] == "check" else ("--conn-id", CONN_ID)
        code = main([*words, *where])
        self.out, self.err = self._capsys.readouterr()
        return code

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def held_by(gate: Path) -> Callable[[int], int]:
    """A function whose items, but for the first, wait for a file."""
    path = str(gate)

    def held(item: int) -> int:
        import os
        import time

        while item and not os.path.exists(path):
            time.sleep(0.02)
        return item

    return held


@contextmanager
def driven(worker: Worker) -> Iterator[None]:
    """A controller drives the run, as a trigger does, until it is over by itself."""
    driving = threading.Thread(target=worker.drive)
    driving.start()
    try:
        yield
    finally:
        driving.join(PATIENCE)
    assert not driving.is_alive(), "the controller did not see the cancel"


def run_of(worker: Worker) -> Run:
    assert worker.run is not None
    return worker.run


def first_result_is_there(site: Site) -> bool:
    return any((site.root / "store" / "out").glob("*/*/results/*"))


# --- cancel ------------------------------------------------------------------------------------------


def test_a_cancelled_job_keeps_what_is_finished_and_its_task_fails_for_good(
    site: Site, command: Command, tmp_path: Path
) -> None:
    held = held_by(tmp_path / "gate")
    worker = site.submit(held, range(ITEMS), concurrency=2)
    job = run_of(worker).generation.job
    with driven(worker):
        wait_until(lambda: first_result_is_there(site), "the first result")
        assert command("cancel", job[:12], "--wait", "--reason", "it was too dear") == 0
    assert site.processes == []
    assert "is cancelled, and its machines are gone" in command.out
    assert "finished items are kept" in command.out
    outcome = worker.finish()
    assert (outcome.state, outcome.ok, outcome.retryable) == ("cancelled", 1, False)
    assert "it was too dear" in outcome.message

    assert command("cancel", job, "--json") == 0
    assert command.json == {"job": job, "runs": []}
    assert command("cancel", job) == 0
    assert "over already" in command.out

    (tmp_path / "gate").touch()
    assert list(site.results(held, range(ITEMS), max_tries=1)) == list(range(ITEMS))
    assert any(f"1 of {ITEMS} items are done already" in line for line in site.said)


@pytest.mark.parametrize("unreadable", ["signed with an earlier key", "damaged"])
def test_a_run_that_cannot_be_read_can_still_be_cancelled(
    site: Site, command: Command, unreadable: str
) -> None:
    run = run_of(site.submit(same, range(2)))
    if unreadable == "damaged":
        (site.root / "store" / run.run).write_bytes(b"half")
    else:
        (site.root / "key").write_text("00" * 32)

    assert command("cancel", run.generation.job, "--reason", "enough") == 0
    assert "machines" in command.out
    assert "end by themselves" in command.out
    assert json.loads((site.root / "store" / run.cancel).read_bytes())["reason"] == "enough"


def test_from_a_store_alone_the_machines_end_by_themselves(
    site: Site, command: Command, tmp_path: Path
) -> None:
    store = ("--store", f"file://{site.root}/store")
    worker = site.submit(held_by(tmp_path / "gate"), range(ITEMS), concurrency=2)
    job = run_of(worker).generation.job
    worker.first_tick()
    wait_until(lambda: first_result_is_there(site), "the first result")
    assert command("cancel", job, "--wait", *store) == 1
    assert "--wait needs a connection" in command.err
    assert command("cancel", job, "--json", *store) == 0
    assert command.json["runs"] == [{"generation": 1, "run": 1, "machines_left": None}]
    wait_until(lambda: site.processes == [], "the machines' own end")
    assert worker.finish().state == "cancelled"


def test_a_job_that_is_not_there_is_said_to_be_missing(site: Site, command: Command) -> None:
    assert command("cancel", "no-such-job") == 1
    assert "there are no jobs" in command.err


# --- sweep -------------------------------------------------------------------------------------------


def test_a_sweep_tells_what_it_would_end_then_ends_it(site: Site, command: Command, tmp_path: Path) -> None:
    worker = site.submit(held_by(tmp_path / "gate"), range(ITEMS), concurrency=1)
    worker.first_tick()
    wait_until(lambda: first_result_is_there(site), "the first result")
    assert command("sweep", "--dry-run", "--json") == 0
    assert (command.json["machines"], command.json["alive"]) == ([], 1)

    run = run_of(worker)
    cancelled = site.root / "store" / run.cancel
    cancelled.write_text(json.dumps({"format": 1, "reason": "its controller died then", "at": time.time()}))
    assert command("sweep", "--dry-run") == 0
    [machine] = [path.name for path in site.machines]
    assert f"would end machine {machine}: its run was cancelled" in command.out
    assert f"would remove queue {run.queue(0)}: its run was cancelled" in command.out
    assert site.processes, "a dry run ended it"

    assert command("sweep", "--json") == 0
    assert command.json["machines"] == [machine]
    assert command.json["queues"] == [run.queue(0)]
    assert site.processes == []


def test_a_region_where_there_are_none_is_refused(site: Site, command: Command) -> None:
    assert command("sweep", "--region", "us-west-2") == 1
    assert "backend local has no regions: leave 'us-west-2' out" in command.err


# --- clean -------------------------------------------------------------------------------------------


class Asked(io.StringIO):
    """Somebody at a terminal, who answers."""

    def isatty(self) -> bool:
        return True


def test_a_removed_job_says_so_to_its_readers_and_is_computed_again(
    site: Site, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = site.results(same, range(ITEMS))
    job = results.job
    assert list(results) == list(range(ITEMS))

    assert command("clean", "--yes") == 1
    assert "has no 'retention_days'" in command.err
    assert command("clean", "--older-than", "1", "--yes", "--json") == 0
    assert (command.json["jobs"], command.json["kept"]) == ([], 1)
    assert command("clean", "--older-than", SOON, "--dry-run", "--json") == 0
    assert [each["job"] for each in command.json["jobs"]] == [job]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert command("clean", "--older-than", SOON) == 1
    assert "nobody can be asked" in command.err
    monkeypatch.setattr("sys.stdin", Asked("n\n"))
    assert command("clean", "--older-than", SOON) == 1
    assert job in command.out
    assert list(fresh(site, results)) == list(range(ITEMS)), "it was removed all the same"

    monkeypatch.setattr("sys.stdin", Asked("y\n"))
    assert command("clean", "--older-than", SOON) == 0
    assert "removed 1 job" in command.out
    assert sorted(path.name for path in (site.root / "store").iterdir()) == ["blobs", "removed"]
    with pytest.raises(StoreUnavailable, match=f"results of job {job} .* `spotbatch clean`.*Clear the task"):
        list(fresh(site, results))
    assert command("jobs", "--json") == 0
    assert command.json == []

    again = site.results(same, range(ITEMS))
    assert (again.generation, again.run) == (2, 1)
    assert list(again) == list(range(ITEMS))


def fresh(site: Site, results: Any) -> Any:
    """The result as another task gets it: nothing of it is at hand."""
    return type(results).deserialize(results.serialize(), results.__version__)


def test_a_clean_of_a_store_that_is_in_use_leaves_the_running_job(
    site: Site, command: Command, tmp_path: Path
) -> None:
    site.results(same, range(ITEMS))
    held = held_by(tmp_path / "gate")
    worker = site.submit(held, range(ITEMS), concurrency=2)
    with driven(worker):
        wait_until(lambda: bool(site.processes), "a machine")
        assert command("clean", "--older-than", SOON, "--yes", "--json") == 0
        assert len(command.json["jobs"]) == 1
        assert command.json["kept"] == 1
        (tmp_path / "gate").touch()
    outcome = worker.finish()
    assert (outcome.state, outcome.ok) == ("succeeded", ITEMS)


# --- check -------------------------------------------------------------------------------------------


def test_a_check_lists_what_works_and_what_does_not(site: Site, command: Command) -> None:
    assert command("check", CONN_ID, "--json") == 0
    checks = {check["name"]: check for check in command.json}
    assert {"connection", "key", "store: write", "store: delete", "folder: locks", "machines"} <= set(checks)
    assert command("check", "--store", f"file://{site.root}/store") == 0
    assert command.out.count("ok ") == 5

    site.root.chmod(0o755)
    assert command("check", CONN_ID) == 1
    assert "FAILED  folder: private" in command.out
    assert f"→ chmod 700 {site.root}" in command.out
    assert command("check", "nowhere", "--json") == 1
    assert [check["name"] for check in command.json] == ["connection"]
