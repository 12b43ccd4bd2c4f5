"""``python -m airflow_provider_spotbatch.agent``: boot data on standard input; 0 = ended as planned."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from airflow_provider_spotbatch.agent.agent import MachineFailed, run_agent
from airflow_provider_spotbatch.backends import open_machine
from airflow_provider_spotbatch.backends.process_end import end_process
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


if __name__ == "__main__":
    end_process(main())
