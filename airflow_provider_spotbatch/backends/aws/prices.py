"""What machines cost: spot prices from EC2, on-demand prices from the price list, or else an estimate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.images import taken_gb
from airflow_provider_spotbatch.backends.machine_sizing import Extras, MachineType, Price
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT

FACTS_SECONDS = 3600.0

PRODUCT = "Linux/UNIX"

PRICE_LIST_REGION = "us-east-1"
"""The price list of all regions is served from a few (Pricing API reference, "Endpoints")."""

_CURRENCIES = {"cn": "CNY", "eusc": "EUR"}
"""Of Amazon's clouds that have their own, by what their regions' names begin with (Getting Started with AWS
in China, "Billing and Payment"; AWS European Sovereign Cloud, which prices in euros)."""

_OTHER_ACCOUNTS = ("us-gov-", "us-iso")
"""Regions whose credentials the price list does not know: prices on demand are estimates there."""

ESTIMATED_VCPU = 0.0365
ESTIMATED_GB = 0.0033
ESTIMATED_GPU_GB = 0.05
"""An on-demand price that nobody may look up, in US dollars per hour and vCPU, GB of memory and GB of GPU
memory: fits c5.large 0.085, m5.large 0.096, r5.large 0.126 in us-east-1 within 5 %; GPUs cost from 0.02 (T4)
to 0.08 (A100). EC2 chooses by its own prices; only limits and reports go by these."""


DISK_USD_PER_GB_HOUR = 0.08 / 730
"""gp3, 0.08 US dollars per GB and month of 730 h (EBS pricing, us-east-1 and us-east-2)."""

ADDRESS_USD_PER_HOUR = 0.005
"""Each public IPv4 address (VPC pricing, since February 2024, all regions)."""


def check_currency(region: str) -> None:
    """Raises InvalidInput for a region whose prices are not in US dollars, as all limits are."""
    currency = _CURRENCIES.get(region.split("-")[0])
    if currency is not None:
        raise InvalidInput(
            f"machines in {region} are priced in {currency}; limits and budgets of this release are in US "
            "dollars: name a region that is priced in these"
        )


def extras(images: Iterable[Mapping[str, Any]], public_address: bool) -> Extras:
    """What a machine costs beside its type: disks and address. ``images``: what ``ask_images`` tells of those
    that it may boot; the one with the largest disks counts."""
    most_gb = max(
        taken_gb(image) + sum(disk["gb"] for disk in image.get("disks", {}).values()) for image in images
    )
    address = ADDRESS_USD_PER_HOUR if public_address else 0.0
    return Extras(DISK_USD_PER_GB_HOUR, DISK_USD_PER_GB_HOUR * most_gb + address)


async def ask_spot(clients: Clients) -> list[dict[str, Any]]:
    """Spot prices now of all types and zones of the region, as JSON of :class:`Price`."""
    history = await clients.pages(
        "ec2",
        "DescribeSpotPriceHistory",
        "SpotPriceHistory",
        ProductDescriptions=[PRODUCT],
        StartTime=datetime.now(timezone.utc),
        MaxResults=1000,
    )
    return await asyncio.to_thread(_newest, history)


def _newest(history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in history:
        pool = (entry["InstanceType"], entry["AvailabilityZone"])
        if pool not in newest or entry["Timestamp"] > newest[pool]["Timestamp"]:
            newest[pool] = entry
    return [
        asdict(Price(type_, zone, SPOT, float(entry["SpotPrice"])))
        for (type_, zone), entry in sorted(newest.items())
    ]


async def ask_on_demand(
    clients: Clients, types: Sequence[MachineType], zones: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """On-demand prices of all types in all their zones: ``prices``, as JSON of :class:`Price`, and
    ``estimated``, the types of which they are estimates: those that are not listed, and all where the price
    list may not be read (``pricing:GetProducts``)."""
    try:
        listed = {} if clients.region.startswith(_OTHER_ACCOUNTS) else await _price_list(clients)
    except SpotBatchError:
        listed = {}
    return await asyncio.to_thread(_sold, types, zones, listed)


def _sold(
    types: Sequence[MachineType], zones: Mapping[str, Iterable[str]], listed: Mapping[str, float]
) -> dict[str, Any]:
    sold = [type_ for type_ in types if zones.get(type_.name)]
    return {
        "prices": [
            asdict(Price(type_.name, zone, ON_DEMAND, listed.get(type_.name) or estimated(type_)))
            for type_ in sold
            for zone in zones[type_.name]
        ],
        "estimated": sorted(type_.name for type_ in sold if not listed.get(type_.name)),
    }


def estimated(type_: MachineType) -> float:
    """An on-demand price by size."""
    gpu_gb = type_.gpus * type_.gpu_memory_gb
    return ESTIMATED_VCPU * type_.vcpus + ESTIMATED_GB * type_.memory_gb + ESTIMATED_GPU_GB * gpu_gb


async def _price_list(clients: Clients) -> dict[str, float]:
    """Type → US dollars per hour."""
    wanted = {
        "regionCode": clients.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    products = await clients.pages(
        "pricing",
        "GetProducts",
        "PriceList",
        region=PRICE_LIST_REGION,
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()],
    )
    return await asyncio.to_thread(_listed, products)


def _listed(products: Iterable[str]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for text in products:
        product = json.loads(text)
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0))
                if usd:
                    prices[product["product"]["attributes"]["instanceType"]] = usd
    return prices
