"""``make bench``: one table of measurements, ours next to a peer's in the same run, or to its target.

Each measurement runs in a fresh process, so that its memory is its own. "Above start" is the peak of
resident memory over what the process held before. What the measured parts log goes to a file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks import work
from benchmarks.memory import measured
from benchmarks.table import Row, at_most, render

MANY = 1_000_000
SOME = 10_000
SLEEPING = 128
SLOTS = 64
IDEAL = SLEEPING / SLOTS * 3.0
TRIGGERS = 200
POOL = "ProcessPoolExecutor(2)"


def items_that_do_nothing() -> list[Row]:
    """A job with two slots; the pool's processes are there before its time begins."""
    from benchmarks.job import local_connection, run_job, submit_job
    from benchmarks.spans import span_of

    with local_connection() as settings:
        with measured() as whole:
            run = submit_job(settings, work.nothing, range(SOME))
            assert len(run_job(settings, run)) == SOME
        span = span_of(settings, run.generation)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(work.nothing, range(2), chunksize=1)) == [0, 1]
        with measured() as peer:
            assert sum(1 for _ in pool.map(work.nothing, range(SOME), chunksize=1)) == SOME
    name = f"{SOME:,} items that do nothing"
    return [
        at_most(f"{name}, first start to last result", span.seconds, peer.seconds, "s", what=POOL),
        at_most(
            f"{name}, each",
            span.seconds / SOME * 1e6,
            peer.seconds / SOME * 1e6,
            "µs",
            what=POOL,
            shown=".0f",
        ),
        at_most(f"{name}, all before and after", whole.seconds - span.seconds, 3.0, "s"),
    ]


def items_that_sleep() -> list[Row]:
    """On four machines, whose programs an earlier job has put into the page cache."""
    from airflow_provider_spotbatch import Resources
    from airflow_provider_spotbatch.job.policy import Policy
    from benchmarks.job import local_connection, run_job, submit_job

    policy = Policy(concurrency=SLOTS, resources=Resources(cpus=0.01, memory_gb=0.1))
    with local_connection(instances=4) as settings:
        run_job(settings, submit_job(settings, work.nothing, range(SLOTS), policy))
        with measured() as ours:
            run_job(settings, submit_job(settings, work.three_seconds, range(SLEEPING), policy))
    name = f"{SLEEPING} items that sleep 3 s, {SLOTS} slots on 4 machines"
    return [at_most(name, ours.seconds, IDEAL + 2.0, "s", what=f"ideal {IDEAL:g} s, target", shown=".1f")]


def many_small_items() -> list[Row]:
    from benchmarks.job import local_connection, run_job, submit_job

    with local_connection() as settings:
        with measured() as submitting:
            run = submit_job(settings, work.nothing, range(MANY))
        with measured() as running:
            result = run_job(settings, run)
        with measured() as iterating:
            assert sum(result) == MANY * (MANY - 1) // 2
    name = f"{MANY:,} items"
    return [
        at_most(f"{name}, submitted", submitting.seconds, 30.0, "s", shown=".1f"),
        at_most(f"{name}, submitted, above start", submitting.peak_mb, 300.0, "MB", shown=".0f"),
        Row(f"{name}, run by 2 slots", f"{running.seconds:.1f} s, {running.peak_mb:.0f} MB above start", ""),
        at_most(f"{name}, results iterated, above start", iterating.peak_mb, 100.0, "MB", shown=".0f"),
        Row(f"{name}, results iterated", f"{iterating.seconds:.1f} s", ""),
    ]


def ticks_of_a_large_run() -> list[Row]:
    from benchmarks.ticks import MACHINES, SLOTS, tick_for

    ticks = asyncio.run(tick_for(MANY))
    twice = asyncio.run(tick_for(2 * MANY))
    median = statistics.median(ticks.seconds)
    name = f"a tick: {MANY:,} items, {MACHINES} machines of {SLOTS} slots"
    return [
        at_most(f"{name}, CPU, median", median, 0.3, "s"),
        at_most(f"{name}, CPU, the worst of {len(ticks.seconds)}", max(ticks.seconds), 0.3, "s"),
        at_most(f"{name}, above start", ticks.peak_mb, 200.0, "MB", shown=".0f"),
        at_most(
            f"a tick: {2 * MANY:,} items, CPU, median",
            statistics.median(twice.seconds),
            1.5 * median,
            "s",
            what="1.5 × that of half",
        ),
    ]


def triggers_at_work() -> list[Row]:
    return _triggers(at_work=True, what="at work")


def triggers_booting() -> list[Row]:
    return _triggers(at_work=False, what="that wait for machines")


def _triggers(*, at_work: bool, what: str) -> list[Row]:
    import airflow.jobs.triggerer_job_runner  # noqa: F401 - what a triggerer has loaded

    from benchmarks.job import local_connection
    from benchmarks.triggers import hold

    with local_connection() as settings:
        held = asyncio.run(hold(settings, TRIGGERS, at_work=at_work))
    name = f"{TRIGGERS} triggers {what}"
    return [
        at_most(f"{name}, share of a core, whole process", held.process * 100, 10.0, "%", shown=".1f"),
        at_most(f"{name}, share of a core, loop's thread", held.loop * 100, 10.0, "%", shown=".1f"),
        at_most(f"{name}, longest hold of the loop", held.longest * 1000, 50.0, "ms", shown=".0f"),
        Row(f"{name}, longest garbage collection", f"{held.collection * 1000:.0f} ms", ""),
    ]


def dag_runs() -> list[Row]:
    from benchmarks.dags.maps import EXPANDED, ITEMS
    from benchmarks.stack import run_dags

    with tempfile.TemporaryDirectory(prefix="spotbatch-bench-") as home:
        runs = run_dags(Path(home))
    return [
        Row(
            f"DAG run of {ITEMS:,} items that do nothing",
            f"{runs.ours:.1f} s",
            f".expand {runs.expand:.0f} s (from {EXPANDED} tasks), target 30 × faster",
            f"1 / {runs.expand / runs.ours:.0f}",
            runs.expand >= 30 * runs.ours,
        ),
        at_most("first item's start after execute() began", runs.first_item, 2.0, "s"),
    ]


def sizes_of_machines() -> list[Row]:
    """On recorded prices, next to Meadowrun's choices and the cheapest single type under the same rules."""
    from benchmarks.sizing import sizing_on_recorded_prices

    return sizing_on_recorded_prices()


def machines_that_boot() -> list[Row]:
    """On the cloudbox, where a machine is there at once: what is ours of the time to a first item."""
    from tests.cloud.cloudbox.needs import missing_needs

    name = "a machine of the cloudbox"
    if missing := missing_needs():
        return [Row(f"{name}: not measured", f"missing: {', '.join(missing)}", "")]
    from benchmarks.boots import boots

    parts = boots()
    return [
        Row(f"{name}: submitted, launched, its first process", f"{parts.machine:.2f} s", ""),
        Row(f"{name}: until the boot program", f"{parts.boot_program:.2f} s", ""),
        Row(f"{name}: environments fetched, until the agent", f"{parts.agent:.2f} s", ""),
        at_most(f"{name}: the agent, until its first item", parts.worker + parts.item, 3.0, "s"),
        Row(f"{name}: all of these", f"{sum(dataclasses.astuple(parts)):.2f} s", ""),
    ]


MEASUREMENTS: list[Callable[[], list[Row]]] = [
    items_that_do_nothing,
    items_that_sleep,
    dag_runs,
    many_small_items,
    ticks_of_a_large_run,
    triggers_at_work,
    triggers_booting,
    sizes_of_machines,
    machines_that_boot,
]


def main() -> None:
    """Measure, and print the table; or only the measurements that are named."""
    asked = sys.argv[1:]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="spotbatch-bench-") as home:
        os.environ.update(AIRFLOW_HOME=home, AIRFLOW__CORE__LOAD_EXAMPLES="False")
        if sys.dont_write_bytecode:  # each process would compile all it imports, as no installed program does
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(home, "bytecode")
        for measure in MEASUREMENTS:
            if asked and measure.__name__ not in asked:
                continue
            print(f"measuring: {measure.__name__.replace('_', ' ')} …", file=sys.stderr)
            log = os.path.join(home, f"{measure.__name__}.log")
            with ProcessPoolExecutor(1, get_context("spawn"), _log_to, (log,)) as fresh:
                rows += fresh.submit(measure).result()
    print(render(rows))


def _log_to(path: str) -> None:
    """What a measured process prints is its log."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    main()
