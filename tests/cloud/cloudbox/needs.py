"""What a box needs of the host."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

MOTO_SERVER = "SPOTBATCH_MOTO_SERVER"
"""Environment variable: path of a moto_server program. Otherwise that of .venv-cloud below the checkout
(an environment of its own: moto's dependencies conflict with Airflow's)."""

_CHECKOUT = Path(__file__).parents[3]
_PROGRAMS = {
    "ip": "iproute2",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "debootstrap": "debootstrap",
}


def moto_server() -> Path | None:
    """The moto server's program, if there is one."""
    path = Path(os.environ.get(MOTO_SERVER) or _CHECKOUT / ".venv-cloud" / "bin" / "moto_server")
    return path if path.exists() else None


def missing_needs() -> list[str]:
    """What is missing for a box on this host, in words; empty if it can run."""
    if sys.platform != "linux":
        return ["Linux"]
    missing = [
        f"{program} (Debian package {package})"
        for program, package in _PROGRAMS.items()
        if shutil.which(program) is None
    ]
    if os.geteuid() != 0:
        missing.append("root")
    if moto_server() is None:
        missing.append(f"moto_server (in .venv-cloud, or named by {MOTO_SERVER})")
    return missing
