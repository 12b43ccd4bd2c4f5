"""The local backend's fleet: folders of machines, and the processes that play them.

A machine's folder is made whole (``machine.json`` in it) by one rename, and stays as a tombstone
when the machine has ended: a repeated launch finds it. A launch that died half-way is completed by
the next one: whoever starts a machine that is on, or was, starts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import airflow_provider_spotbatch
from airflow_provider_spotbatch.backends import local_machine
from airflow_provider_spotbatch.backends.base import RunMachine
from airflow_provider_spotbatch.backends.rehearsal import Event, Rehearsal
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import AccessDenied, CloudUnavailable, NoCapacity, Refusal
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import (
    PENDING,
    RUNNING,
    TERMINATED,
    Instance,
    LaunchOutcome,
    LaunchRecord,
)

START_SECONDS = 30.0
"""Protects a tick from a machine that does not come up; it takes 50 ms on an idle one."""

END_SECONDS = 3.0
"""What a machine has to end by itself when told to, before its processes are killed from outside."""

REMEMBERED_SECONDS = 24 * 3600.0
"""How long the tombstone of an ended machine is kept: a launch is repeated for 30 min at most."""


class LocalFleet:
    """See :class:`~airflow_provider_spotbatch.backends.base.Fleet`. ``command`` starts the agent."""

    visibility_bound = 0.0

    def __init__(
        self, root: str, run: Run, boot: Boot, command: list[str], rehearsal: Rehearsal | None = None
    ) -> None:
        self._root = root
        self._run = run
        self._boot = replace(boot, python=boot.python or sys.executable)
        self._command = command
        self._rehearsal = rehearsal or Rehearsal()

    async def launch(self, record: LaunchRecord, within: float = math.inf) -> LaunchOutcome:
        until = time.monotonic() + within
        await asyncio.to_thread(forget_ended, self._root)
        if time.monotonic() > until:
            raise CloudUnavailable(f"launch {record.number} was not asked for: it was too late for it")
        ids = [self._instance(record, ordinal) for ordinal in range(len(record.slots))]
        answers = await asyncio.gather(
            *(
                asyncio.to_thread(self._start, instance, record, slots)
                for instance, slots in zip(ids, record.slots, strict=True)
            )
        )
        return LaunchOutcome(
            instances=tuple(answer for answer in answers if isinstance(answer, Instance)),
            refusals=tuple(answer for answer in answers if isinstance(answer, Refusal)),
        )

    async def describe(self) -> list[Instance]:
        return await asyncio.to_thread(self._describe)

    async def terminate(self, instances: Sequence[str]) -> None:
        await asyncio.to_thread(terminate, self._root, instances)

    async def close(self) -> None:
        """Nothing but machines serves to launch here."""

    @property
    def _prefix(self) -> str:
        """What the names of all machines of the run begin with: the job by the hash its id ends with."""
        generation = self._run.generation
        return f"{generation.job[-16:].strip('-')}-{generation.number}-{self._run.number}-"

    def _instance(self, record: LaunchRecord, ordinal: int) -> str:
        token = hashlib.sha256(record.token.encode()).hexdigest()[:8]
        return f"{self._prefix}{record.number}-{token}-{ordinal}"

    def _start(self, instance: str, record: LaunchRecord, slots: int) -> Instance | Refusal:
        """Make sure that the machine was started, once."""
        folder = machine_folder(self._root, instance)
        try:
            if not os.path.exists(folder):
                _make_folder(folder, self._about(record, slots))
            if not (_has(folder, "pid") or _has(folder, "terminated")):
                self._power_on(folder, instance, record, slots)
        except PermissionError as error:
            _forget_unless_started(folder)
            return AccessDenied(
                f"no machine can be made in {folder}: {error.strerror}",
                remedy="set 'path' of the connection to a folder that Airflow may write",
            )
        except (OSError, subprocess.SubprocessError) as error:
            _forget_unless_started(folder)
            return NoCapacity(
                f"no machine can be started in {folder}: {_explain(error)}",
                remedy="free disk, memory or process slots of this machine",
            )
        return _look(folder)

    def _about(self, record: LaunchRecord, slots: int) -> dict[str, Any]:
        """What is remembered of a machine: its tags."""
        return {"run": self._run.tag, "store": self._boot.store, "launch": record.number, "slots": slots}

    def _power_on(self, folder: str, instance: str, record: LaunchRecord, slots: int) -> None:
        boot = self._boot.for_machine(
            instance,
            record.number,
            slots,
            record.memory_class,
            os.path.join(folder, "disk"),
            record.lifetime_seconds,
        )
        orders = {
            "folder": folder,
            "command": self._command,
            "boot": boot.to_text(),
            "lifetime": boot.lifetime,
            "grace": boot.grace,
            "fate": [asdict(event) for event in self._fate(instance, record)],
        }
        # The instance is an argument for people who read ps; the orders hold a key, so they are none.
        subprocess.run(
            [sys.executable, "-I", "-S", local_machine.__file__, instance],
            input=json.dumps(orders).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, local_machine.MARK: local_machine.mark(folder)},
            timeout=START_SECONDS,
            check=True,
        )

    def _fate(self, instance: str, record: LaunchRecord) -> list[Event]:
        ordinal = int(instance.rpartition("-")[2])
        return self._rehearsal.fate(record.number, ordinal, random.Random(instance))

    def _describe(self) -> list[Instance]:
        found = []
        for folder in _folders(self._root, self._prefix):
            with contextlib.suppress(FileNotFoundError):  # forgotten meanwhile
                found.append(_look(folder))
        return found


def agent_command() -> list[str]:
    """Start the agent with this interpreter, which finds the package where this process found it."""
    home = str(Path(airflow_provider_spotbatch.__file__).parent.parent)
    program = (
        # Not the working folder, which "-c" puts first; our own last, so that it hides nothing.
        f"import sys; sys.path[:] = [*filter(None, sys.path), {home!r}]; "
        "import runpy; runpy.run_module('airflow_provider_spotbatch.agent', run_name='__main__')"
    )
    return [sys.executable, "-c", program]


def machine_folder(root: str, instance: str) -> str:
    """The folder of a machine. Raises ValueError for what is no instance's name."""
    if not re.fullmatch(r"[a-z0-9-]+", instance):
        raise ValueError(f"no machine of the local backend is named {instance!r}")
    return os.path.join(root, "machines", instance)


def _make_folder(folder: str, about: dict[str, Any]) -> None:
    """Make the folder with its ``machine.json`` at once, or find that another did."""
    parent, name = os.path.split(folder)
    os.makedirs(os.path.dirname(parent), mode=0o700, exist_ok=True)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    draft = os.path.join(parent, f".{name}-{secrets.token_hex(4)}")
    os.mkdir(draft, 0o700)
    try:
        with open(os.path.join(draft, "machine.json"), "w") as file:
            json.dump(about, file)
        os.rename(draft, folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not os.path.exists(folder):
            raise


def _forget_unless_started(folder: str) -> None:
    """A refused machine is not shown as one that is coming up, and may be asked for again."""
    if not _has(folder, "pid"):
        shutil.rmtree(folder, ignore_errors=True)


def _look(folder: str) -> Instance:
    """The machine as it is now. One that was killed whole is given the end it could not have."""
    state: str = RUNNING
    end: dict[str, Any] = {}
    if not _has(folder, "pid") and not _has(folder, "terminated"):
        state = PENDING
    elif not local_machine.is_on(folder) and (known := _end_of(folder)):
        state, end = TERMINATED, known
    machine = _read(folder, "machine.json")
    return Instance(
        id=os.path.basename(folder),
        launch=machine["launch"],
        slots=machine["slots"],
        state=state,
        interrupted=end.get("interrupted", False),
        reason=end.get("reason", ""),
    )


def machines_of(root: str, store: str) -> list[RunMachine]:
    """The machines of all runs whose store is at ``store``, a URI. Blocks."""
    found = []
    for folder in _folders(root):
        with contextlib.suppress(FileNotFoundError):
            about = _read(folder, "machine.json")
            if about["store"] == store:
                found.append(RunMachine(about["run"], _look(folder)))
    return found


def terminate(root: str, instances: Sequence[str]) -> None:
    """Tell all of them first, then see to each that does not obey. Blocks."""
    folders = [machine_folder(root, instance) for instance in instances]
    known = [folder for folder in folders if os.path.exists(folder)]
    for folder in known:
        with contextlib.suppress(OSError):  # on a full disk it is killed below, all the same
            Path(folder, "terminated").touch(mode=0o600)
        for pid in _processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, local_machine.POWER_OFF)
    deadline = time.monotonic() + END_SECONDS
    for folder in known:
        while local_machine.is_on(folder) and time.monotonic() < deadline:
            time.sleep(0.01)
        _end_of(folder)


def _end_of(folder: str) -> dict[str, Any] | None:
    """How the machine ended, having ended what it could not end itself; None while it is there."""
    deadline = time.monotonic() + END_SECONDS
    while local_machine.is_on(folder) or not _has(folder, "ended"):
        left = local_machine.processes_of(folder, _processes(folder))
        if not left and not local_machine.is_on(folder):
            return _bury(folder)
        if time.monotonic() > deadline:
            return None
        local_machine.kill(left)
        time.sleep(0.01)
    return _read(folder, "ended")


def _bury(folder: str) -> dict[str, Any]:
    reason = "terminated" if _has(folder, "terminated") else "the machine was killed"
    try:
        local_machine.bury(folder, reason)
        return _read(folder, "ended")
    except OSError:  # a full disk keeps no record, but no machine either
        return {"reason": reason, "interrupted": _has(folder, "interrupt")}


def _processes(folder: str) -> list[int]:
    """Pids of the machine's own processes that still live; none if it is not of this pid namespace."""
    if not _has(folder, "pid"):
        return []
    identity = _read(folder, "pid")
    if identity["namespace"] != os.readlink("/proc/self/ns/pid"):
        return []  # it reads ``terminated`` itself
    return [pid for pid, started in identity["processes"] if local_machine.start_time(pid) == started]


def forget_ended(root: str) -> int:
    """Remove the tombstones of machines that ended long ago, and drafts that were never finished; how
    many. Blocks."""
    machines = Path(root, "machines")
    if not machines.exists():
        return 0
    forgotten = 0
    before = time.time() - REMEMBERED_SECONDS
    for folder in machines.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_mtime < before and not local_machine.is_on(str(folder)):
                shutil.rmtree(folder, ignore_errors=True)
                forgotten += 1
    return forgotten


def _folders(root: str, prefix: str = "") -> list[str]:
    """The folders of machines whose names begin with ``prefix``."""
    machines = os.path.join(root, "machines")
    try:
        names = sorted(name for name in os.listdir(machines) if name.startswith(prefix))
    except FileNotFoundError:
        return []
    return [os.path.join(machines, name) for name in names if not name.startswith(".")]


def _has(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def _read(folder: str, name: str) -> dict[str, Any]:
    with open(os.path.join(folder, name)) as file:
        content: dict[str, Any] = json.load(file)
    return content


def _explain(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").split("\n")
        return lines[-2] if len(lines) > 1 else f"exit code {error.returncode}"
    return str(error)
