"""``spotbatch setup``: what a cloud account needs before jobs run in it, made or taken away."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.policies import airflow_policy, machine_policy
from airflow_provider_spotbatch.backends.aws.setup import connection_of, make, open_layout, take_away
from airflow_provider_spotbatch.backends.aws.setup_look import look
from airflow_provider_spotbatch.backends.aws.setup_plan import (
    Change,
    Found,
    Layout,
    notes,
    plan_removal,
    plan_setup,
)
from airflow_provider_spotbatch.cli import aws_account, output
from airflow_provider_spotbatch.cli.place import DEFAULT_CONN_ID

Say = Callable[[str], None]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("setup", help="make what a cloud account needs, or take it away")
    aws = aws_account.add_parser(
        parser,
        "Make what jobs need in an AWS account: a private bucket, a role for the machines, a security group "
        "without inbound rules, a policy for Airflow; then print the Airflow connection that leads there. "
        "Repeated, it completes and corrects what is there. Costs nothing but what jobs store.",
    )
    aws.add_argument(
        "--bucket",
        default="",
        metavar="BUCKET[/FOLDER]",
        help="of jobs and results; one that exists is left as it is (default NAME-ACCOUNT-REGION)",
    )
    aws.add_argument(
        "--subnet",
        action="append",
        default=[],
        metavar="ID",
        help="of the machines, best one in each zone; repeatable (default: the region's default ones)",
    )
    aws.add_argument(
        "--kms-key",
        default="",
        metavar="ARN",
        help="your own KMS key of the bucket: the policies let Airflow and the machines use it; name it "
        "again whenever you repeat the set-up",
    )
    aws.add_argument(
        "--image-parameter",
        action="append",
        default=[],
        metavar="NAME",
        help="your own SSM parameter that holds an image: Airflow's policy lets it be read; repeatable, and "
        "to be named again like the key",
    )
    aws.add_argument(
        "--aws-conn-id",
        default="",
        metavar="NAME",
        help="the Amazon connection whose credentials Airflow is to use (default: those of its processes)",
    )
    what = aws.add_mutually_exclusive_group()
    what.add_argument(
        "--dry-run", action="store_true", help="only tell what would be made, with the policies"
    )
    what.add_argument(
        "--remove", action="store_true", help="take it away again, but for a bucket that holds anything"
    )
    output.add_arguments(aws)
    aws.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    clients = aws_account.open_clients(arguments)
    layout = await open_layout(
        clients,
        name=arguments.name,
        bucket=arguments.bucket,
        subnets=arguments.subnet,
        bucket_key=arguments.kms_key,
        image_parameters=arguments.image_parameter,
    )
    found = await look(clients, layout)
    say = output.sayer(arguments)
    for line in notes(layout, found):
        output.note(line)
    if arguments.remove:
        return await _remove(clients, layout, found, arguments, say)
    if arguments.dry_run:
        _tell_plan(layout, plan_setup(layout, found), arguments, say)
        return 0
    return await _make(clients, layout, found, arguments, say)


async def _make(
    clients: Clients, layout: Layout, found: Found, arguments: argparse.Namespace, say: Say
) -> int:
    made: list[str] = []
    there = await make(clients, layout, found, _telling(say, "made ", made))
    connection = await connection_of(clients, layout, there, arguments.aws_conn_id)
    in_use = found.bucket is not None and not found.bucket.empty
    document = connection.to_json(None if in_use else secrets.token_hex(32))
    if connection.warning:
        output.note(connection.warning)
    if in_use:
        output.note(
            f"{layout.store} holds jobs already, and what they stored can be read with their key alone: keep "
            "the password of the connection that you have"
        )
    if arguments.json:
        policy = {"airflow_policy_arn": layout.airflow_policy_arn}
        output.print_json({"made": made, "connection": document, **policy})
        return 0
    if not made:
        say("everything is there already")
    _tell_next(layout, document, say)
    return 0


def _tell_next(layout: Layout, document: dict[str, Any], say: Say) -> None:
    arn = layout.airflow_policy_arn
    say("\nLet Airflow's own credentials use it, unless they may do everything anyway:")
    say(f"  aws iam attach-role-policy --role-name AIRFLOW_ROLE --policy-arn {arn}")
    key = "with the key that signs jobs and results (keep it secret)"
    if "password" not in document:
        key = "but for its password, which is the one that you have"
    say(f"\nThe connection, {key}:")
    say(f"  airflow connections add {DEFAULT_CONN_ID} --conn-json {shlex.quote(json.dumps(document))}")
    say("\nThen look whether all is well:\n  spotbatch check")
    if document["extra"]["public_address"]:
        say("\nMachines get public addresses ($0.005 an hour each): their subnets reach S3 and SQS only so.")


async def _remove(
    clients: Clients, layout: Layout, found: Found, arguments: argparse.Namespace, say: Say
) -> int:
    removed: list[str] = []
    await take_away(clients, plan_removal(layout, found), _telling(say, "removed ", removed))
    if found.bucket is not None and found.bucket.ours and not found.bucket.empty:
        bucket = layout.store_bucket
        output.note(f"bucket {bucket} is kept: it holds jobs and results. aws s3 rb --force s3://{bucket}")
    if arguments.json:
        output.print_json({"removed": removed})
    elif not removed:
        say("there is nothing to remove")
    return 0


def _tell_plan(layout: Layout, changes: Iterable[Change], arguments: argparse.Namespace, say: Say) -> None:
    lines = [change.what for change in changes]
    policies = {
        "machines": machine_policy(layout.scope),
        "airflow": airflow_policy(layout.scope),
    }
    if arguments.json:
        output.print_json({"would_make": lines, "policies": policies})
        return
    for line in lines:
        say(f"would make {line}")
    if not lines:
        say("everything is there already")
    for whose, policy in policies.items():
        say(f"\npolicy of {whose}:\n{json.dumps(policy, indent=2)}")


def _telling(say: Say, verb: str, kept: list[str]) -> Say:
    def tell(what: str) -> None:
        kept.append(what)
        say(f"{verb}{what}")

    return tell
