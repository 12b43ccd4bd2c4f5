"""``spotbatch replay``: run one item here, with its exact code, environment and input."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.agent.replay import ItemToReplay, debugger, replay_item
from airflow_provider_spotbatch.cli import job_argument, output, place
from airflow_provider_spotbatch.cli.output import moment, plain
from airflow_provider_spotbatch.control.item_record import ItemRecord
from airflow_provider_spotbatch.control.replay import Replay, Verdict, compare, open_replay
from airflow_provider_spotbatch.control.wording import duration, some
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.outcome import Failure, ItemOutcome

_TRACEBACK_LINES = 12
"""Of the recorded traceback: its end, where it failed. `spotbatch failures` shows it whole."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="run one item here, with its exact code, environment and input",
        description="Run one item of a job here, as its machines did. Nothing is written to the store. "
        "The exit code is 0 if it succeeds and 1 if it fails.",
    )
    job_argument.add_arguments(parser)
    parser.add_argument("--item", type=int, required=True, metavar="N", help="the item's index, from 0")
    place.add_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--pdb",
        action="store_true",
        help="stop in the debugger where the item raises, and at breakpoint(); no limits are enforced",
    )
    output.add_arguments(how)
    parser.add_argument(
        "--source",
        type=os.path.abspath,
        default=".",
        metavar="FOLDER",
        help="the DAG bundle's folder, from which --pdb lists the DAG file (default: the current one)",
    )
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    where = await place.open_place(arguments)
    chosen = await job_argument.chosen_run(where, arguments)
    replay = await open_replay(where.store, where.keyring, chosen, arguments.item)
    if arguments.pdb and replay.is_command:
        raise InvalidInput("--pdb stops in Python functions, and this job runs a command: leave it out")
    if not arguments.json:
        _show_record(replay)
    for difference in replay.differences:
        output.note(difference)
    if replay.spec.environment.packages:
        output.note(f"preparing an environment with {some(len(replay.spec.environment.packages), 'package')}")
    with tempfile.TemporaryDirectory(prefix="spotbatch-replay-") as folder, _interrupts(arguments.pdb):
        orders = ItemToReplay(
            item=replay.item,
            run=chosen,
            spec=replay.spec,
            signer=replay.documents.signer,
            folder=Path(folder) / "machine",
            python=await replay.interpreter(f"{folder}/environments"),
            item_timeout=replay.documents.record.policy.item_timeout,
            memory_mb=replay.memory_mb,
            debugger=debugger(arguments.source) if arguments.pdb else None,
        )
        lines = sys.stderr if arguments.json else sys.stdout
        outcome = await replay_item(
            where.store, orders, lambda line: print(plain(line), file=lines, flush=True)
        )
    verdict = compare(replay.recorded, outcome)
    if arguments.json:
        output.print_json(_to_json(outcome, verdict))
    else:
        _show_outcome(outcome, verdict)
    if verdict.failure is not None and verdict.failure.type == "bdb.BdbQuit" and not arguments.pdb:
        output.note("the function stops at a breakpoint, where nobody answers: use --pdb")
    return 0 if verdict.ok else 1


@contextlib.contextmanager
def _interrupts(for_the_item: bool) -> Iterator[None]:
    """Leave Ctrl-C to the item's process, which is in the debugger, while this one waits for it."""
    if not for_the_item:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # ignored signals would be so in the child, too
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _show_record(replay: Replay) -> None:
    run, work, recorded = replay.documents.run, replay.spec.work, replay.recorded
    say = partial(output.console().print, soft_wrap=True)
    say(
        f"item {replay.item} of {run.generation.job} (generation {run.generation.number}, run {run.number}): "
        f"{plain(work.name)}"
    )
    if recorded is None:
        say("on record: no outcome yet")
    else:
        for line in _record_lines(recorded):
            say(line)
    say("")


def _record_lines(recorded: ItemRecord) -> Iterator[str]:
    machine = f"{recorded.instance} ({recorded.host})" if recorded.instance else "no machine"
    yield plain(
        f"on record: {recorded.cause} in attempt {recorded.attempts} on {machine}, "
        f"{moment(recorded.start)}, {_used(recorded.end - recorded.start, recorded.peak_mb)}"
    )
    yield f"input: {plain(recorded.preview_in)}"
    failure = recorded.failure
    if failure is None:
        yield f"result: {plain(recorded.preview_out)}"
        return
    lines = plain(failure.traceback or _message(failure)).rstrip().splitlines()
    if len(lines) > _TRACEBACK_LINES:
        yield "  …"
    yield from (f"  {line}" for line in lines[-_TRACEBACK_LINES:])


def _show_outcome(outcome: ItemOutcome, verdict: Verdict) -> None:
    say = partial(output.console().print, soft_wrap=True)
    say("")
    used = _used(outcome.end - outcome.start, outcome.peak_mb)
    failure = verdict.failure
    if failure is None:
        say(f"succeeded here {used}: {plain(outcome.preview_out)}", style="green")
    else:
        say(f"failed here {used}: {outcome.cause}, {plain(failure.label)}", style="red")
        say(plain(failure.traceback or failure.message).rstrip())
    say(plain(verdict.message))


def _message(failure: Failure) -> str:
    return f"{failure.type}: {failure.message}"


def _used(seconds: float, peak_mb: float | None) -> str:
    took = f"{seconds:.2f} s" if seconds < 90 else duration(seconds)
    return f"after {took}" if peak_mb is None else f"after {took} and {peak_mb:,.0f} MB"


def _to_json(outcome: ItemOutcome, verdict: Verdict) -> dict[str, Any]:
    failure = verdict.failure
    return {
        "item": outcome.item,
        "ok": verdict.ok,
        "cause": outcome.cause,
        "message": _message(failure) if failure is not None else "",
        "traceback": failure.traceback if failure is not None else "",
        "result": outcome.preview_out if verdict.ok else "",
        "seconds": round(outcome.end - outcome.start, 6),
        "same_as_recorded": verdict.same_as_recorded,
        "verdict": verdict.message,
    }
