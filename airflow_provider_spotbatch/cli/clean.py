"""``spotbatch clean``: remove jobs that were over long ago, by the connection's ``retention_days``."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import asdict
from typing import Any

from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.control.clean import OldJobs, clean, find_old_jobs
from airflow_provider_spotbatch.control.retention import DAY
from airflow_provider_spotbatch.control.wording import some
from airflow_provider_spotbatch.job.errors import InvalidInput


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "clean",
        help="remove jobs that were over long ago",
        description="Remove what is stored of jobs that were over longer ago than the connection's "
        "retention_days: their results cannot be read afterwards, and a cleared task computes them again. "
        "A job that runs, or may be resumed by a running try, is never touched.",
    )
    parser.add_argument(
        "--older-than", type=_days, metavar="DAYS", help="instead of the connection's retention_days"
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    site = (await place.open_place(arguments)).site
    days = arguments.older_than or site.settings.retention_days
    if days is None:
        raise InvalidInput(
            f"connection {site.settings.conn_id!r} has no 'retention_days', so nothing is ever removed: "
            "set it, or pass --older-than DAYS"
        )
    asks = not arguments.yes
    if asks and not arguments.dry_run and not sys.stdin.isatty():
        raise InvalidInput("nobody can be asked here: pass --yes to remove, or --dry-run to look")
    if arguments.dry_run or asks:
        old = await find_old_jobs(site, days * DAY)
        _show(old, arguments, days)
        if arguments.dry_run or not (old.jobs or old.blobs):
            return 0
        if not _confirmed():
            return 1
    report = await clean(site, days * DAY, output.sayer(arguments))
    if arguments.json:
        output.print_json({"dry_run": False, **asdict(report)})
    else:
        output.console().print(
            f"removed {some(len(report.jobs), 'job')} and {some(report.blobs, 'blob')}: "
            f"{some(report.objects, 'object')}, {report.bytes / 1e6:,.1f} MB; {some(report.kept, 'job')} kept"
        )
    return 0


def _show(old: OldJobs, arguments: argparse.Namespace, days: float) -> None:
    if arguments.json:
        if arguments.dry_run:
            output.print_json({"dry_run": True, **asdict(old)})
        return
    if old.jobs:
        rows = [(each.job, output.moment(each.over), f"{each.generations}") for each in old.jobs]
        columns = ("job", "over since", "generations")
        output.console().print(output.table(columns, rows, right=("generations",)))
    output.console().print(
        f"{some(len(old.jobs), 'job')} over for more than {days:g} days and {some(len(old.blobs), 'blob')} "
        f"that nobody names; {some(old.kept, 'job')} kept"
    )


def _confirmed() -> bool:
    """Ask. Nothing else runs meanwhile, so the loop is held; Ctrl-C ends the wait at once."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    print("Remove them? Their results cannot be read afterwards. [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of days above 0, not {text!r}")
    return days
