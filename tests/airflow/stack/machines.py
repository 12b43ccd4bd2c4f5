"""Machines of the local backend as the kernel knows them: processes that carry the mark of a machine."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

MARK = b"SPOTBATCH_MACHINE="
LOOK_SECONDS = 0.1


def alive() -> frozenset[str]:
    """Instances of which any process runs."""
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit() and (name := _instance_of(pid)):
            found.add(name)
    return frozenset(found)


def _instance_of(pid: str) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()  # empty for a zombie
    except OSError:
        return None
    for variable in environment.split(b"\0"):
        if variable.startswith(MARK):
            return os.path.basename(variable.decode())
    return None


@dataclass
class Watcher:
    """Keeps looking, so that what was alive together is known afterwards."""

    seen: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """Each change: when (monotonic seconds), and which instances were alive from then on."""

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            now = alive()
            if not self.seen or self.seen[-1][1] != now:
                self.seen.append((time.monotonic(), now))
