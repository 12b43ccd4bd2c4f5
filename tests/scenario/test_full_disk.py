"""A disk that fills up while a job runs: it waits and says so, nothing is lost, and it goes on."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.errors import JobFailed
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.worker import Worker
from tests.support.runs import CONN_ID, Site, drive, site_in, wait_until
from tests.support.work import quarter_megabyte

ITEMS = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 18 MB, of which the tests' own source takes some on each machine."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=18m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode and os.environ.get("CI"):
        pytest.fail(f"no file system could be mounted: {mounted.stderr}")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def full_site(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = site_in(disk / "root", monkeypatch)
    yield site
    assert site.processes == []


class Driving:
    """A task process that drives its run in a thread, as long as it takes."""

    def __init__(self, worker: Worker) -> None:
        self.outcome: Outcome | JobFailed | None = None
        self._worker = worker
        self._thread = threading.Thread(target=self._drive)
        self._thread.start()

    def _drive(self) -> None:
        try:
            self.outcome = drive(self._worker)
        except JobFailed as error:
            self.outcome = error

    def join(self) -> Outcome | JobFailed | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome


def said_full(site: Site) -> bool:
    return any("No space left on device" in line for line in site.said)


def start_on_a_full_disk(site: Site, disk: Path) -> tuple[Driving, Worker]:
    worker = site.submit(quarter_megabyte, range(ITEMS), concurrency=2)
    (disk / "ballast").write_bytes(bytes(12 * 2**20))
    driving = Driving(worker)
    wait_until(lambda: said_full(site), "word of the full disk")
    return driving, worker


def test_a_job_waits_for_room_and_goes_on(full_site: Site, disk: Path) -> None:
    driving, _ = start_on_a_full_disk(full_site, disk)
    (disk / "ballast").unlink()
    outcome = driving.join()
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.ok) == ("succeeded", ITEMS)


def test_a_check_names_a_disk_that_is_full_and_one_that_is_read_only(full_site: Site, disk: Path) -> None:
    hook = SpotBatchHook(CONN_ID)
    hook.get_settings()  # makes the key
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    failed = {check.name: check for check in hook.check() if not check.ok}
    assert {"store", "store: write"} & set(failed)
    assert "Read-only file system" in " ".join(check.found for check in failed.values())
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    failed = {check.name: check for check in hook.check() if not check.ok}
    assert list(failed) == ["disk"]
    assert "GB free" in failed["disk"].found


def test_a_later_try_resumes_once_there_is_room(full_site: Site, disk: Path) -> None:
    driving, worker = start_on_a_full_disk(full_site, disk)
    worker.kill()
    assert isinstance(driving.join(), JobFailed)
    (disk / "ballast").unlink()

    results = full_site.results(quarter_megabyte, range(ITEMS), concurrency=2, max_tries=1)
    assert [len(value) for value in results] == [256 * 1024] * ITEMS
    assert results.run == 2
    assert any("resuming job" in line for line in full_site.said)
