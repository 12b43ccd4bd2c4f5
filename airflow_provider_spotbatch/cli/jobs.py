"""``spotbatch jobs``: which jobs there are, and how each of them stands."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.text import Text

from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.control.jobs_list import ListedJob, list_jobs
from airflow_provider_spotbatch.control.wording import duration

SHOWN = 20
SHOWN_TROUBLES = 5
UNKNOWN = "unknown"
"""The state of a job that cannot be read, or has no run yet."""

COLUMNS = (
    *("job", "dag", "task", "index", "dag run"),
    *("state", "done", "failed", "started", "duration", "machines", "cost"),
)
NUMBERS = ("index", "done", "failed", "duration", "machines", "cost")
NAMES = ("dag", "task", "dag run")
SPARE = ("machines", "dag run", "index", "task", "dag", "duration", "started", "cost", "failed", "done")
"""What a narrow terminal does without, in this order: a job's id names its DAG and task."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("jobs", help="list jobs, those begun last first")
    parser.add_argument("--dag", metavar="DAG", help="only jobs of this DAG")
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--limit", type=output.count, default=SHOWN, metavar="N", help=f"the newest N (default {SHOWN})"
    )
    many.add_argument("--all", action="store_true", help="all jobs, however many")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    now = time.time()
    limit = None if arguments.all else arguments.limit
    found = [
        job async for job in list_jobs(where.store, where.keyring, now, dag_id=arguments.dag, limit=limit)
    ]
    if arguments.json:
        output.print_json([_to_json(job, now) for job in found])
    elif found:
        rows = [_row(job, now) for job in found]
        output.console().print(output.table(COLUMNS, rows, right=NUMBERS, wrap=NAMES, spare=SPARE))
        _tell_troubles([job for job in found if job.summary is None])
    else:
        of = "" if arguments.dag is None else f" of DAG {arguments.dag}"
        output.note(f"there are no jobs{of} in {where.store.uri}")
    return 0


def _tell_troubles(jobs: list[ListedJob]) -> None:
    for job in jobs[:SHOWN_TROUBLES]:
        output.note(f"{job.job}: {job.trouble}")
    if len(jobs) > SHOWN_TROUBLES:
        output.note(f"… and {len(jobs) - SHOWN_TROUBLES:,} more that are {UNKNOWN}: --json tells why")


def _row(job: ListedJob, now: float) -> list[str | Text]:
    index = job.identity.get("map_index", -1)
    names = [
        job.job,
        str(job.identity.get("dag_id", "")),
        str(job.identity.get("task_id", "")),
        str(index) if index >= 0 else "",
        str(job.identity.get("run_id", "")),
    ]
    summary = job.summary
    if summary is None:
        return [*names, UNKNOWN, *[""] * 6]
    return [
        *names,
        output.state_text(summary.state),
        f"{summary.done:,}/{summary.items:,}",
        f"{summary.failed:,}",
        output.moment(summary.started)[:-3],
        duration(summary.duration(now)),
        f"{summary.machines:,}",
        output.dollars(summary.cost_usd),
    ]


def _to_json(job: ListedJob, now: float) -> dict[str, Any]:
    if job.summary is not None:
        return job.summary.to_json(now)
    names = {f"airflow_{name}": value for name, value in job.identity.items()}
    return {"job": job.job, **names, "state": None, "trouble": job.trouble}
