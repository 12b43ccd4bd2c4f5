"""Prices: those of benchmarks/data, where moto says 0.00001 for all spot and has no price list.

Old ones, of us-east-2; what matters is that they differ as prices do. Types that are not in the table
have none, as types that a region does not sell.
"""

from __future__ import annotations

import csv
import json
import zlib
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from tests.cloud.cloudbox.calls import Answer, Call, Forward

_TABLE = Path(__file__).parents[3] / "benchmarks" / "data" / "ec2-prices-us-east-2-2022.csv"
ZONES = ("a", "b", "c")
"""Those that moto has subnets in."""

SPREAD = 0.1
"""Spot prices of one type differ from zone to zone by up to this fraction either way."""


@cache
def recorded(purchase: str) -> dict[str, float]:
    """Machine type → US dollars per hour; ``purchase`` is ``spot`` or ``on-demand``."""
    with _TABLE.open() as table:
        rows = [row for row in csv.DictReader(table) if row["purchase"] == purchase]
    return {row["instance_type"]: float(row["usd_per_hour"]) for row in rows}


def spot_price(machine_type: str, zone: str) -> float:
    share = zlib.crc32(f"{machine_type} {zone}".encode()) / 0xFFFFFFFF
    return recorded("spot")[machine_type] * (1 - SPREAD + 2 * SPREAD * share)


def describe_spot_price_history(call: Call, forward: Forward) -> Answer:
    """The present price of each type and zone, in one page."""
    asked = call.parameters
    types = asked.get("InstanceTypes") or recorded("spot")
    zones = [call.region + zone for zone in ZONES]
    history = [
        {
            "InstanceType": machine_type,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{spot_price(machine_type, zone):.6f}",
            "Timestamp": datetime.now(timezone.utc),
            "AvailabilityZone": zone,
        }
        for machine_type in types
        for zone in zones
        if machine_type in recorded("spot") and asked.get("AvailabilityZone", zone) == zone
    ]
    return call.answer({"NextToken": "", "SpotPriceHistory": history})


def get_products(call: Call, forward: Forward) -> Answer:
    """On-demand prices of Linux machines, in one page
    (https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html)."""
    wanted = {part["Value"] for part in call.parameters["Filters"] if part["Field"] == "instanceType"}
    products = [
        json.dumps(_product(machine_type, usd))
        for machine_type, usd in recorded("on-demand").items()
        if not wanted or machine_type in wanted
    ]
    return call.answer({"FormatVersion": "aws_v1", "PriceList": products})


def _product(machine_type: str, usd: float) -> dict[str, Any]:
    price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": {"instanceType": machine_type}},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"term": {"priceDimensions": {"rate": price}}}},
    }
