"""``spotbatch check``: whether a connection has all that jobs need, and what to do where it has not."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from typing import Any

from rich.text import Text

from airflow_provider_spotbatch.backends.base import Check
from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.cli.output import plain
from airflow_provider_spotbatch.control.checks import check_settings, check_store, failed_connection
from airflow_provider_spotbatch.job.errors import InvalidInput


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        help="look whether a connection has all that jobs need",
        description="The checks of the connection's test button, one by one: its fields and key, what its "
        "store must be able to do, its backend. Starts no machine and leaves nothing behind.",
    )
    parser.add_argument(
        "connection", metavar="CONN", nargs="?", help=f"the connection (default {place.DEFAULT_CONN_ID})"
    )
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    checks = await _checks(arguments)
    if arguments.json:
        output.print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            _show(check)
    return 0 if all(check.ok for check in checks) else 1


async def _checks(arguments: argparse.Namespace) -> list[Check]:
    if arguments.store is not None:
        return await check_store((await place.open_place(arguments)).store)
    conn_id = arguments.connection or arguments.conn_id
    try:
        settings = await asyncio.to_thread(place.read_connection, conn_id)
    except InvalidInput as wrong:
        return [failed_connection(wrong)]
    return await check_settings(settings)


def _show(check: Check) -> None:
    line = Text("ok      " if check.ok else "FAILED  ", style="green" if check.ok else "bold red")
    line.append(plain(f"{check.name}: {check.found}"), style="default")
    output.console().print(line, soft_wrap=True)
    if check.remedy:
        output.console().print(Text(plain(f"        → {check.remedy}"), style="yellow"), soft_wrap=True)
