"""Runs on a machine, as an item: when each of the programs above it was started.

A worker's parent is the agent, whose parent is the boot program; process 1 began with the machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def started_at(item: int) -> dict[str, float]:
    """Program → its start in seconds since the epoch, to 10 ms; ``item``: this call's."""
    now = time.time()
    found = {"item": now, "worker": _start(os.getpid(), now), "machine": _start(1, now)}
    agent = _parent(os.getpid())
    return {**found, "agent": _start(agent, now), "boot program": _start(_parent(agent), now)}


def _start(pid: int, now: float) -> float:
    up = float(Path("/proc/uptime").read_text().split()[0])
    return now - (up - int(_fields(pid)[19]) / os.sysconf("SC_CLK_TCK"))


def _parent(pid: int) -> int:
    return int(_fields(pid)[1])


def _fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat, from the state on: the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
