"""Programs that cannot outlive this process, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Child:
    """A running program. A thread starts it and waits for it: the kernel kills the program when that
    thread ends, and so when this process does (PR_SET_PDEATHSIG goes by threads).

    ``ended`` is called in that thread with the return code: negative is a signal.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        *,
        env: Mapping[str, str] | None = None,
        ended: Callable[[int], None] = lambda code: None,
    ) -> None:
        self._command = ["setpriv", "--pdeathsig", "KILL", *command]
        self._output = output
        self._env = env
        self._ended = ended
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"child {command[0]}", daemon=True)
        self._thread.start()
        if not self._started.wait(30) or self._process is None:
            raise RuntimeError(f"could not start {command[0]}")

    def _run(self) -> None:
        try:
            with open(self._output, "ab") as output:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    start_new_session=True,
                )
        finally:
            self._started.set()
        self._ended(self._process.wait())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def kill(self, after: float = 0.0) -> None:
        """End it, unless it ends by itself within ``after`` seconds, and wait until it and what ``ended``
        does are through. Harmless when repeated."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(after)
        self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(30)
            if self._thread.is_alive():
                raise RuntimeError(f"{self._command} does not end")
