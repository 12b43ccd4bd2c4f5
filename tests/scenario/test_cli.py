"""The command line's looks at real jobs, as text and as JSON: finished, running, cancelled and empty ones."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.control.submit import submit
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.worker import Worker
from tests.support.jobs import PATIENCE
from tests.support.runs import CONN_ID, REPOSITORY, Site, job_request, site_in, wait_until

CLI = [sys.executable, "-m", "airflow_provider_spotbatch.cli"]

ITEMS = 12


@dataclass
class Jobs:
    """A store with one job of each kind. ``release`` lets the running one end."""

    site: Site
    mixed: Outcome
    running: Worker
    release: Callable[[], Outcome]

    @property
    def store(self) -> str:
        return f"file://{self.site.root}/store"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    root = tmp_path_factory.mktemp("cli") / "root"
    gate = str(root / "gate")

    def mixed(item: int) -> int:
        print(f"\x1b[2Jitem {item} says [bold]hello[/bold]")
        if item == 3:
            raise ValueError("\x1b[31mred[/red] alert")
        if item in (5, 6, 7):
            raise KeyError("no such colour")
        return item * item

    def held(item: int) -> int:
        print(f"held {item} begins")
        if item == 0:
            raise RuntimeError("too early")
        while not os.path.exists(gate):
            time.sleep(0.02)
        print(f"held {item} ends")
        return item

    with pytest.MonkeyPatch.context() as patch:
        site = site_in(root, patch)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        outcome = site.outcome(mixed, range(ITEMS), item_retries=0, early_stop=None, max_failures=4)
        site.outcome(nothing, [])
        asyncio.run(cancelled_job())
        running = site.submit(held, range(3), item_retries=0, early_stop=None, concurrency=2)
        driving = threading.Thread(target=running.drive)
        driving.start()

        def release() -> Outcome:
            Path(gate).touch()
            driving.join(PATIENCE)
            return running.finish()

        try:
            wait_until(lambda: first_has_failed_and_two_run(site), "a failure, and two items that run")
            yield Jobs(site, outcome, running, release)
        finally:
            release()
        assert site.processes == []


def nothing(item: int) -> int:
    return item


async def cancelled_job() -> None:
    """A job of a mapped task that is cancelled before it has a machine, and never finished."""
    there = open_site(SpotBatchHook(CONN_ID).get_settings())
    request = replace(job_request(nothing, range(7)), task_id="mapped", map_index=2)
    submitted = await submit(there, request, lambda line: None)
    assert submitted.run is not None
    assert await cancel(there, submitted.run, "it was too dear", lambda line: None)


def first_has_failed_and_two_run(site: Site) -> bool:
    command = [*CLI, "show", "held", "--json", "--store", f"file://{site.root}/store"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    status = json.loads(shown.stdout)
    return (status["running"], sum(machine["failed"] for machine in status["machine_list"])) == (2, 1)


@dataclass
class Shown:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def spotbatch(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    def run(*arguments: str, where: tuple[str, ...] = ("--conn-id", CONN_ID)) -> Shown:
        capsys.readouterr()
        code = main([*arguments, *where])
        return Shown(code, *capsys.readouterr())

    return run


Spotbatch = Callable[..., Shown]


# --- jobs ----------------------------------------------------------------------------------------


def test_jobs_are_listed_with_their_states_those_begun_last_first(spotbatch: Spotbatch) -> None:
    listed = spotbatch("jobs", "--json").document

    assert [(job["airflow_task_id"], job["state"]) for job in listed] == [
        ("held", "running"),
        ("mapped", "cancelled"),
        ("nothing", "succeeded"),
        ("mixed", "succeeded"),
    ]
    mixed = listed[-1]
    assert (mixed["items"], mixed["ok"], mixed["failed"], mixed["causes"]) == (ITEMS, 8, 4, {"error": 4})
    assert mixed["ended"] > mixed["started"] > 0
    assert listed[1]["airflow_map_index"] == 2


def test_the_list_is_a_table_of_one_line_for_each_job(spotbatch: Spotbatch, jobs: Jobs) -> None:
    head, *rows = spotbatch("jobs").out.splitlines()

    assert head.split()[:5] == ["job", "dag", "task", "index", "dag"]
    assert len(rows) == 4
    assert rows[-1].split()[:6] == [jobs.mixed.job, "dag", "mixed", "run", "succeeded", "12/12"]
    assert rows[1].split()[3] == "2"


def test_the_newest_are_listed_and_those_of_one_dag(spotbatch: Spotbatch) -> None:
    assert len(spotbatch("jobs", "--json", "--limit", "2").document) == 2
    assert len(spotbatch("jobs", "--json", "--all", "--dag", "dag").document) == 4
    none = spotbatch("jobs", "--dag", "another")
    assert (none.code, none.out) == (0, "")
    assert "no jobs of DAG another" in none.err


def test_without_its_key_a_store_still_shows_everything_and_says_so(spotbatch: Spotbatch, jobs: Jobs) -> None:
    (jobs.site.root / "key").rename(jobs.site.root / "key.away")
    try:
        shown = spotbatch("failures", "mixed", "--json", where=("--store", jobs.store))
    finally:
        (jobs.site.root / "key.away").rename(jobs.site.root / "key")
    assert shown.document["failures"] == 4
    assert shown.document["groups"][0]["example"] is not None
    assert len(shown.err.splitlines()) == 1
    assert "signatures were not checked" in shown.err


def test_with_another_key_nothing_is_shown(
    spotbatch: Spotbatch, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTBATCH_KEY", "of somebody else")

    shown = spotbatch("failures", "mixed", where=("--store", jobs.store))
    assert (shown.code, shown.out) == (1, "")
    assert "was signed with the key" in shown.err
    listed = spotbatch("jobs", "--json", where=("--store", jobs.store)).document
    assert all(job["state"] is None and "signed" in job["trouble"] for job in listed)


# --- which job ------------------------------------------------------------------------------------


def test_a_part_of_an_id_that_fits_several_jobs_lists_them(spotbatch: Spotbatch) -> None:
    shown = spotbatch("show", "dag-")

    assert (shown.code, shown.out) == (1, "")
    assert "part of 4 job ids" in shown.err
    assert "(dag mapped run [2])" in shown.err
    assert "(dag mixed run)" in shown.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "no-such"), "'no-such'"),
        (("show", "mixed", "--run", "7"), "has no run 7; there are: 1"),
        (("failures", "mixed", "--generation", "9"), "has no generation 9; there are: 1"),
        (("logs", "mixed", "--item", "12"), "has no item 12: it has items 0 to 11"),
        (("logs", "nothing", "--item", "0"), "it has no items"),
        (("logs", "mixed", "--machine", "none-such"), "no machine has 'none-such' in its id"),
    ],
)
def test_what_is_not_there_is_one_clear_line(
    spotbatch: Spotbatch, arguments: tuple[str, ...], told: str
) -> None:
    shown = spotbatch(*arguments)

    assert (shown.code, shown.out) == (1, "")
    assert told in shown.err
    assert len(shown.err.splitlines()) == 1


# --- show -----------------------------------------------------------------------------------------


def test_a_finished_job_is_shown_with_its_machines_and_what_items_used(spotbatch: Spotbatch) -> None:
    shown = spotbatch("show", "mixed").out

    assert "12 of 12 items done (100 %), 4 failed" in shown
    assert "failed by cause: 4 error" in shown
    assert "starting" in shown  # a reason of the controller
    assert "what items used: measured on 8 items" in shown
    document = spotbatch("show", "mixed", "--json").document
    assert document["state"] == "succeeded"
    assert sum(machine["ok"] for machine in document["machine_list"]) == 8
    assert {machine["state"] for machine in document["machine_list"]} == {"ended"}
    assert document["use"]["items"] == 8


def test_a_running_job_shows_what_runs_where(spotbatch: Spotbatch) -> None:
    document = spotbatch("show", "held", "--json").document

    assert (document["state"], document["items"], document["running"]) == ("running", 3, 2)
    items = [item["item"] for machine in document["machine_list"] for item in machine["items"]]
    assert sorted(items) == [1, 2]
    text = spotbatch("show", "held").out
    assert "2 running" in text
    assert "on machine" in text


def test_a_job_without_items_and_a_cancelled_one_are_shown(spotbatch: Spotbatch) -> None:
    assert "0 of 0 items done" in spotbatch("show", "nothing").out
    cancelled = spotbatch("show", "mapped").out
    assert "task mapped [2]" in cancelled
    assert "cancelled: it was too dear" in cancelled
    assert "0 of 7 items done (0 %)" in cancelled


def test_on_a_terminal_a_running_job_is_drawn_until_ctrl_c(jobs: Jobs) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CLI, "show", "held", "--store", jobs.store],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "60"},
    )
    os.close(theirs)
    drawn = b""
    with closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        while drawn.count(b"items done") < 2:  # the second picture is drawn over the first
            drawn += terminal.read(65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        drawn += terminal.read(65536)
    assert b"Traceback" not in drawn


# --- failures -------------------------------------------------------------------------------------


def test_failures_are_grouped_the_most_frequent_first(spotbatch: Spotbatch) -> None:
    document = spotbatch("failures", "mixed", "--json").document

    assert (document["final"], document["failures"], document["groups_in_all"]) == (True, 4, 2)
    frequent, rare = document["groups"]
    assert (frequent["count"], frequent["items"], frequent["attempts"]) == (3, [5, 6, 7], 1)
    assert "KeyError" in frequent["label"]
    assert "KeyError: 'no such colour'" in frequent["example"]["traceback"]
    assert "item 5 says" in frequent["example"]["output_tail"]
    assert (rare["items"], rare["preview"]) == ([3], "3")


def test_text_of_items_reaches_the_terminal_as_text_alone(spotbatch: Spotbatch) -> None:
    for shown in (spotbatch("failures", "mixed").out, spotbatch("logs", "mixed").out):
        assert "\x1b" not in shown
        assert "\\x1b[2Jitem 3 says [bold]hello[/bold]" in shown
    assert "\\x1b[31mred[/red] alert" in spotbatch("failures", "mixed").out


def test_fewer_groups_tell_what_they_leave_out(spotbatch: Spotbatch) -> None:
    shown = spotbatch("failures", "mixed", "--limit", "1").out

    assert "4 failed of 12 items, 2 different errors" in shown
    assert "1 more error with 1 failure" in shown
    assert "ValueError" not in shown


def test_failures_of_a_running_job_are_told_as_not_final(spotbatch: Spotbatch) -> None:
    shown = spotbatch("failures", "held")

    assert "1 failed attempt of 3 items" in shown.out
    assert "RuntimeError: too early" in shown.out
    assert "has not ended" in shown.err


def test_a_job_without_failures_says_so(spotbatch: Spotbatch) -> None:
    assert spotbatch("failures", "nothing").out == "no failures among 0 items\n"


# --- logs -----------------------------------------------------------------------------------------


def test_every_line_tells_its_item_in_time_order(spotbatch: Spotbatch) -> None:
    lines = spotbatch("logs", "mixed", "--json").documents

    assert sorted(line["item"] for line in lines) == list(range(ITEMS))
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert {line["attempt"] for line in lines} == {1}
    text = spotbatch("logs", "mixed", "--item", "4").out
    assert text.count("\n") == 1
    assert " item 4 attempt 1 | " in text


def test_lines_are_chosen_by_text_machine_and_run(spotbatch: Spotbatch) -> None:
    machine = spotbatch("logs", "mixed", "--json").documents[0]["machine"]

    chosen = spotbatch("logs", "mixed", "--json", "--machine", machine, "--run", "1").documents
    assert {line["machine"] for line in chosen} == {machine}
    assert [line["item"] for line in spotbatch("logs", "mixed", "--json", "--grep", "item 1 ").documents] == [
        1
    ]
    none = spotbatch("logs", "mixed", "--grep", "ITEM 1 ")
    assert (none.code, none.out) == (0, "")
    assert "nothing that fits" in none.err


def test_logs_are_cut_short_quietly_by_who_reads_them(jobs: Jobs) -> None:
    command = " ".join([*CLI, "logs", "mixed", "--store", jobs.store])
    shown = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"], capture_output=True, text=True, timeout=60
    )
    assert (shown.returncode, shown.stderr) == (0, "")


# --- to the end (last: the running job ends here) ------------------------------------------------------


def test_what_is_followed_ends_with_the_job(jobs: Jobs, tmp_path: Path) -> None:
    outputs = {name: tmp_path / name for name in ("logs", "show")}
    commands = {"logs": ["logs", "held", "--follow"], "show": ["show", "held", "--watch", "--json"]}
    followers = []
    for name, command in commands.items():
        with outputs[name].open("w") as file:
            followers.append(subprocess.Popen([*CLI, *command, "--store", jobs.store], stdout=file))
    wait_until(lambda: "begins" in outputs["logs"].read_text(), "the first line of output")
    wait_until(lambda: outputs["show"].read_text() != "", "the first picture")

    assert jobs.release().failed == 1

    assert [process.wait(PATIENCE) for process in followers] == [0, 0]
    lines = outputs["logs"].read_text().splitlines()
    assert sorted(line.partition(" | ")[2] for line in lines) == sorted(
        [*(f"held {item} begins" for item in range(3)), "held 1 ends", "held 2 ends"]
    )
    pictures = [json.loads(line) for line in outputs["show"].read_text().splitlines()]
    assert (pictures[0]["state"], pictures[-1]["state"]) == ("running", "failed")
    assert "use" in pictures[-1]
    assert "use" not in pictures[0]
