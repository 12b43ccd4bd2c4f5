"""A machine of the local backend vanishes whole, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.local import LocalBackend
from airflow_provider_spotbatch.backends.local_fleet import LocalFleet
from airflow_provider_spotbatch.backends.local_machine import processes_of, start_time
from airflow_provider_spotbatch.backends.rehearsal import Rehearsal
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import PENDING, RUNNING, TERMINATED, Instance, LaunchRecord

RUN = Run(Generation("job-0123456789abcdef", 1), 1)
KEY = "5ec2e7" * 8
SLEEPING = "import time; time.sleep(60)"

# An agent with a child that left its session, its environment and its parent: as detached as can be.
DETACHED = """
import subprocess, sys, time
program = "import os, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(60)"
with open("../detached", "w") as file:
    command = [sys.executable, "-S", "-c", program]
    subprocess.run(command, env={}, stdout=file, start_new_session=True)
time.sleep(60)
"""


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def open_files(pid: int) -> list[str]:
    """What a process has open; files that it closes meanwhile are left out."""
    files = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(entry))
    return files


class OneMachine:
    """A launched machine and what can be seen of it."""

    def __init__(self, root: Path, program: str, *, rehearse: Rehearsal | None = None, **boot: Any) -> None:
        options = {"path": str(root), "rehearse": rehearse}
        self.backend = LocalBackend(Settings("c", "local", b"k", options=options))
        self.backend.agent_command = [sys.executable, "-S", "-c", program]
        self.boot = Boot("local", "file:///s", RUN.generation.job, 1, 1, KEY, **boot)
        self.record = LaunchRecord(1, slots=(1,), token="t")
        [launched] = asyncio.run(self.fleet.launch(self.record)).instances
        self.id = launched.id
        self.folder = root / "machines" / self.id

    @property
    def fleet(self) -> LocalFleet:
        return self.backend.fleet(RUN, self.boot)

    @property
    def seen(self) -> Instance:
        [instance] = asyncio.run(self.fleet.describe())
        return instance

    @property
    def own(self) -> list[int]:
        """Pids of the frame and the system."""
        return [pid for pid, _ in json.loads((self.folder / "pid").read_text())["processes"]]

    @property
    def agent(self) -> int:
        def child() -> str:
            return Path(f"/proc/{self.own[1]}/task/{self.own[1]}/children").read_text().strip()

        return int(until(child).split()[0])

    def has_written(self, name: str) -> str:
        return str(until(lambda: (self.folder / name).exists() and (self.folder / name).read_text()))

    def terminate(self) -> None:
        asyncio.run(self.fleet.terminate([self.id]))

    def until_gone(self) -> Instance:
        end: Instance = until(lambda: (seen := self.seen).state == TERMINATED and seen)
        assert processes_of(str(self.folder), []) == set()
        return end


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., OneMachine]]:
    made: list[OneMachine] = []

    def make(program: str, **boot: Any) -> OneMachine:
        made.append(OneMachine(tmp_path, program, **boot))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


class TestEnds:
    @pytest.mark.parametrize("victim", [0, 1], ids=["frame", "system"])
    def test_nothing_outlives_a_killed_machine(self, machine: Any, victim: int) -> None:
        one = machine(DETACHED)
        detached = int(one.has_written("detached"))
        os.kill(one.own[victim], signal.SIGKILL)
        end = one.until_gone()
        assert (end.interrupted, end.reason) == (False, "the machine was killed")
        assert start_time(detached) is None

    def test_the_fleet_ends_what_a_machine_killed_whole_leaves(self, machine: Any) -> None:
        one = machine(
            f"import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); {SLEEPING}"
        )
        until(lambda: len(processes_of(str(one.folder), [])) == 4)
        for pid in [*one.own, one.agent]:
            os.kill(pid, signal.SIGSTOP)
        for pid in one.own:
            os.kill(pid, signal.SIGKILL)
        assert one.until_gone().reason == "the machine was killed"

    def test_a_machine_of_the_same_id_in_another_folder_is_another(
        self, machine: Any, tmp_path: Path
    ) -> None:
        """As where two Airflows of one host run the same DAG."""
        one = machine(SLEEPING)
        other = OneMachine(tmp_path / "other", SLEEPING)
        try:
            assert other.id == one.id
            one.terminate()
            assert one.until_gone().reason == "terminated"
            assert other.seen.state == RUNNING
            assert len(processes_of(str(other.folder), [])) == 3
        finally:
            other.terminate()

    def test_a_machine_ends_with_its_agent(self, machine: Any) -> None:
        one = machine(DETACHED)
        detached = int(one.has_written("detached"))
        os.kill(one.agent, signal.SIGKILL)
        assert one.until_gone().reason.startswith("the agent ended with signal 9")
        assert start_time(detached) is None

    def test_the_last_lines_of_a_failed_agent_are_its_reason(self, machine: Any) -> None:
        reason = machine("import sys; sys.exit('no such store')").until_gone().reason
        assert reason == "the agent ended with exit code 1; its last lines:\nno such store"

    def test_an_agent_that_cannot_be_started_is_named(self, machine: Any, tmp_path: Path) -> None:
        one = machine(SLEEPING)
        one.backend.agent_command = [str(tmp_path / "missing")]
        [other] = asyncio.run(one.fleet.launch(LaunchRecord(2, slots=(1,), token="u"))).instances

        def end() -> Any:
            seen = {machine.id: machine for machine in asyncio.run(one.fleet.describe())}
            return seen[other.id].state == TERMINATED and seen[other.id]

        assert f"the agent cannot be started: {tmp_path / 'missing'}: No such file" in until(end).reason

    def test_a_lifetime_ends_it(self, machine: Any) -> None:
        end = machine(SLEEPING, lifetime=0.3).until_gone()
        assert (end.interrupted, end.reason) == (False, "its lifetime of 0.3 s was over")

    @pytest.mark.parametrize("victim", [0, 1], ids=["frame", "system"])
    def test_sigterm_is_the_notice_and_its_grace_ends(self, machine: Any, victim: int) -> None:
        one = machine(SLEEPING, grace=0.3)
        os.kill(one.own[victim], signal.SIGTERM)
        until((one.folder / "interrupt").exists)
        assert one.seen.state == RUNNING
        end = one.until_gone()
        assert (end.interrupted, end.reason) == (True, "interrupted")

    def test_an_agent_that_leaves_within_its_grace_was_interrupted(self, machine: Any) -> None:
        one = machine(
            "import os, time\nwhile not os.path.exists('../interrupt'): time.sleep(0.01)", grace=60.0
        )
        (one.folder / "interrupt").touch()
        end = one.until_gone()
        assert (end.interrupted, end.reason) == (True, "the agent ended")

    def test_a_frozen_machine_is_terminated(self, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_provider_spotbatch.backends.local_fleet.END_SECONDS", 0.5)
        one = machine(DETACHED)
        detached = int(one.has_written("detached"))
        for pid in [*one.own, one.agent]:
            os.kill(pid, signal.SIGSTOP)
        asyncio.run(one.fleet.terminate([one.id]))
        assert one.until_gone().reason == "terminated"
        assert start_time(detached) is None

    def test_what_it_wrote_to_its_disk_is_gone_with_it(self, machine: Any) -> None:
        one = machine(f"open('data', 'w').write('x'); open('../ready', 'w').write('x'); {SLEEPING}")
        one.has_written("ready")
        assert (one.folder / "disk" / "data").exists()
        asyncio.run(one.fleet.terminate([one.id]))
        one.until_gone()
        assert not (one.folder / "disk").exists()


class TestStart:
    def test_the_agent_gets_its_boot_data_on_standard_input(self, machine: Any) -> None:
        one = machine("import sys; open('../told', 'w').write(sys.stdin.read())" + f"; {SLEEPING}")
        boot = Boot.from_text(one.has_written("told"))
        assert (boot.instance, boot.launch, boot.slots, boot.key) == (one.id, 1, 1, KEY)
        assert boot.folder == str(one.folder / "disk")

    def test_the_key_is_on_no_command_line_and_in_no_file(self, machine: Any) -> None:
        one = machine(SLEEPING)
        for pid in [*one.own, one.agent]:
            for place in ("cmdline", "environ"):
                assert KEY.encode() not in Path(f"/proc/{pid}/{place}").read_bytes()
        for path in one.folder.rglob("*"):
            assert path.is_dir() or KEY.encode() not in path.read_bytes()

    def test_nothing_of_the_launching_process_is_inherited(self, machine: Any) -> None:
        with open("/dev/zero") as file:
            os.set_inheritable(file.fileno(), True)
            one = machine(SLEEPING)
        for pid in [*one.own, one.agent]:
            assert "/dev/zero" not in open_files(pid)
            assert os.getsid(pid) == one.own[0]
        assert os.getsid(0) != one.own[0]

    def test_its_folders_are_private(self, machine: Any, tmp_path: Path) -> None:
        one = machine(SLEEPING)
        for folder in (tmp_path / "machines", one.folder, one.folder / "disk"):
            until(folder.exists)
            assert folder.stat().st_mode & 0o077 == 0

    def test_a_machine_outlives_the_process_that_launched_it(self, tmp_path: Path) -> None:
        program = f"""
import asyncio, sys
from airflow_provider_spotbatch.backends.local import *
from airflow_provider_spotbatch.job.keys import *
from airflow_provider_spotbatch.job.launches import *
backend = LocalBackend(Settings("c", "local", b"k", options={{"path": {str(tmp_path)!r}}}))
backend.agent_command = [sys.executable, "-S", "-c", {SLEEPING!r}]
run = Run(Generation("job-0123456789abcdef", 1), 1)
asyncio.run(backend.fleet(run, Boot("local", "", "j", 1, 1, "")).launch(LaunchRecord(1, slots=(1,))))
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=30, start_new_session=True)
        backend = LocalBackend(Settings("c", "local", b"k", options={"path": str(tmp_path)}))
        fleet = backend.fleet(RUN, Boot("local", "", "j", 1, 1, ""))
        [instance] = asyncio.run(fleet.describe())
        assert instance.state == RUNNING
        asyncio.run(fleet.terminate([instance.id]))

    def test_a_launch_that_died_before_the_start_is_completed(self, machine: Any) -> None:
        one = machine(SLEEPING)
        asyncio.run(one.fleet.terminate([one.id]))
        one.until_gone()
        for name in ("pid", "terminated", "ended"):
            (one.folder / name).unlink()
        assert one.seen.state == PENDING
        [again] = asyncio.run(one.fleet.launch(one.record)).instances
        assert (again.id, one.seen.state) == (one.id, RUNNING)

    def test_a_machine_terminated_before_its_start_never_starts(self, machine: Any) -> None:
        one = machine(SLEEPING)
        asyncio.run(one.fleet.terminate([one.id]))
        one.until_gone()
        for name in ("pid", "terminated", "ended"):
            (one.folder / name).unlink()
        asyncio.run(one.fleet.terminate([one.id]))
        asyncio.run(one.fleet.launch(one.record))
        assert one.until_gone().reason == "terminated"

    def test_a_machine_of_another_pid_namespace_obeys_all_the_same(self, machine: Any) -> None:
        one = machine(SLEEPING)
        identity = json.loads((one.folder / "pid").read_text())
        (one.folder / "pid").write_text(json.dumps({**identity, "namespace": "pid:[1]"}))
        assert one.seen.state == RUNNING
        asyncio.run(one.fleet.terminate([one.id]))
        assert one.until_gone().reason == "terminated"

    def test_a_root_that_cannot_be_written_is_refused_with_the_cure(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        backend = LocalBackend(
            Settings("c", "local", b"k", options={"path": str(tmp_path / "file" / "root")})
        )
        outcome = asyncio.run(
            backend.fleet(RUN, Boot("local", "", "j", 1, 1, "")).launch(LaunchRecord(1, slots=(1,)))
        )
        assert outcome.instances == ()
        [refusal] = outcome.refusals
        assert str(tmp_path / "file") in refusal.message
        assert refusal.remedy

    def test_tombstones_are_forgotten_after_a_day(self, machine: Any, tmp_path: Path) -> None:
        one = machine(SLEEPING)
        old = tmp_path / "machines" / "old-1-1-1-0"
        old.mkdir()
        for folder in (old, one.folder):
            os.utime(folder, (0, 0))
        asyncio.run(one.fleet.launch(one.record))
        assert not old.exists()
        assert one.folder.exists()
