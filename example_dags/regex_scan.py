"""Search many files for many patterns, with the engine that was the fastest on a sample.

Two jobs, the second decided by the first: ``measure`` has an engine for each item and runs them one at a
time, so that they do not disturb each other; ``scan`` has a file for each item and uses the winner.

Your own data: run it with ``{"folder": "s3://bucket/logs"}`` (or ``gs://…``, ``file:///…``), without
``make_logs``; on a cloud's machines it must be a bucket that they may read. Write your patterns into
``PATTERNS``, and for each a text that every match holds. Engines can be added, such as one of a package
(``@task.spot_map(environment=Environment(packages=["google-re2", "obstore"]))``).
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import obstore
from airflow.sdk import dag, task
from obstore.store import ObjectStore, from_url

from airflow_provider_spotbatch import Items

FOLDER = "{{ params.folder }}"

PATTERNS = {  # pattern → a text that every match holds
    r"timed? ?out after \d+ ?m?s": "out after",
    r"\bOOM\b.*pid[ =]\d+": "OOM",
    r"disk (?:sd[a-z]|nvme\d) (?:failed|degraded)": "disk ",
    r"retry (\d+) of \1": "retry ",
    r"\bHTTP/1\.[01]\" 5\d\d\b": "HTTP/1.",
}
COMPILED = [re.compile(pattern) for pattern in PATTERNS]
AT_ONCE = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS if r"\1" not in pattern))
ALONE = [re.compile(pattern) for pattern in PATTERNS if r"\1" in pattern]
TEXTS = list(PATTERNS.values())

Engine = Callable[[str], object]
"""Whether a line matches one of the patterns."""


def one_by_one(line: str) -> object:
    return any(pattern.search(line) for pattern in COMPILED)


def alternation(line: str) -> object:
    return AT_ONCE.search(line) or any(pattern.search(line) for pattern in ALONE)


def text_first(line: str) -> object:
    return any(text in line for text in TEXTS) and alternation(line)


ENGINES: dict[str, Engine] = {engine.__name__: engine for engine in (one_by_one, alternation, text_first)}


def locate(uri: str) -> tuple[ObjectStore, str]:
    """The bucket of a URI, or the machine's file system, and the name in it."""
    parts = urlsplit(uri)
    return from_url(f"{parts.scheme}://{parts.netloc}/"), parts.path.lstrip("/")


def read_lines(uri: str) -> list[str]:
    return bytes(obstore.get(*locate(uri)).bytes()).decode(errors="replace").splitlines()


@task
def make_logs(folder: str, files: int = 24, lines: int = 2000) -> str:
    """Stands for logs that are there already; the URI of one of them is the sample."""
    troubles = ["timeout after 30 s", "OOM: killed pid=4711", "disk sdb failed", "retry 3 of 3"]
    for number in range(files):
        chance = random.Random(number)
        log = ""
        for second in range(lines):
            text = chance.choice(troubles) if chance.random() < 0.01 else "request served, retry 1 of 3"
            log += f"{second} worker {chance.randrange(16)}: {text}\n"
        uri = f"{folder}/app-{number:03}.log"
        obstore.put(*locate(uri), log.encode())
    return uri


@task.spot_map(concurrency=1)
def measure(engine: str, *, sample: str) -> dict[str, Any]:
    """The best of three passes of one engine over the sample, in seconds."""
    lines = read_lines(sample)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        matches = sum(1 for line in lines if ENGINES[engine](line))
        seconds.append(time.perf_counter() - start)
    return {"engine": engine, "seconds": min(seconds), "matches": matches}


@task
def choose(measured: Any) -> str:
    """The fastest engine, once all agree on what there is to find."""
    if len({one["matches"] for one in measured}) != 1:
        raise ValueError(f"the engines do not find the same: {list(measured)}")
    for one in sorted(measured, key=lambda one: one["seconds"]):
        print(f"{one['engine']:12} {one['seconds'] * 1000:8.2f} ms, {one['matches']} matches")
    return str(min(measured, key=lambda one: one["seconds"])["engine"])


@task.spot_map
def scan(uri: str, *, engine: str) -> dict[str, Any]:
    """The lines of one file that match. Runs on whatever machine the connection leads to."""
    lines = read_lines(uri)
    return {"uri": uri, "lines": len(lines), "matches": [line for line in lines if ENGINES[engine](line)]}


@task
def report(results: Any) -> dict[str, int]:
    totals = {"files": 0, "lines": 0, "matches": 0}
    for found in results:
        totals["files"] += 1
        totals["lines"] += found["lines"]
        totals["matches"] += len(found["matches"])
    print(f"{totals['matches']:,} matches in {totals['lines']:,} lines of {totals['files']} files")
    return totals


@dag(
    schedule=None,
    catchup=False,
    tags=["example"],
    params={"folder": f"file://{tempfile.gettempdir()}/spotbatch/regex_scan"},
)
def regex_scan() -> None:
    engine = choose(measure(list(ENGINES), sample=make_logs(FOLDER)))
    report(scan(Items.listing(f"{FOLDER}/*.log"), engine=engine))


regex_scan()
