"""``spotbatch show``: one job in detail, live while it runs."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_spotbatch.cli import job_argument, output, place
from airflow_provider_spotbatch.cli.output import dollars, moment, one_line, plain, state_text
from airflow_provider_spotbatch.control.advice import advise, figures, use_of
from airflow_provider_spotbatch.control.narrate import use_lines
from airflow_provider_spotbatch.control.run_summary import RunDocuments, read_documents
from airflow_provider_spotbatch.control.status import MachineStatus, Status, Watcher
from airflow_provider_spotbatch.control.wording import duration, rate_text, some

PAUSE_SECONDS = 1.0
"""Between two looks: agents report about as often."""

SHOWN_MACHINES = 20
SHOWN_RUNNING = 10
BAR_WIDTH = 40

MACHINE_COLUMNS = ("machine", "state", "slots", "running", "ok", "failed", "$/h", "")
MACHINE_NUMBERS = ("slots", "running", "ok", "failed", "$/h")
MACHINE_SPARE = ("", "slots", "$/h", "running", "ok", "failed")
"""What a narrow terminal does without, in this order."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "show",
        help="one job in detail, live while it runs",
        description="How a job stands: items, machines, what is awaited and why, what items used. On a "
        "terminal it is live until the job ends.",
    )
    job_argument.add_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--watch", action="store_true", help="follow the job to its end, also where this is no terminal"
    )
    how.add_argument("--once", action="store_true", help="one picture, also on a terminal")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    chosen = await job_argument.chosen_run(where, arguments)
    documents = await read_documents(where.store, where.keyring, chosen)
    watcher = Watcher(where.store, documents)
    if arguments.json:
        await _print_json(where, documents, watcher, watch=arguments.watch)
    elif output.is_terminal() and not arguments.once:
        await _watch_live(watcher)
        await _print_use(where, documents)
    else:
        status = await _print_progress(watcher) if arguments.watch else await watcher.look(time.time())
        output.console().print(_picture(status, time.time()))
        await _print_use(where, documents)
    return 0


async def _watch_live(watcher: Watcher) -> None:
    """Draw the job until it ends. What stands at the end stays on the terminal."""
    status = await watcher.look(time.time())
    # Drawn by our own loop alone: a thread of rich's would draw between two of its pictures.
    with Live(_picture(status, time.time()), console=output.console(), auto_refresh=False) as live:
        while status.live:
            await asyncio.sleep(PAUSE_SECONDS)
            status = await watcher.look(time.time())
            live.update(_picture(status, time.time()), refresh=True)


async def _print_progress(watcher: Watcher) -> Status:
    """A line whenever something has changed, until the job ends; the last look."""
    told = ""
    while True:
        status = await watcher.look(time.time())
        line = _progress(status)
        if line != told:
            output.console().print(f"{moment(time.time())} {line}")
            told = line
        if not status.live:
            return status
        await asyncio.sleep(PAUSE_SECONDS)


async def _print_json(where: place.Place, documents: RunDocuments, watcher: Watcher, *, watch: bool) -> None:
    """One document; with ``watch`` one per look until the job ends, what items used only in the last."""
    while True:
        now = time.time()
        status = await watcher.look(now)
        last = not watch or not status.live
        document = status.to_json(now)
        if last:
            use = await use_of(where.store, documents.run.generation)
            advice = [each.__dict__ for each in advise(use, documents.record.policy)]
            document |= {"use": figures(use), "advice": advice}
        output.print_json(document)
        if last:
            return
        await asyncio.sleep(PAUSE_SECONDS)


async def _print_use(where: place.Place, documents: RunDocuments) -> None:
    use = await use_of(where.store, documents.run.generation)
    for line in use_lines(use, documents.record.policy):
        output.console().print(plain(line))


# --- the picture ---------------------------------------------------------------------------------


def _picture(status: Status, now: float) -> Group:
    return Group(*_headlines(status, now), *_machines(status), *_running_items(status), *_reasons(status))


def _headlines(status: Status, now: float) -> Iterator[RenderableType]:
    summary, identity = status.summary, status.summary.identity
    run = summary.run
    title = Text(f"{run.generation.job}  ", style="bold")
    title.append_text(state_text(summary.state))
    title.append(f"  generation {run.generation.number}, run {run.number}", style="dim")
    yield title
    index = identity.get("map_index", -1)
    task = f"{identity.get('task_id', '')}{f' [{index}]' if index >= 0 else ''}"
    yield Text(
        plain(f"DAG {identity.get('dag_id', '')} · task {task} · DAG run {identity.get('run_id', '')}")
    )
    ended = f"ended {moment(summary.ended)} · " if summary.ended else ""
    yield Text(f"started {moment(summary.started)} · {ended}{duration(summary.duration(now))}")
    yield _bar(status)
    if summary.causes:
        counts = ", ".join(f"{count:,} {cause}" for cause, count in summary.causes.items())
        yield Text(f"failed by cause: {counts}")
    if summary.cost_usd is not None or status.policy.budget_usd is not None:
        budget = status.policy.budget_usd
        yield Text(f"cost {dollars(summary.cost_usd or 0.0)}{f' of {dollars(budget)}' if budget else ''}")
    for text in filter(None, (status.stopping, status.awaited)):
        yield Text(one_line(text, 500), style="yellow")
    if summary.message:
        yield Text(one_line(summary.message, 1000))


def _bar(status: Status) -> RenderableType:
    summary = status.summary
    done = summary.done / summary.items if summary.items else 1.0
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=done, width=BAR_WIDTH), Text(_progress(status)))
    return line


def _progress(status: Status) -> str:
    summary, counts = status.summary, status.counts
    share = f" ({100 * summary.done / summary.items:.0f} %)" if summary.items else ""
    parts = [f"{summary.done:,} of {summary.items:,} items done{share}, {summary.failed:,} failed"]
    if status.live or summary.ended is None:
        parts.append(f"{status.running:,} running, {counts.waiting:,} waiting")
        if counts.retrying:
            parts.append(f"{counts.retrying:,} to run again")
    elif counts.open:
        parts.append(f"{counts.open:,} without a result")
    if status.rate:
        left = status.seconds_left
        parts.append(rate_text(status.rate) + (f", {duration(left)} left" if left else ""))
    return " · ".join(parts)


def _machines(status: Status) -> Iterator[RenderableType]:
    if not status.machines:
        return
    shown = status.machines[:SHOWN_MACHINES]
    rows = [_machine(machine) for machine in shown]
    yield Text()
    yield output.table(MACHINE_COLUMNS, rows, right=MACHINE_NUMBERS, wrap=("",), spare=MACHINE_SPARE)
    more = len(status.machines) - len(shown)
    if more:
        yield Text(f"… and {some(more, 'machine')} more", style="dim")


def _machine(status: MachineStatus) -> list[str | Text]:
    machine, report = status.machine, status.report
    return [
        machine.id,
        status.state,
        f"{machine.slots:,}",
        f"{status.running:,}",
        f"{report.items_ok if report else 0:,}",
        f"{report.items_failed if report else 0:,}",
        f"{machine.usd_per_hour:.4f}" if machine.usd_per_hour else "",
        one_line(machine.reason, 200),
    ]


def _running_items(status: Status) -> Iterator[RenderableType]:
    running = [
        (item.seconds, item.item, item.attempt, machine.machine.id)
        for machine in status.machines
        if machine.report is not None and machine.running
        for item in machine.report.running
    ]
    if not running:
        return
    running.sort(reverse=True)
    rows = [
        (str(item), str(attempt), duration(seconds), machine)
        for seconds, item, attempt, machine in running[:SHOWN_RUNNING]
    ]
    yield Text()
    yield output.table(("item", "attempt", "for", "on machine"), rows, right=("item", "attempt", "for"))
    more = len(running) - len(rows)
    if more:
        yield Text(f"… and {some(more, 'running item')} more", style="dim")


def _reasons(status: Status) -> Iterator[RenderableType]:
    if status.reasons:
        yield Text()
    for reason in status.reasons:
        yield Text(f"{moment(reason.at)[11:16]} {one_line(reason.text, 300)}", style="dim")
