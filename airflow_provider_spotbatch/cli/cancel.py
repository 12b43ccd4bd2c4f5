"""``spotbatch cancel``: end a job's machines. What is finished is kept."""

from __future__ import annotations

import argparse
import getpass
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_spotbatch.cli import job_argument, output, place
from airflow_provider_spotbatch.control.cancel import cancel, machines_left, unfinished_runs, write_cancel
from airflow_provider_spotbatch.control.find_run import find_job
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.errors import FormatMismatch, InvalidInput, SignatureMismatch
from airflow_provider_spotbatch.job.keys import Run

WAIT_SECONDS = 15 * 60.0
"""How long --wait looks for the machines' end before it names those that are left."""

ASK_SECONDS = 0.0
"""Without --wait the machines are asked once."""

KEPT = "finished items are kept: clear the task in Airflow, and its next try runs the rest"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cancel",
        help="end a job's machines; what is finished is kept",
        description="End the machines of a job that is not over. Its task fails, and Airflow does not retry "
        "it. Finished items are kept: clear the task, and its next try runs the rest.",
    )
    job_argument.add_job(parser)
    parser.add_argument("--wait", action="store_true", help="until the machines are seen gone")
    parser.add_argument("--reason", metavar="TEXT", help="what the task says when it fails")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    if arguments.wait and where.settings is None:
        raise InvalidInput("--wait needs a connection (--conn-id): from a store alone no machine can be seen")
    job = await find_job(where.store, arguments.job)
    runs = await unfinished_runs(where.store, job)
    reason = arguments.reason or f"spotbatch cancel, by {getpass.getuser()}"
    say = output.sayer(arguments)
    if where.settings is None:
        done = [await _by_store_alone(where, run, reason) for run in runs]
    else:
        seconds = WAIT_SECONDS if arguments.wait else ASK_SECONDS
        done = [await _with_its_machines(where.site, run, reason, say, seconds) for run in runs]
    if arguments.json:
        output.print_json({"job": job, "runs": done})
    else:
        _tell(job, done, say, alone=where.settings is None)
    return 1 if arguments.wait and any(each["machines_left"] for each in done) else 0


async def _by_store_alone(where: place.Place, run: Run, reason: str) -> dict[str, Any]:
    await write_cancel(where.store, run, reason, time.time(), retryable=False)
    return {"generation": run.generation.number, "run": run.number, "machines_left": None}


async def _with_its_machines(
    site: Site, run: Run, reason: str, say: Callable[[str], None], seconds: float
) -> dict[str, Any]:
    try:
        gone = await cancel(site, run, reason, say, deadline=seconds, retryable=False)
    except (SignatureMismatch, FormatMismatch) as error:  # the cancel is written: no key is needed for that
        say(f"machines of run {run.tag} cannot be ended from here, and end by themselves: {error}")
        gone = False
    left = [] if gone else await machines_left(site, run)
    return {"generation": run.generation.number, "run": run.number, "machines_left": left}


def _tell(job: str, done: list[dict[str, Any]], say: Callable[[str], None], *, alone: bool) -> None:
    if not done:
        say(f"job {job} is over already: there is nothing to cancel")
        return
    left = [name for each in done for name in each["machines_left"] or ()]
    if alone:
        say(
            f"job {job} is cancelled. From a store alone its machines cannot be seen: they look for the "
            "cancel every 10 s, and end by themselves"
        )
    elif left:
        say(
            f"job {job} is cancelled; these machines were told to end and are not gone yet: {', '.join(left)}"
        )
    else:
        say(f"job {job} is cancelled, and its machines are gone")
    say(KEPT)
