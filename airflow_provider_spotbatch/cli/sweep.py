"""``spotbatch sweep``: end machines that outlived their run, remove what belongs to nobody."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.control.sweep import plan_sweep, sweep
from airflow_provider_spotbatch.control.wording import some


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="end machines that outlived their run, remove queues and items of nobody",
        description="End the machines of a connection whose run is over, and remove queues and items that "
        "belong to nobody. A run that may be alive is never touched. Meant to run every hour.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    site = (await place.open_place(arguments)).site
    say = output.sayer(arguments)
    if arguments.dry_run:
        plan = await plan_sweep(site, say)
        if arguments.json:
            output.print_json({"dry_run": True, **asdict(plan)})
            return 0
        for kind, action in (("machines", "end"), ("queues", "remove"), ("submissions", "remove")):
            for leftover in getattr(plan, kind):
                what = leftover.name if kind == "submissions" else f"{kind[:-1]} {leftover.name}"
                say(f"would {action} {what}: {_whose(kind)} {leftover.why}")
        say(f"would leave {some(plan.alive, 'machine')} to their runs")
        return 0
    report = await sweep(site, say)
    if arguments.json:
        output.print_json({"dry_run": False, **asdict(report)})
    else:
        say(
            f"ended {some(len(report.machines), 'machine')}, removed {some(len(report.queues), 'queue')} and "
            f"{some(len(report.submissions), 'folder')} of items, forgot {some(report.forgotten, 'machine')} "
            f"that ended long ago; {some(report.alive, 'machine')} left to their runs"
        )
    return 0


def _whose(kind: str) -> str:
    return "" if kind == "submissions" else "its run"
