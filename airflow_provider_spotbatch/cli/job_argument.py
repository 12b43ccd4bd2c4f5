"""The argument JOB, and which run of the job is meant."""

from __future__ import annotations

import argparse

from airflow_provider_spotbatch.cli.place import Place
from airflow_provider_spotbatch.control.find_run import find_run
from airflow_provider_spotbatch.job.keys import Run


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="the job's id, or any part of it that no other has")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument(
        "--generation", type=int, metavar="N", help="another generation of the job than the last"
    )
    parser.add_argument("--run", dest="run_number", type=int, metavar="N", help="another run than the last")


async def chosen_run(place: Place, arguments: argparse.Namespace) -> Run:
    """The run that the arguments name. Raises InvalidInput where they name none, or several jobs."""
    return await find_run(place.store, arguments.job, arguments.generation, arguments.run_number)
