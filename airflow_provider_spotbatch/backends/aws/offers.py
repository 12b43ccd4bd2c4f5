"""The machines that a region has for a job: sized and priced, with where and what they are pinned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_spotbatch.backends.aws.images import taken_gb
from airflow_provider_spotbatch.backends.aws.prices import extras
from airflow_provider_spotbatch.backends.aws.quotas import least_vcpus_of
from airflow_provider_spotbatch.backends.aws.regions import Region
from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.backends.machine_sizing import MachinePlan, MachineType, plan_machines
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import ON_DEMAND, Policy
from airflow_provider_spotbatch.job.resources import Resources

MOST_DISK_GB = 16 * 1024.0
"""The largest volume (EBS User Guide, gp3, before 2025)."""


async def offers_of(
    region: Region,
    resources: Resources,
    policy: Policy,
    concurrency: int,
    *,
    subnets: Mapping[str, list[str]],
    images: Mapping[str, dict[str, Any]],
    public_address: bool,
    max_instances: int | None,
) -> list[Offer]:
    """As :meth:`~airflow_provider_spotbatch.backends.base.Backend.offers` has it. ``subnets``: zone → ids;
    ``images``: architecture → what ``ask_images`` tells."""
    _check_architectures(resources, images)
    prices = [
        price
        for purchase in policy.purchases
        for price in await region.prices(purchase)
        if price.zone in subnets
    ]
    types = await region.types()
    beside = extras(images.values(), public_address)
    plans = await asyncio.to_thread(
        plan_machines,
        types,
        prices,
        resources,
        concurrency=concurrency,
        purchases=policy.purchases,
        architectures=images,
        most_disk_gb=MOST_DISK_GB - max(map(taken_gb, images.values())),
        extras=beside,
        max_instances=max_instances,
    )
    on_demand = await _on_demand(region)
    estimated = await region.estimated_types()
    least = {purchase: _least_vcpus(purchase, plans, types) for purchase in policy.purchases}
    offers = []
    for plan in plans:
        priced = {type_: usd + beside.usd_per_hour(plan.disk_gb) for type_, usd in on_demand.items()}
        offer = _pinned(plan.offer(), subnets, images, priced, least[plan.purchase])
        offers.append(replace(offer, estimated=bool(estimated.intersection(offer.types))))
    return offers


def _check_architectures(resources: Resources, images: Mapping[str, dict[str, Any]]) -> None:
    asked = resources.architectures
    if asked and not set(asked).intersection(images):
        named = ", ".join(f"{image['name']} ({architecture})" for architecture, image in images.items())
        raise InvalidInput(
            f"item_resources.architectures is {list(asked)}, and the images of the connection are {named}: "
            "name one of that architecture too in 'image', or leave 'image' out"
        )


async def _on_demand(region: Region) -> dict[str, float]:
    """Type → US dollars per hour, in the zone where it is cheapest."""
    cheapest: dict[str, float] = {}
    for price in await region.prices(ON_DEMAND):
        cheapest[price.type] = min(price.usd_per_hour, cheapest.get(price.type, price.usd_per_hour))
    return cheapest


def _least_vcpus(purchase: str, plans: Sequence[MachinePlan], types: Iterable[MachineType]) -> dict[str, int]:
    """Class of families → vCPUs of the smallest type in any of the plans: below it is below one machine."""
    usable = {type_ for plan in plans if plan.purchase == purchase for type_ in plan.types}
    return least_vcpus_of(type_ for type_ in types if type_.name in usable)


def _pinned(
    offer: Offer,
    subnets: Mapping[str, list[str]],
    images: Mapping[str, dict[str, Any]],
    on_demand: Mapping[str, float],
    least_vcpus: dict[str, int],
) -> Offer:
    """The offer with where and what its machines are, so that a repeated call asks for the same, and with
    what its types cost on demand, for the account at the end. Its request is then what ``pools`` reads."""
    request = dict(offer.request or {})
    zones = {zone for _, zone, *_ in request["pools"]}
    architectures = {architecture for *_, architecture in request["pools"]}
    request["subnets"] = {zone: subnets[zone] for zone in sorted(zones)}
    request["images"] = {each: images[each] for each in sorted(architectures)}
    request["on_demand"] = {type_: on_demand[type_] for type_ in offer.types if type_ in on_demand}
    request["least_vcpus"] = least_vcpus
    cheapest = min(request["on_demand"].values(), default=0.0)
    return replace(offer, request=request, on_demand_usd_per_hour=cheapest)
