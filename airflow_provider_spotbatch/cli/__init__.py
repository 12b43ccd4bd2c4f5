"""The command line ``spotbatch``: one module per command, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = ("jobs", "estimate", "setup", "grant")
"""Modules of this package, in the order in which the help shows them."""

FINE, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes. BAD: what was asked for is not there, or a check failed; INTERRUPTED: Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. ``argv`` without the program's name; returns the exit code.

    Errors of this package are one line on standard error; usage errors raise SystemExit(2).
    """
    from airflow_provider_spotbatch.cli.output import error
    from airflow_provider_spotbatch.job.errors import SpotBatchError

    arguments = build_parser().parse_args(argv)
    try:
        answer = arguments.run(arguments)
        return int(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
    except SpotBatchError as failed:
        error(str(failed))
        return BAD
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `spotbatch logs … | head`: whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


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
