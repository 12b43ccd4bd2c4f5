"""``spotbatch estimate``: what a job will cost, before it is run."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from airflow_provider_spotbatch.cli import output, place
from airflow_provider_spotbatch.control.accounting import usd_per_thousand
from airflow_provider_spotbatch.control.estimate import (
    BOOT_SECONDS,
    Estimate,
    estimate,
    forbidden_by,
    price_line,
    snapshot_of,
)
from airflow_provider_spotbatch.control.wording import duration
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import PURCHASE, SPOT, Policy
from airflow_provider_spotbatch.job.resources import Resources


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "estimate",
        help="what a job will cost",
        description="The machines that a job would be given now, and what they cost; with --item-seconds "
        "also the whole job's time and cost. Starts nothing.",
    )
    parser.add_argument("--items", type=output.count, required=True, metavar="N", help="how many items")
    parser.add_argument("--item-seconds", type=float, metavar="S", help="what one item takes")
    parser.add_argument("--concurrency", type=output.count, metavar="N", help="most items at once")
    for name, what in (("cpus", "CPUs"), ("memory-gb", "memory in GB"), ("disk-gb", "disk in GB")):
        default = getattr(Resources, name.replace("-", "_"))
        parser.add_argument(
            f"--{name}",
            type=float,
            default=default,
            metavar="X",
            help=f"{what} of one item (default {default})",
        )
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of one item")
    parser.add_argument(
        "--instance-type",
        action="append",
        default=[],
        metavar="TYPE",
        help="only this machine type, or types like it (m7g.*); repeatable",
    )
    parser.add_argument("--purchase", choices=PURCHASE, default=SPOT)
    parser.add_argument("--budget-usd", type=float, metavar="X", help="tell how long it lasts")
    place.add_arguments(parser)
    output.add_arguments(parser)
    parser.set_defaults(run=run)


async def run(arguments: argparse.Namespace) -> int:
    if arguments.item_seconds is not None and not 0 < arguments.item_seconds < float("inf"):
        raise InvalidInput(f"--item-seconds must be above 0, not {arguments.item_seconds:g}")
    site = (await place.open_place(arguments)).site
    policy = _policy(arguments)
    concurrency = policy.concurrency or site.backend.default_concurrency(policy.resources, arguments.items)
    offers = await site.backend.offers(policy.resources, policy, concurrency)
    seen = snapshot_of(
        tuple(offers),
        policy,
        concurrency,
        arguments.items,
        max_instances=site.settings.max_instances,
        max_usd_per_hour=site.settings.max_usd_per_hour,
    )
    _show(estimate(seen, arguments.item_seconds), forbidden_by(seen), arguments)
    return 0


def _policy(arguments: argparse.Namespace) -> Policy:
    resources = Resources(
        cpus=arguments.cpus,
        memory_gb=arguments.memory_gb,
        gpus=arguments.gpus,
        disk_gb=arguments.disk_gb,
        instance_types=tuple(arguments.instance_type),
    )
    return Policy(
        resources=resources,
        concurrency=arguments.concurrency,
        purchase=arguments.purchase,
        budget_usd=arguments.budget_usd,
    )


def _show(expected: Estimate, forbidden: str, arguments: argparse.Namespace) -> None:
    if arguments.json:
        machines = [{"offer": asdict(offer), "count": count} for offer, count in expected.machines]
        output.print_json({**asdict(expected), "machines": machines})
        return
    say = output.sayer(arguments)
    free = "nothing is paid for these machines"
    say(forbidden or price_line(expected, arguments.budget_usd) or free)
    if expected.seconds is not None:
        say(f"{expected.items:,} items take about {duration(expected.seconds)}")
    if expected.usd:
        say(
            f"and cost about ${expected.usd:.4f}, {BOOT_SECONDS:.0f} s of boot included: "
            f"${usd_per_thousand(expected.usd, expected.items):.4f} per 1,000"
        )
