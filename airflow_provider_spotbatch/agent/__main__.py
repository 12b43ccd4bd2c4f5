"""``python -m airflow_provider_spotbatch.agent``: boot data on standard input; 0 = ended as planned."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import NoReturn

from airflow_provider_spotbatch.agent.agent import MachineFailed, run_agent
from airflow_provider_spotbatch.backends import open_machine
from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.job.boot import Boot

log = logging.getLogger("airflow_provider_spotbatch.agent")


async def _live(boot: Boot) -> int:
    agent = asyncio.current_task()
    if agent is None:
        raise AssertionError("a coroutine that runs is a task")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.cancel)
    try:
        await run_agent(boot, open_machine(boot), open_store(boot.store, boot.store_options))
    except MachineFailed:
        return 1
    except asyncio.CancelledError:
        log.warning("ended by a signal")
    return 0


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return asyncio.run(_live(Boot.from_text(sys.stdin.read())))


def program() -> NoReturn:
    """``main``, and then the end of the process at once: at Python's own end threads of the store's library
    abort it now and then (seen on 3.10), and an agent that did all its work would count as crashed."""
    code = main()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
