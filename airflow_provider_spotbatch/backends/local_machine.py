"""A machine of the local backend: the processes that play its hardware and its operating system.

Run as a script by its path, with the standard library alone, so that it starts in some 20 ms and
stays small. Its orders come as JSON on standard input (they hold the agent's boot data, and with it
a key): ``folder``, ``command`` and ``boot`` of the agent, ``lifetime`` and ``grace``
in seconds, and its ``fate``: rehearsed interruptions, in the order of time, each with ``after`` and
``how`` (see rehearsal.py).

Three processes come of it. The *starter* returns once the machine is on, and leaves it without a
parent, in a session of its own. The *frame* and, as its child, the *system* both outlive any crash
of the agent; whichever of the two is killed, the other one ends the machine. Both are subreapers
(prctl(2)): whatever is started on the machine stays below them however it detaches, and is found.

Files in the machine's folder::

    pid         who they are; locked (flock) by both for as long as the machine is on, so that the
                kernel says whether it is: across pid namespaces, reboots and reused pids
    leave       made by anybody: the advice to lease nothing more
    interrupt   made by anybody: the notice; the machine ends ``grace`` seconds later. SIGTERM makes it
    terminated  made by the fleet: the machine ends at once, and none is ever started again
    ended       why it ended
    disk/       the agent's folder, gone with the machine
    machine.log what its processes print
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

LOOK_SECONDS = 0.1
"""Pause between two looks at the files and the timer; the end of a child is noticed at once."""

KILL_SECONDS = 60.0
"""How long the machine tries to end a process that does not die (one in uninterruptible sleep)."""

POWER_OFF = signal.SIGUSR1
"""Sent by the fleet once ``terminated`` is there, to spare the pause."""

_HANDLED = (signal.SIGCHLD, signal.SIGTERM, POWER_OFF)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

MARK = "SPOTBATCH_MACHINE"
"""Environment variable that every process of a machine carries: strays are found by it."""


def mark(folder: str) -> str:
    """What it is set to for the machine of this folder: not its id, since the same job in another Airflow of
    this host has machines of the same ids."""
    return os.path.realpath(folder)


def is_on(folder: str) -> bool:
    """Whether the machine of this folder is on: some process of it still holds its lock."""
    try:
        file = os.open(os.path.join(folder, "pid"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def start_time(pid: int) -> int | None:
    """When the process started, in ticks since boot; None if there is none or it is a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] == "Z" else int(stat[19])


def processes_of(folder: str, roots: list[int]) -> set[int]:
    """The machine's processes, but for the caller: ``roots``, all that is below them, and all that
    carries its mark with all that is below that."""
    parents = {pid: int(stat[1]) for pid in _pids() if (stat := _stat(pid)) and stat[0] != "Z"}
    found: set[int] = set()
    marked = f"{MARK}={mark(folder)}".encode()
    wave = {pid for pid in parents if pid in roots or _carries(pid, marked)}
    while wave:
        found |= wave
        wave = {pid for pid, parent in parents.items() if parent in wave} - found
    return found - {os.getpid()}


def kill(pids: set[int]) -> None:
    _signal(pids, signal.SIGKILL)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def bury(folder: str, reason: str) -> None:
    """Remove the disk of a machine that runs no process any more, and record its end, once."""
    import shutil  # slow to load, and wanted only here

    shutil.rmtree(os.path.join(folder, "disk"), ignore_errors=True)
    draft = os.path.join(folder, f".ended.{os.getpid()}")
    with open(draft, "w") as file:
        json.dump({"reason": reason, "interrupted": _has(folder, "interrupt")}, file)
    _put(draft, os.path.join(folder, "ended"))


def _put(draft: str, name: str) -> bool:
    """Give a draft its name; False if the name is taken."""
    try:
        os.link(draft, name)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat after the command's name: state, parent, … start time at 19."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _carries(pid: int, variable: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable in file.read().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False


def start(orders: dict[str, Any]) -> NoReturn:
    """The starter: returns to whoever ran it once the machine is on, or was before."""
    ready, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os._exit(0 if os.read(ready, 1) else 1)
    os.close(ready)
    os.setsid()
    frame(orders, tell)


def frame(orders: dict[str, Any], tell: int) -> NoReturn:
    """The outer process: holds the machine's identity, and ends all that is left after the system."""
    folder = orders["folder"]
    identity, draft = _locked_draft(folder)
    _play_operating_system(os.path.join(folder, "machine.log"))
    may_run, allow = os.pipe()
    outer = os.getpid()
    inner = os.fork()
    if not inner:
        os.close(allow)
        os.close(tell)
        if os.read(may_run, 1):
            system(orders, outer)
        os._exit(0)
    mine = _claim(folder, identity, draft, inner)
    os.write(tell, b"1")
    os.close(tell)
    if not mine:
        os._exit(0)  # another starter was first; the system reads the end of its pipe, and leaves
    os.write(allow, b"1")
    while not _reaped(inner):
        if _next_signal() == signal.SIGTERM:
            _make(folder, "interrupt")
    _power_off(orders, "the machine was killed")


def system(orders: dict[str, Any], outer: int) -> NoReturn:
    """The inner process: runs the agent, and powers off when it ends, in time, or when told to."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # of all that the frame has set, this alone is not inherited
    folder = orders["folder"]
    terminated = _has(folder, "terminated")
    agent = None if terminated else _start_agent(orders)
    reason = "terminated" if terminated else None
    fate = Fate(orders["fate"], folder)
    ends = time.monotonic() + orders["lifetime"]
    interrupted_at = None
    while reason is None:
        if _next_signal() == signal.SIGTERM:
            _make(folder, "interrupt")
        now = time.monotonic()
        if interrupted_at is None and _has(folder, "interrupt"):
            interrupted_at = now
        if (status := _reap(agent)) is not None:
            reason = _how_it_ended(status, folder)
        elif _has(folder, "terminated"):
            reason = "terminated"
        elif os.getppid() != outer:
            reason = "the machine was killed"
        elif now >= ends:
            reason = f"its lifetime of {orders['lifetime']:g} s was over"
        elif interrupted_at is not None and now >= interrupted_at + orders["grace"]:
            reason = "interrupted"
        elif fate.takes_the_machine(now):
            _end_everything(orders["folder"])
            _make(folder, "interrupt")
            reason = "interrupted without notice"
    _power_off(orders, reason)


class Fate:
    """The rehearsed interruptions of one machine, carried out as their time comes."""

    def __init__(self, events: list[dict[str, Any]], folder: str) -> None:
        self._events = events
        self._folder = folder
        self._began = time.monotonic()
        self._frozen: set[int] = set()
        self._thaws_at = 0.0

    def takes_the_machine(self, now: float) -> bool:
        """Do what is due; True if the machine is to vanish now."""
        if self._frozen and now >= self._thaws_at:
            _signal(self._frozen, signal.SIGCONT)
            self._frozen = set()
        if self._frozen or not self._events or now < self._began + self._events[0]["after"]:
            return False
        event = self._events.pop(0)
        if event["how"] == "notice":
            _make(self._folder, "interrupt")
        elif event["how"] == "freeze":
            self._freeze(now + event["seconds"])
        return bool(event["how"] == "vanish")

    def _freeze(self, until: float) -> None:
        self._frozen = processes_of(self._folder, [os.getpid()]) - {os.getppid()}
        self._thaws_at = until
        _signal(self._frozen, signal.SIGSTOP)


def _power_off(orders: dict[str, Any], reason: str) -> NoReturn:
    _end_everything(orders["folder"])
    bury(orders["folder"], reason)
    os._exit(0)


def _play_operating_system(log: str) -> None:
    """Print to the log, adopt every orphan of the machine, and take signals only when looking."""
    nothing = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _locked_draft(folder: str) -> tuple[int, str]:
    """A file that becomes ``pid``: locked before it can be seen, and by all who inherit it."""
    draft = os.path.join(folder, f".pid.{os.getpid()}")
    identity = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(identity, fcntl.LOCK_EX)
    return identity, draft


def _claim(folder: str, identity: int, draft: str, inner: int) -> bool:
    """Become the machine of this folder; False if it was started before."""
    content = {
        "namespace": os.readlink("/proc/self/ns/pid"),
        "processes": [[pid, start_time(pid)] for pid in (os.getpid(), inner)],
    }
    os.write(identity, json.dumps(content).encode())
    return _put(draft, os.path.join(folder, "pid"))


def _start_agent(orders: dict[str, Any]) -> int:
    """The agent as a child that cannot outlive this process, its boot data on its standard input."""
    disk = os.path.join(orders["folder"], "disk")
    os.makedirs(disk, mode=0o700, exist_ok=True)
    boot, feed = os.pipe()  # like all our files, closed by exec
    parent = os.getpid()
    agent = os.fork()
    if agent:
        os.close(boot)
        try:
            with os.fdopen(feed, "wb") as file:
                file.write(orders["boot"].encode())
        except BrokenPipeError:
            pass
        return agent
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(boot, 0)
        os.chdir(disk)
        for number in (*_IGNORED, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        os.execvp(orders["command"][0], orders["command"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"the agent cannot be started: {orders['command'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def _next_signal() -> int | None:
    """The next signal, or None after the usual pause."""
    told = signal.sigtimedwait(_HANDLED, LOOK_SECONDS)
    return None if told is None else told.si_signo


def _reap(child: int | None) -> int | None:
    """Take leave of children that have ended, adopted ones too; the wait status of ``child``."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            return status


def _reaped(child: int) -> bool:
    return _reap(child) is not None


def _end_everything(folder: str) -> None:
    """Kill what runs on the machine until nothing is left; what it starts meanwhile is found too."""
    kept = {os.getpid(), os.getppid()}
    deadline = time.monotonic() + KILL_SECONDS
    while left := processes_of(folder, [os.getpid()]) - kept:
        if time.monotonic() > deadline:
            os.write(2, f"these processes do not end: {sorted(left)}\n".encode())
            return
        kill(left)
        _reap(None)
        time.sleep(0.005)
    _reap(None)


def _how_it_ended(status: int, folder: str) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "the agent ended"
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    with open(os.path.join(folder, "machine.log"), "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
        last = log.read().decode(errors="replace").strip()
    return f"the agent ended with {how}" + (f"; its last lines:\n{last}" if last else "")


def _has(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def _make(folder: str, name: str) -> None:
    os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, errno.errorcode.get(code, str(code)))


if __name__ == "__main__":
    start(json.load(sys.stdin))
