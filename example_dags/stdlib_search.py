"""Search the sources of Python's standard library for unfinished work, one file an item.

Every machine has a Python of its own, so the items are paths below its library: what an item means must not
depend on where it was listed. Your own data lie in a bucket, and the items are their URIs.

Run it without a scheduler: ``make demo``, or ``airflow dags test stdlib_search``.
"""

from __future__ import annotations

import os
import re
import socket
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
SKIPPED |= {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo"}
"""Folders that are no part of the library itself, or that distributions of Linux package apart."""


@task
def list_sources() -> list[str]:
    """All modules by their paths below the library."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path.relative_to(library) for path in library.rglob("*.py"))
    return sorted(str(path) for path in found if SKIPPED.isdisjoint(path.parts))


@task.spot_map(item_retries=1)
def search(path: str, *, pattern: str) -> dict[str, Any]:
    """The lines of one file that match. Runs on whatever machine the connection leads to.

    A file may be missing there: a distribution may leave modules out, or have another patch release.
    """
    source = Path(sysconfig.get_path("stdlib"), path)
    lines = source.read_text(errors="replace").splitlines() if source.exists() else []
    return {
        "path": path,
        "found": source.exists(),
        "lines": len(lines),
        "matches": [
            (number, line.strip()) for number, line in enumerate(lines, 1) if re.search(pattern, line)
        ],
        "machine": socket.gethostname(),
        "worker": os.getpid(),
    }


@task
def report(results: Any) -> None:
    """Print what was found; ``results`` is read from the store as it is iterated."""
    files = lines = 0
    missing: list[str] = []
    matches: dict[str, list[tuple[int, str]]] = {}
    machines: Counter[str] = Counter()
    workers: set[tuple[str, int]] = set()
    for result in results:
        files += 1
        lines += result["lines"]
        machines[result["machine"]] += 1
        workers.add((result["machine"], result["worker"]))
        if not result["found"]:
            missing.append(result["path"])
        if result["matches"]:
            matches[result["path"]] = result["matches"]

    total = sum(map(len, matches.values()))
    print(f"\n{total} matches in {len(matches)} of {files} files ({lines:,} lines)")
    if missing:
        print(f"{len(missing)} of them are not in the machines' own Python, such as {missing[0]}")
    print(f"searched in {results.duration:.1f} s; the files with the most:\n")
    for path in sorted(matches, key=lambda path: len(matches[path]), reverse=True)[:10]:
        number, line = matches[path][0]
        print(f"{len(matches[path]):5}  {path:30} e.g. line {number}: {line[:70]}")
    print("\nWhere the work ran:")
    for machine, count in machines.most_common():
        processes = sum(1 for where, _ in workers if where == machine)
        print(f"{count:5} files on {machine}, in {processes} processes")
    print(f"\nAll results: {results.uri}\n")


@dag(schedule=None, catchup=False, tags=["example"])
def stdlib_search() -> None:
    report(search(list_sources(), pattern=r"\b(?:TODO|FIXME|XXX)\b"))


stdlib_search()
