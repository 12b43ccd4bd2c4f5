"""``spotbatch grant``: what machines may do with the user's own data."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_spotbatch.backends.aws.data_policy import Grants
from airflow_provider_spotbatch.backends.aws.grants import read_grants, write_grants
from airflow_provider_spotbatch.backends.aws.setup_plan import machine_role
from airflow_provider_spotbatch.cli import aws_account, output


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("grant", help="let machines read and write data, and read secrets")
    aws = aws_account.add_parser(
        parser,
        "Let the machines of a set-up read and write places in S3 and read secrets, by a policy of their "
        "role that holds nothing else. Without a place or secret it tells what is granted now.",
    )
    for verb, what in (("read", "may be read"), ("write", "may be read and written")):
        aws.add_argument(
            f"--{verb}",
            action="append",
            default=[],
            metavar="s3://BUCKET/FOLDER",
            help=f"all below it {what}; repeatable",
        )
    aws.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="ARN",
        help="of Secrets Manager or an SSM parameter: may be read; repeatable",
    )
    aws.add_argument("--remove", action="store_true", help="take these away instead")
    output.add_arguments(aws)
    aws.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    asked = Grants.of(arguments.read, arguments.write, arguments.secret)
    clients = aws_account.open_clients(arguments)
    role = machine_role(arguments.name, clients.region)
    before, others = await read_grants(clients, role)
    after = before - asked if arguments.remove else before | asked
    if after != before:
        await write_grants(clients, role, after, others)
    _tell(role, after, arguments)
    return 0


def _tell(role: str, grants: Grants, arguments: argparse.Namespace) -> None:
    granted = {name: sorted(getattr(grants, name)) for name in ("read", "write", "secrets")}
    if arguments.json:
        output.print_json({"role": role, **granted})
        return
    say = output.sayer(arguments)
    say(f"{role} may:" if grants else f"{role} may use no data")
    for name, what in (("read", "read"), ("write", "read and write"), ("secrets", "read the secret")):
        for each in granted[name]:
            say(f"  {what} {each}")
