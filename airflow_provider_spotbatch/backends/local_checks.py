"""What the local backend's folder must be like: private, writable, with room, and with locks that hold."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress

from airflow_provider_spotbatch.backends.base import Check

FREE_GB = 1.0
"""Less free disk than this is a failed check: queue, results and logs of a small job need some of it."""

_GB = 2**30


def check_root(root: str) -> list[Check]:
    """Look at the folder of the local backend, which is there. Blocks."""
    return [_checked(name, look, root) for name, look in _LOOKS.items()]


def _checked(name: str, look: Callable[[str], Check], root: str) -> Check:
    try:
        return look(root)
    except OSError as error:
        return Check(name, False, f"{root}: {error.strerror}", _MOVE)


_MOVE = "set 'path' of the connection to a folder on a local disk that this user may write"


def _private(root: str) -> Check:
    found = os.stat(root)
    if found.st_uid != os.geteuid():
        return Check("folder: private", False, f"{root} belongs to the user {found.st_uid}", _MOVE)
    others = stat.S_IMODE(found.st_mode) & 0o077
    if others:
        told = f"other users may look into {root}, which holds the key that signs code and results"
        return Check("folder: private", False, told, f"chmod 700 {root}")
    return Check("folder: private", True, f"{root} is open to this user alone")


def _writable(root: str) -> Check:
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(b"written by a check of the connection")
        file.flush()
    return Check("folder: write", True, f"{root} can be written")


def _locks(root: str) -> Check:
    descriptor, path = tempfile.mkstemp(dir=root, prefix=".check-")
    try:
        other = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                told = f"locks in {root} do not hold: machines could not be told alive from dead"
                return Check("folder: locks", False, told, _MOVE)
        finally:
            os.close(other)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return Check("folder: locks", True, "a lock keeps others out")


def _room(root: str) -> Check:
    free = shutil.disk_usage(root).free / _GB
    if free < FREE_GB:
        told = f"{root} has {free:.2f} GB free, less than {FREE_GB:g}"
        return Check("disk", False, told, "free some disk, or set 'path' of the connection to another")
    return Check("disk", True, f"{free:.1f} GB free")


_LOOKS: dict[str, Callable[[str], Check]] = {
    "folder: private": _private,
    "folder: write": _writable,
    "folder: locks": _locks,
    "disk": _room,
}
