"""A box's share of the host: a number that no other box has, and what is named by it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BASE = Path("/var/tmp/spotbatch-cloudbox")
"""One for the host, since names of networks are the host's. Not on a tmpfs: machines write here."""

MOST = 200
"""Boxes on one host at once."""


class Plot:
    """Number, folder and names of one box, for as long as it holds the lock on them."""

    def __init__(self, number: int, lock: IO[str]) -> None:
        self.number = number
        self.folder = BASE / str(number)
        self._lock = lock

    @property
    def bridge(self) -> str:
        return f"cloudbox{self.number}"

    def namespace(self, machine: int) -> str:
        return f"cloudbox{self.number}-{machine}"

    def port(self, machine: int) -> str:
        """The bridge's end of a machine's link."""
        return f"cb{self.number}-{machine}"

    def address(self, machine: int) -> str:
        """1 is the cloud itself."""
        return f"10.213.{self.number}.{machine}"

    def clear(self) -> None:
        """Remove everything that has this number: what an earlier box left, or this one's at its end."""
        for port in _names("/sys/class/net", f"cb{self.number}-"):
            with contextlib.suppress(subprocess.CalledProcessError):  # it goes with its namespace: just now
                _ip("link", "delete", port)
        for namespace in _names("/run/netns", f"{self.bridge}-"):
            _end_processes(namespace)
            _ip("netns", "delete", namespace)
        if Path(f"/sys/class/net/{self.bridge}").exists():
            _ip("link", "delete", self.bridge)
        shutil.rmtree(self.folder, ignore_errors=True)

    def release(self) -> None:
        self.clear()
        self._lock.close()


def claim() -> Plot:
    """A free plot. Those that crashed boxes left behind are cleared on the way."""
    BASE.mkdir(parents=True, exist_ok=True)
    found: Plot | None = None
    for plot in _unused():
        plot.clear()
        if found is None:
            found = plot
        else:
            plot.release()
    if found is None:
        raise RuntimeError(f"{MOST} boxes run on this host: end some")
    found.folder.mkdir()
    return found


def _unused() -> Iterator[Plot]:
    """Those that nobody holds, of all that were ever used, and one more if need be."""
    fresh = True
    for number in range(MOST):
        used_before = (BASE / f"{number}.lock").exists()
        if not used_before and not fresh:
            return
        lock = (BASE / f"{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        fresh = False
        yield Plot(number, lock)


def _names(folder: str, prefix: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [name for name in os.listdir(folder) if name.startswith(prefix)]
    return []


def _end_processes(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=True).stdout
