"""The command line ``spotbatch``: one module per command, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from importlib import import_module
from typing import NoReturn

from airflow_provider_spotbatch.backends.process_end import end_process

COMMANDS = (
    "jobs",
    "show",
    "failures",
    "logs",
    "replay",
    "cancel",
    "sweep",
    "check",
    "clean",
    "estimate",
    "setup",
    "grant",
)
"""Modules of this package, in the order in which the help shows them."""

FINE, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes. BAD: what was asked for is not there, or a check failed; INTERRUPTED: Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. ``argv`` without the program's name; returns the exit code.

    Errors of this package are one line on standard error; usage errors raise SystemExit(2).
    """
    from airflow_provider_spotbatch.cli.output import error, prepare
    from airflow_provider_spotbatch.job.errors import SpotBatchError

    arguments = build_parser().parse_args(argv)
    prepare()
    try:
        answer = arguments.run(arguments)
        return int(asyncio.run(_until_ctrl_c(answer)) if inspect.iscoroutine(answer) else answer)
    except SpotBatchError as failed:
        error(str(failed))
        return BAD
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except BrokenPipeError:  # `spotbatch logs … | head`: whoever read has enough
        _print_no_more()
        return FINE
    except OSError as failed:  # the disk is full that it is printed to, or that a replay needs
        error(str(failed))
        _print_no_more()
        return BAD


def _print_no_more() -> None:
    """What is still held for standard output would fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _until_ctrl_c(command: Coroutine[None, None, int]) -> int:
    """Cancel the command at the first Ctrl-C, so that it tidies up; a second one ends it where it stands.

    Python 3.10 would raise KeyboardInterrupt wherever the loop happens to be, where it may be lost.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        if task is not None:
            task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, cancel)
    return await command


def program() -> NoReturn:
    """The installed command."""
    end_process(main())


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; ``run`` of what it parses is the chosen command's."""
    from airflow_provider_spotbatch import __version__

    parser = argparse.ArgumentParser(
        prog="spotbatch", description="Look at jobs of airflow-provider-spotbatch, and act on them."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        import_module(f"{__name__}.{command}").add_parser(subparsers)
    return parser
