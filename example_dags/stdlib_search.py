"""Search the sources of Python's standard library for unfinished work, one file an item.

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

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


@task
def list_sources() -> list[str]:
    """The paths of all modules, tests left out."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path for path in library.rglob("*.py") if SKIPPED.isdisjoint(path.relative_to(library).parts))
    return sorted(str(path) for path in found)


@task.spot_map(item_retries=1)
def search(path: str, *, pattern: str) -> dict[str, Any]:
    """The lines of one file that match. Runs on whatever machine the connection leads to."""
    lines = Path(path).read_text(errors="replace").splitlines()
    return {
        "path": path,
        "lines": len(lines),
        "matches": [
            (number, line.strip()) for number, line in enumerate(lines, 1) if re.search(pattern, line)
        ],
        "worker": f"{socket.gethostname()}, process {os.getpid()}",
    }


@task
def report(results: Any) -> None:
    """Print what was found; ``results`` is read from the store as it is iterated."""
    library = sysconfig.get_path("stdlib")
    files = lines = 0
    matches: dict[str, list[tuple[int, str]]] = {}
    workers: Counter[str] = Counter()
    for found in results:
        files += 1
        lines += found["lines"]
        workers[found["worker"]] += 1
        if found["matches"]:
            matches[os.path.relpath(found["path"], library)] = found["matches"]

    total = sum(map(len, matches.values()))
    print(f"\n{total} matches in {len(matches)} of {files} files ({lines:,} lines)")
    print(f"searched in {results.duration:.1f} s; the files with the most:\n")
    for path in sorted(matches, key=lambda path: len(matches[path]), reverse=True)[:10]:
        number, line = matches[path][0]
        print(f"{len(matches[path]):5}  {path:30} e.g. line {number}: {line[:70]}")
    print("\nWhere the work ran:")
    for worker, count in workers.most_common():
        print(f"{count:5} files on {worker}")
    print(f"\nAll results: {results.uri}\n")


@dag(schedule=None, catchup=False, tags=["example"])
def stdlib_search() -> None:
    report(search(list_sources(), pattern=r"\b(?:TODO|FIXME|XXX)\b"))


stdlib_search()
