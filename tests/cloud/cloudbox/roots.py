"""Debian root file systems that machines boot from: made once by debootstrap, kept in the user's cache.

What is in them is what Debian's cloud images have and boot code may count on; the packages come from
the host's own apt sources, so that no mirror is named here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

SUITES = ("bookworm", "trixie")
"""Debian 12 and 13."""

PACKAGES = ("ca-certificates", "curl", "iproute2", "procps", "python3", "sudo", "systemd", "systemd-sysv")
"""Beyond debootstrap's minimal variant. cloud-init is not: tests/cloud/cloudbox/cloud_init.py plays it."""

MINUTES = 15
"""A limit for one debootstrap: it takes less than one minute with a near mirror."""


def root_of(suite: str) -> Path:
    """The suite's root, made on first use (about 40 s, 400 MB). Nobody may write to it."""
    recipe = hashlib.sha256(repr((suite, PACKAGES)).encode()).hexdigest()[:8]
    root = _cache() / f"{suite}-{recipe}"
    if root.exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(root.parent / f"{root.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _debootstrap(suite, root)
    return root


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "spotbatch" / "cloudbox-roots"


def _debootstrap(suite: str, root: Path) -> None:
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(unfinished)]
    made = subprocess.run(
        [*command, _mirror()],
        capture_output=True,
        text=True,
        timeout=MINUTES * 60,
        stdin=subprocess.DEVNULL,
    )
    if made.returncode:
        raise RuntimeError(f"debootstrap of {suite} failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
    shutil.rmtree(unfinished / "var/cache/apt", ignore_errors=True)
    unfinished.rename(root)


def _mirror() -> str:
    """The archive that this host's apt takes its own release from."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for line in listed.stdout.splitlines():
        release, uri = line.split(" ", 1)
        if release == own and uri.rstrip("/").endswith("/debian"):
            return uri
    raise RuntimeError(f"no Debian archive among this host's apt sources (its release: {own or 'unknown'})")


if __name__ == "__main__":
    for suite in SUITES:
        print(f"root file system of {suite}: {root_of(suite)}")
