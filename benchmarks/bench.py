"""``make bench``: one table of measurements, ours next to a peer's in the same run.

Each measurement runs in a fresh process, so that its memory is its own. "Above start" is the peak of
resident memory over what the process held before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from benchmarks import work

MANY = 1_000_000
SOME = 10_000
TRIGGERS = 200
PEER = "ProcessPoolExecutor(2)"


class Row(NamedTuple):
    """One line of the table; ``ratio`` is ours over the peer's where there is one."""

    name: str
    ours: str
    peer: str = ""
    ratio: str = ""


class Block:
    """Seconds and peak memory of a block of code, in this process."""

    seconds = 0.0
    peak_mb = 0.0

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.peak_mb:.0f} MB above start"


@contextmanager
def measured() -> Iterator[Block]:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # from here on the peak counts from what is held now
    block, held, start = Block(), _memory_mb("VmRSS"), time.perf_counter()
    yield block
    block.seconds = time.perf_counter() - start
    block.peak_mb = _memory_mb("VmHWM") - held


def _memory_mb(field: str) -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{field}:"))


def some_items_that_do_nothing() -> list[Row]:
    """From submission to the last result, start and end of machines and of the pool included."""
    from benchmarks.job import local_connection, run_job, submit_job

    with local_connection() as settings, measured() as ours:
        result = run_job(settings, submit_job(settings, work.nothing, range(SOME)))
    assert len(result) == SOME
    with measured() as peer, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert sum(1 for _ in pool.map(work.nothing, range(SOME), chunksize=1)) == SOME
    return [
        Row(
            f"{SOME:,} items that do nothing",
            f"{ours.seconds:.1f} s",
            f"{peer.seconds:.1f} s",
            f"{ours.seconds / peer.seconds:.1f}",
        )
    ]


def many_small_items() -> list[Row]:
    from benchmarks.job import local_connection, run_job, submit_job

    with local_connection() as settings:
        with measured() as submitting:
            run = submit_job(settings, work.nothing, range(MANY))
        with measured() as running:
            result = run_job(settings, run)
        with measured() as iterating:
            assert sum(result) == MANY * (MANY - 1) // 2
    return [
        Row(f"{MANY:,} items submitted", str(submitting)),
        Row(f"{MANY:,} items run", str(running)),
        Row(f"{MANY:,} results iterated", str(iterating)),
    ]


def start_of_the_first_item() -> list[Row]:
    from benchmarks.job import local_connection, run_job, submit_job

    with local_connection() as settings:
        asked = time.time()
        ours = run_job(settings, submit_job(settings, work.when, [0]))[0] - asked
    asked = time.time()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        peer = pool.submit(work.when, 0).result() - asked
    return [Row("start of the first item", f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.1f}")]


def triggers_in_one_loop() -> list[Row]:
    from benchmarks.job import local_connection
    from benchmarks.triggers import hold

    logging.disable(logging.INFO)
    with local_connection() as settings:
        held = asyncio.run(hold(settings, TRIGGERS, seconds=20.0))
    return [
        Row(f"{TRIGGERS} triggers, longest hold of the loop", f"{held.longest * 1000:.0f} ms"),
        Row(f"{TRIGGERS} triggers, longest garbage collection", f"{held.collection * 1000:.0f} ms"),
        Row(f"{TRIGGERS} triggers, the loop's share of a core", f"{held.share:.0%}"),
    ]


MEASUREMENTS: list[Callable[[], list[Row]]] = [
    start_of_the_first_item,
    some_items_that_do_nothing,
    many_small_items,
    triggers_in_one_loop,
]


def main() -> None:
    rows = [Row("", "spotbatch, local", PEER, "ratio")]
    with tempfile.TemporaryDirectory(prefix="spotbatch-bench-") as home:
        os.environ.update(AIRFLOW_HOME=home, AIRFLOW__CORE__LOAD_EXAMPLES="False")
        for measure in MEASUREMENTS:
            print(f"measuring: {measure.__name__.replace('_', ' ')} …", file=sys.stderr)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                rows += fresh.submit(measure).result()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
