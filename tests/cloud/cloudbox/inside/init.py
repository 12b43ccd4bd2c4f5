"""Process 1 of a machine: starts cloud-init, reaps, and ends the machine when asked.

``shutdown``, ``poweroff`` and ``reboot`` are systemd's own: where no systemd runs they ask by
/run/initctl, the pipe of System V's init, with the run level they want (systemctl's last resort).
"""

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import threading
import time

PIPE = "/run/initctl"
REQUEST = struct.Struct("=iiii368x")
"""struct init_request of sysvinit's initreq.h: magic, command, run level as a character, pause."""
MAGIC = 0x03091969

POWER_OFF, RESTART = 0x4321FEDC, 0x01234567
"""reboot(2): in a PID namespace they end it, and tell its parent which of the two it was."""
LEVELS = {"0": POWER_OFF, "6": RESTART}

STOP_SECONDS = 5.0
"""Between SIGTERM and SIGKILL; systemd's own DefaultTimeoutStopSec is 90."""


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.environ.clear()
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.mkfifo(PIPE, 0o600)
    threading.Thread(target=obey, daemon=True).start()
    subprocess.Popen(["/usr/bin/python3", "-SE", "/usr/lib/cloudbox/cloud_init.py"], restore_signals=True)
    while True:
        signal.sigwait({signal.SIGCHLD})
        reap()


def reap():
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def obey():
    pipe = os.open(PIPE, os.O_RDWR)  # not RDONLY: it would end with its first writer
    while True:
        magic, _, level, _ = REQUEST.unpack(os.read(pipe, REQUEST.size))
        if magic == MAGIC and chr(level) in LEVELS:
            shut_down(LEVELS[chr(level)])


def shut_down(how):
    print("init: everything ends", flush=True)
    for number in (signal.SIGTERM, signal.SIGCONT):
        kill_all(number)
    deadline = time.monotonic() + STOP_SECONDS
    while others() and time.monotonic() < deadline:
        time.sleep(0.01)
    ctypes.CDLL(None).reboot(ctypes.c_int(how))


def kill_all(number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def others():
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]


main()
