"""``spotbatch failures``: what went wrong, how often, with one example of each."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from airflow_provider_spotbatch.cli import job_argument, output, place
from airflow_provider_spotbatch.cli.output import one_line, plain
from airflow_provider_spotbatch.control.failure_groups import (
    FailureGroup,
    FailureGroups,
    group_failures,
    read_example,
)
from airflow_provider_spotbatch.control.run_summary import read_documents
from airflow_provider_spotbatch.control.wording import some
from airflow_provider_spotbatch.job.outcome import Failure

SHOWN_GROUPS = 10
SHOWN_ITEMS = 5
SHOWN_ITEMS_IN_FULL = 1000

TRACEBACK_LINES = 30
"""Of a longer traceback the beginning is left out: the error is at its end."""

OUTPUT_LINES = 10

NOT_FINAL = "the run has not ended: these are the failed attempts so far, and some will be repeated"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "failures",
        help="what went wrong, grouped by error",
        description="The failures of a job, grouped by cause and error, the most frequent first, each with "
        "the traceback and the last output of its first item.",
    )
    job_argument.add_arguments(parser)
    parser.add_argument(
        "--limit",
        type=output.count,
        default=SHOWN_GROUPS,
        metavar="N",
        help=f"show N groups (default {SHOWN_GROUPS})",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"long tracebacks in full, and up to {SHOWN_ITEMS_IN_FULL:,} items",
    )
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    chosen = await job_argument.chosen_run(where, arguments)
    documents = await read_documents(where.store, where.keyring, chosen)
    items_shown = SHOWN_ITEMS_IN_FULL if arguments.full else SHOWN_ITEMS
    found = await group_failures(where.store, documents, items_shown=items_shown)
    shown = found.groups[: arguments.limit]
    examples = [await read_example(where.store, documents, group) for group in shown]
    if arguments.json:
        groups = [_to_json(*each) for each in zip(shown, examples, strict=True)]
        output.print_json(
            {
                "job": chosen.generation.job,
                "generation": chosen.generation.number,
                "run": chosen.number,
                "final": found.final,
                "failures": found.count,
                "groups_in_all": len(found.groups),
                "groups": groups,
                "others": found.others,
            }
        )
        return 0
    console = output.console()
    if not found.final:
        output.note(NOT_FINAL)
    console.print(_headline(found, documents.spec.items.count))
    for group, example in zip(shown, examples, strict=True):
        _show(console, group, example, arguments.full)
    _show_rest(console, found, len(shown))
    return 0


def _headline(found: FailureGroups, items: int) -> str:
    if not found.count:
        return f"no failures among {items:,} items"
    what = f"{found.count:,} failed" if found.final else some(found.count, "failed attempt")
    return f"{what} of {items:,} items, {some(len(found.groups), 'different error')}"


def _show(console: Console, group: FailureGroup, example: Failure | None, full: bool) -> None:
    console.print()
    console.print(Text(f"{group.count:,} × {group.cause}: {one_line(group.label, 300)}", style="bold red"))
    if group.count > 1:
        items = ", ".join(map(str, group.items)) + (", …" if group.count > len(group.items) else "")
        console.print(f"items {items}")
    attempts = some(group.attempts, "attempt")
    console.print(f"item {group.items[0]} ({attempts}), input: {one_line(group.preview, 300)}")
    if example is None:
        console.print("its result is gone", style="dim")
        return
    text = example.traceback.rstrip() or example.message
    _lines(console, text, TRACEBACK_LINES, full, "  ")
    if example.output_tail:
        console.print("last lines of its output:")
        _lines(console, example.output_tail, OUTPUT_LINES, full, "  | ")


def _lines(console: Console, text: str, most: int, full: bool, prefix: str) -> None:
    lines = plain(text).split("\n")
    if len(lines) > most and not full:
        console.print(f"{prefix}… {len(lines) - most:,} lines above these, see them with --full", style="dim")
        lines = lines[-most:]
    for line in lines:
        console.print(Text(prefix + line), soft_wrap=True)


def _show_rest(console: Console, found: FailureGroups, shown: int) -> None:
    rest = found.groups[shown:]
    if rest:
        failures = sum(group.count for group in rest)
        console.print()
        console.print(
            f"{some(len(rest), 'more error')} with {some(failures, 'failure')}: see them with --limit"
        )
    for cause, count in found.others.items():
        console.print(f"{count:,} more × {cause}, each with an error of its own")


def _to_json(group: FailureGroup, example: Failure | None) -> dict[str, Any]:
    return {
        "cause": group.cause,
        "label": group.label,
        "count": group.count,
        "items": group.items,
        "preview": group.preview,
        "attempts": group.attempts,
        "example": None if example is None else example.__dict__,
    }
