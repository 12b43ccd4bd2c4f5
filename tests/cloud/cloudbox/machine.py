"""One machine of the box: its network, metadata, file system and processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cloud.cloudbox.child import Child
from tests.cloud.cloudbox.facts import Facts
from tests.cloud.cloudbox.metadata import Metadata, MetadataServer
from tests.cloud.cloudbox.network import METADATA_ADDRESS, Connection

_INSIDE = Path(__file__).parent / "inside"
_INIT = "/usr/lib/cloudbox/init.py"
_BOOT_SECONDS = 10.0
_END_SECONDS = 5.0


class Machine:
    """Boots at once. ``ended`` is told when it ended by itself: powered off or crashed, not killed.

    A machine that reboots, from inside or by :meth:`reboot`, stays the same one: its disk is kept.
    """

    def __init__(
        self,
        facts: Facts,
        folder: Path,
        root: Path,
        connection: Connection,
        credentials: Callable[[], dict[str, str]],
        ended: Callable[[Machine], None],
    ) -> None:
        self.facts = facts
        self.metadata = Metadata(
            facts.metadata, facts.user_data, facts.role, credentials, hop_limit=facts.hop_limit
        )
        self.metadata.values["meta-data/local-ipv4"] = connection.address
        host_name = f"ip-{connection.address.replace('.', '-')}.{facts.region}.compute.internal"
        self.metadata.values["meta-data/local-hostname"] = host_name
        self._folder = folder
        self._root = root
        self._connection = connection
        self._ended = ended
        self._killed = False
        self._restart = False
        self._power = threading.Lock()
        for name in ("upper/usr/lib/cloudbox", "work", "root"):
            (folder / name).mkdir(parents=True)
        for program in ("init.py", "cloud_init.py"):
            shutil.copy(_INSIDE / program, folder / "upper/usr/lib/cloudbox")
        self._server = MetadataServer(connection.listen((METADATA_ADDRESS, 80)), self.metadata)
        with self._power:
            self._child = self._boot()

    def _boot(self) -> Child:
        return Child(
            [
                *("nsenter", f"--net=/run/netns/{self._connection.namespace}"),
                *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"),
                *("/bin/sh", str(_INSIDE / "boot.sh"), str(self._root), str(self._folder)),
            ],
            self._folder / "console",
            env={"PATH": os.environ.get("PATH", os.defpath)},
            ended=self._child_ended,
        )

    def _child_ended(self, code: int) -> None:
        """In the thread of the child that ended. unshare ends by the signal that its child ended by:
        reboot(2) in a PID namespace tells a restart by SIGHUP."""
        with self._power:
            again = not self._killed and (self._restart or code == -signal.SIGHUP)
            self._restart = False
            if again:
                self._child = self._boot()
        if not again:
            self._close()
            if not self._killed:
                self._ended(self)

    @property
    def running(self) -> bool:
        return self._child.running

    def kill(self) -> None:
        """As if the power was cut. Its disk is gone, its console stays."""
        with self._power:
            self._killed = True
            child = self._child
        _cut_power(child)

    def reboot(self) -> None:
        with self._power:
            self._restart = True
            child = self._child
        _cut_power(child)

    def _close(self) -> None:
        console = self.console()
        self._server.close()
        self._connection.close()
        for name in ("upper", "work", "root"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        (self._folder / "console").write_text(console)

    def cut(self) -> None:
        self._connection.cut()

    def restore(self) -> None:
        self._connection.restore()

    def freeze(self) -> None:
        """Stop every process, also those that are made while it goes through them."""
        self._init()
        self._to_all(signal.SIGSTOP, stopped=True)

    def thaw(self) -> None:
        self._to_all(signal.SIGCONT, stopped=False)

    def _to_all(self, number: signal.Signals, stopped: bool) -> None:
        deadline = time.monotonic() + 10
        while others := [pid for pid in self._processes() if _is_stopped(pid) not in (stopped, None)]:
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {others} of {self.facts.instance} do not obey {number.name}")
            time.sleep(0.001)

    def _processes(self) -> list[int]:
        """All of the machine's, init first: its children's children end up below it."""
        found = _children(self._child.pid)
        for pid in found:
            found.extend(_children(pid))
        return found

    def console(self) -> str:
        """What its first process and its user data wrote."""
        texts = [self._folder / "console", self._folder / "upper/var/log/cloud-init-output.log"]
        return "".join(path.read_text(errors="replace") for path in texts if path.exists())

    def _init(self) -> int:
        """The machine's first process, as soon as it is in its own root."""
        deadline = time.monotonic() + _BOOT_SECONDS
        while time.monotonic() < deadline and not self._killed:
            for pid in _children(self._child.pid):
                if _INIT in _command_line(pid):
                    return pid
            time.sleep(0.005)
        raise RuntimeError(f"{self.facts.instance} does not run; it wrote:\n{self.console()}")

    def run(self, command: Sequence[str], seconds: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root."""
        init = self._init()
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root")
        return subprocess.run(
            ["nsenter", f"--target={init}", *spaces, *command],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _cut_power(child: Child) -> None:
    """By way of its first process: that one's end is seen when all others have ended."""
    first = _children(child.pid)
    for init in first:
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)
    child.kill(after=_END_SECONDS if first else 0.0)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _is_stopped(pid: int) -> bool | None:
    """None for a process that is gone or a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else state == "T"
