"""Processes of this machine, read from /proc: who descends from whom, how much memory, how to end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

END_SECONDS = 5.0
"""How long processes are hunted: some may fork faster than they are found, one may hang in the kernel."""


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it. ``started`` (clock ticks since boot) tells reused pids apart."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


def look_at(pid: int) -> Process | None:
    """The process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, even parentheses and spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), started=int(fields[19])
    )


def all_processes() -> list[Process]:
    found = (look_at(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(root: int) -> list[int]:
    """``root`` and every process below it."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return [process.pid for process in _below(root, all_processes())]
    found = [root]
    for pid in found:  # grows while it is walked
        found += _children(pid)
    return found


def resident_mb(pids: Iterable[int]) -> float:
    """Resident memory of processes, summed, in MB (2**20 bytes). Pages they share count for each."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages += int(file.read().split()[1])
        except (OSError, IndexError):
            continue
    return pages * PAGE_BYTES / 2**20


def end_all(root: Process, tag: str, seen: Iterable[Process] = ()) -> None:
    """End ``root`` and every process it ever started, and return once they are gone. Blocks.

    They are found as its descendants, by its session and process group, by ``tag`` (``NAME=value``) in
    the environment they were started with, and as those ``seen`` below it before.
    """
    deadline = time.monotonic() + END_SECONDS
    if _is_same(look_at(root.pid), root):
        _signal(root.pid, signal.SIGSTOP)  # it starts no others while they are looked for
    while True:
        members = [process for process in _members(root, tag, seen) if process.state not in "ZX"]
        if not members or time.monotonic() > deadline:
            return
        others = [process for process in members if process.pid != root.pid]
        for process in others or members:
            _signal(process.pid, signal.SIGKILL)
        time.sleep(0.002)


def _is_same(process: Process | None, other: Process) -> bool:
    return process is not None and (process.pid, process.started) == (other.pid, other.started)


def _members(root: Process, tag: str, seen: Iterable[Process]) -> list[Process]:
    everyone = all_processes()
    wanted = tag.encode()
    known = {(process.pid, process.started) for process in seen}
    reused = any(process.pid == root.pid and process.started != root.started for process in everyone)
    below = set() if reused else {process.pid for process in _below(root.pid, everyone)}
    return [
        process
        for process in everyone
        if process.pid in below
        or (not reused and root.pid in (process.group, process.session))
        or (process.pid, process.started) in known
        or wanted in _environment(process.pid)
    ]


def _below(root: int, everyone: list[Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    found = []
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
        if process.pid == root:
            found.append(process)
    for process in found:  # grows while it is walked
        found += children.get(process.pid, ())
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # the process, or the thread, is gone
    return found


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
