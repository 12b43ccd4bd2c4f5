"""What no file of the project may hold: the address of a package index, or a path of one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Put together here, so that this file holds none of them either.
INDEX_ADDRESSES = (
    r"pypi\." + "org",
    r"pythonhosted\." + "org",
    r"npmjs\." + "org",
    "index" + r"[-_]url[\s=]+https?://[^\s/]*[.]",
    r"https?://[^\s\"']*/" + "simple\\b",
)
MACHINE_PATHS = (
    re.escape(str(ROOT)) + r"(?![\w.-])",
    "/(?:home|Users)/" + r"[a-z]\w*/",
    "(?<![\\w.~])/(?:root|work)" + r"/\w",
)


def tracked_files() -> list[Path]:
    shown = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60)
    return [ROOT / name for name in shown.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def holding(patterns: tuple[str, ...]) -> list[str]:
    wanted = re.compile("|".join(patterns))
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if wanted.search(line)
    ]


def test_no_file_holds_the_address_of_a_package_index() -> None:
    assert holding(INDEX_ADDRESSES) == []


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert holding(MACHINE_PATHS) == []


@pytest.mark.parametrize(
    ("patterns", "line"),
    [
        (INDEX_ADDRESSES, "--extra-index" + "-url https://example.com/"),
        (INDEX_ADDRESSES, "https://example.com/" + "simple/"),
        (INDEX_ADDRESSES, "https://files.python" + "hosted.org/x.whl"),
        (MACHINE_PATHS, "cd /ro" + "ot/project"),
        (MACHINE_PATHS, "cd /ho" + "me/ada/project"),
        (MACHINE_PATHS, f"cd {ROOT}/tests"),
    ],
)
def test_the_patterns_find_what_they_are_for(patterns: tuple[str, ...], line: str) -> None:
    assert re.search("|".join(patterns), line)
