"""``spotbatch setup aws``: carries out what is planned, and tells the connection that leads to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.backends.aws.network import needs_public_address
from airflow_provider_spotbatch.backends.aws.prices import check_currency
from airflow_provider_spotbatch.backends.aws.setup_look import look
from airflow_provider_spotbatch.backends.aws.setup_plan import (
    DEFAULT_NAME,
    Change,
    Found,
    Layout,
    plan_setup,
)
from airflow_provider_spotbatch.backends.aws.subnets import ask_subnets
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError

Say = Callable[[str], None]

ROUNDS = 3
"""Looks after changes until nothing is left to do: one is enough, unless somebody works against it."""


def shell_region() -> str:
    """The region that the AWS CLI would take; "" if there is none. Raises InvalidInput without the SDK."""
    try:
        import boto3  # type: ignore[import-untyped]
    except ImportError as missing:
        raise InvalidInput(
            f"this needs Amazon's SDK: pip install 'airflow-provider-spotbatch[aws]' ({missing})"
        ) from missing
    return boto3.Session().region_name or ""


async def open_layout(
    clients: Clients,
    *,
    name: str = DEFAULT_NAME,
    bucket: str = "",
    subnets: Sequence[str] = (),
    bucket_key: str = "",
    image_parameters: Sequence[str] = (),
) -> Layout:
    """The layout of a set-up in this account and region. ``bucket``: ``name`` or ``name/folder``.

    Raises InvalidInput for what the region does not have.
    """
    check_currency(clients.region)
    identity = await clients.call("sts", "GetCallerIdentity")
    bucket_name, _, prefix = bucket.removeprefix("s3://").partition("/")
    return Layout(
        account=identity["Account"],
        partition=identity["Arn"].split(":")[1],
        region=clients.region,
        vpc=await _vpc_of(clients, subnets),
        name=name,
        bucket=bucket_name,
        prefix=prefix,
        subnets=tuple(subnets),
        bucket_key=bucket_key,
        image_parameters=tuple(image_parameters),
    )


async def _vpc_of(clients: Clients, subnets: Sequence[str]) -> str:
    if subnets:
        found = await clients.pages("ec2", "DescribeSubnets", "Subnets", SubnetIds=list(subnets))
        vpcs = sorted({each["VpcId"] for each in found})
        if len(vpcs) > 1:
            raise InvalidInput(f"the subnets are of several VPCs ({', '.join(vpcs)}): name those of one")
        return str(vpcs[0])
    default = await clients.pages(
        "ec2", "DescribeVpcs", "Vpcs", Filters=[{"Name": "is-default", "Values": ["true"]}]
    )
    if not default:
        raise InvalidInput(
            f"{clients.region} has no default VPC in this account: name the machines' subnets with --subnet"
        )
    return str(default[0]["VpcId"])


async def carry_out(clients: Clients, changes: Iterable[Change], say: Say) -> None:
    """Do what was planned, in order. Raises the verdict of what was refused; the next set-up goes on from
    there."""
    for change in changes:
        await _change(clients, change)
        say(change.what)


async def take_away(clients: Clients, changes: Iterable[Change], say: Say) -> None:
    """Do what was planned, each part whether or not others can be done. Raises SpotBatchError at the end,
    naming what is left and why."""
    left: list[str] = []
    for change in changes:
        try:
            await _change(clients, change)
        except SpotBatchError as error:
            left.append(f"{change.what}: {error}")
        else:
            say(change.what)
    if left:
        raise SpotBatchError("not all could be removed; repeat it once this is cured: " + "; ".join(left))


async def _change(clients: Clients, change: Change) -> None:
    for call in change.calls:
        with suppress(ErrorCode):
            await clients.call(call.service, call.operation, answers=call.harmless, **call.parameters)


async def make(clients: Clients, layout: Layout, found: Found, say: Say) -> Found:
    """Have everything there; what is there then. Raises SpotBatchError where that cannot be had."""
    for _ in range(ROUNDS):
        changes = plan_setup(layout, found)
        if not changes:
            return found
        await carry_out(clients, changes, say)
        found = await look(clients, layout)
    raise SpotBatchError(
        "the account does not keep what set-up makes: "
        + "; ".join(change.what for change in plan_setup(layout, found))
    )


@dataclass(frozen=True)
class Connection:
    """The Airflow connection of a set-up, but for its key. ``warning``: what is wrong with the
    network, or ""."""

    extra: dict[str, Any]
    warning: str

    def to_json(self, key: str | None) -> dict[str, Any]:
        """As ``airflow connections add --conn-json`` takes it."""
        password = {} if key is None else {"password": key}
        return {"conn_type": "spotbatch", **password, "extra": self.extra}


async def connection_of(clients: Clients, layout: Layout, found: Found, aws_conn_id: str) -> Connection:
    """What leads Airflow to the set-up. ``aws_conn_id``: the Amazon connection to be named, or ""."""
    of_vpc = [{"Name": "vpc-id", "Values": [layout.vpc]}]
    zones, tables, endpoints = await asyncio.gather(
        ask_subnets(clients, layout.subnets),
        clients.pages("ec2", "DescribeRouteTables", "RouteTables", Filters=of_vpc),
        clients.pages("ec2", "DescribeVpcEndpoints", "VpcEndpoints", Filters=of_vpc),
    )
    subnets = [subnet for its in zones.values() for subnet in its]
    public, warning = needs_public_address(subnets, tables, endpoints)
    extra: dict[str, Any] = {
        "backend": "aws",
        "region": layout.region,
        "store": layout.store,
        "instance_profile": layout.role,
        "public_address": public,
    }
    if found.group is not None:
        extra["security_groups"] = [found.group.id]
    if layout.subnets:
        extra["subnets"] = list(layout.subnets)
    if aws_conn_id:
        extra["aws_conn_id"] = aws_conn_id
    return Connection(extra, warning)
