"""Which AWS account and region a command works in: the credentials of the shell, as the AWS CLI has them."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.setup import shell_region
from airflow_provider_spotbatch.backends.aws.setup_plan import DEFAULT_NAME
from airflow_provider_spotbatch.job.errors import InvalidInput


def add_parser(subparsers: Any, description: str) -> argparse.ArgumentParser:
    """The parser of ``aws`` below a command that works on any cloud's account."""
    clouds = subparsers.add_subparsers(metavar="CLOUD", required=True)
    parser: argparse.ArgumentParser = clouds.add_parser(
        "aws", help="Amazon Web Services", description=description
    )
    parser.add_argument(
        "--region", default="", metavar="NAME", help="default: the shell's, as for the AWS CLI"
    )
    parser.add_argument(
        "--name",
        default=DEFAULT_NAME,
        metavar="NAME",
        help=f"of the set-up, for several in one account (default {DEFAULT_NAME})",
    )
    return parser


def open_clients(arguments: argparse.Namespace) -> Clients:
    """Clients of the account and region meant. Raises InvalidInput where no region is known."""
    region = arguments.region or shell_region()
    if not region:
        raise InvalidInput("no region is known: give --region, such as eu-west-1")
    return Clients(region)
