"""``spotbatch sweep``: end machines that outlived their run, remove what belongs to nobody."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.control.sweep import SweepPlan, SweepReport, plan_sweep, sweep
from airflow_provider_spotbatch.control.wording import some
from airflow_provider_spotbatch.job.errors import SpotBatchError

T = TypeVar("T", SweepPlan, SweepReport)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="end machines that outlived their run, remove queues and items of nobody",
        description="End the machines of a connection whose run is over, and remove queues and items that "
        "belong to nobody. A run that may be alive is never touched. Meant to run every hour.",
    )
    parser.add_argument(
        "--region",
        action="append",
        default=[],
        metavar="NAME",
        help="sweep this region in place of the connection's, such as one that it named before; repeatable",
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    site = (await place.open_place(arguments)).site
    backends = [site.backend.in_region(region) for region in arguments.region] or [site.backend]
    sites = [replace(site, backend=backend) for backend in backends]
    say = output.sayer(arguments)
    if arguments.dry_run:
        plan = _together([await plan_sweep(each, say) for each in sites])
        if arguments.json:
            output.print_json({"dry_run": True, **asdict(plan)})
            return 0
        for kind, action in (("machines", "end"), ("queues", "remove"), ("submissions", "remove")):
            for leftover in getattr(plan, kind):
                what = leftover.name if kind == "submissions" else f"{kind[:-1]} {leftover.name}"
                say(f"would {action} {what}: {_whose(kind)} {leftover.why}")
        say(f"would leave {some(plan.alive, 'machine')} to their runs")
        return 0
    reports, failures = [], []
    for each in sites:
        try:
            reports.append(await sweep(each, say))
        except SpotBatchError as failure:  # the other regions are swept all the same
            failures.append(failure)
    if failures:
        raise failures[0] if len(failures) == 1 else SpotBatchError("; ".join(map(str, failures)))
    report = _together(reports)
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


def _together(parts: Sequence[T]) -> T:
    """What was found in several regions, as one: the store's folders of items are found in each."""
    sums: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        joined = isinstance(values[0], tuple)
        sums[field.name] = tuple(dict.fromkeys(sum(values, ()))) if joined else sum(values)
    return replace(parts[0], **sums)
