"""``spotbatch logs``: what items have printed and logged."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from airflow_provider_spotbatch.cli import job_argument, output, place
from airflow_provider_spotbatch.control.item_logs import ItemLogs, LogLine, chosen_machines
from airflow_provider_spotbatch.control.run_summary import read_specification
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError
from airflow_provider_spotbatch.job.keys import Run

PAUSE_SECONDS = 1.0
"""Between two looks with --follow: agents store what was printed about once a second."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "logs",
        help="what items have printed and logged",
        description="The output of a job's items, of all runs of its generation unless --run names one: each "
        "line with its time, machine, item and attempt.",
    )
    job_argument.add_arguments(parser)
    parser.add_argument("--item", type=int, metavar="N", help="only of this item (its index, from 0)")
    parser.add_argument("--machine", metavar="ID", help="only of machines with this in their id")
    parser.add_argument(
        "--grep", metavar="TEXT", help="only lines that have this text in them, case-sensitive"
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes until the job ends")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    chosen = await job_argument.chosen_run(where, arguments)
    spec, _ = await read_specification(where.store, where.keyring, chosen.generation)
    _check_item(chosen, arguments.item, spec.items.count)
    of_run = arguments.run_number is not None
    machines = await chosen_machines(where.store, chosen, of_run=of_run, part=arguments.machine)
    logs = ItemLogs(where.store, chosen.generation, machines)
    shown = 0
    while True:
        over = not arguments.follow or await _is_over(where, chosen)
        async for line in logs.new_lines():
            if _wanted(line, arguments):
                _show(line, arguments.json)
                shown += 1
        sys.stdout.flush()
        if over:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    if not shown and not arguments.json:
        output.note("nothing that fits was printed")
    return 0


def _check_item(run: Run, item: int | None, items: int) -> None:
    if item is not None and not 0 <= item < items:
        there = f"it has items 0 to {items - 1}" if items else "it has no items"
        raise InvalidInput(f"job {run.generation.job} has no item {item}: {there}")


async def _is_over(where: place.Place, run: Run) -> bool:
    """Whether nothing more is to come: asked before the last look, so that this one sees all."""
    if await where.store.exists(run.outcome) or await where.store.exists(run.cancel):
        return True
    if not await where.store.exists(run.run):
        raise SpotBatchError(f"job {run.generation.job} was removed from {where.store.uri} meanwhile")
    return False


def _wanted(line: LogLine, arguments: argparse.Namespace) -> bool:
    if arguments.item is not None and line.item != arguments.item:
        return False
    return arguments.grep is None or arguments.grep in line.text


def _show(line: LogLine, as_json: bool) -> None:
    if as_json:
        output.print_json(line.__dict__)
        return
    at = datetime.fromtimestamp(line.time).isoformat(" ", "milliseconds")
    who = "-" if line.item is None else f"item {line.item} attempt {line.attempt}"
    for text in _pieces(line.text):
        sys.stdout.write(f"{at} {line.machine} {who} | {text}\n")


def _pieces(text: str) -> Iterator[str]:
    """A line is one; where it holds line feeds all the same, none can pass for another item's."""
    yield from (output.plain(piece) for piece in text.split("\n"))
