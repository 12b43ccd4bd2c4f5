"""How machines reach S3 and SQS from their subnets: whether they need a public address for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ANYWHERE = "0.0.0.0/0"

NO_WAY = (
    "no way to S3 and SQS leads from {}: add an S3 gateway endpoint and an SQS interface endpoint to their "
    "VPC, or a NAT gateway, or name other subnets with --subnet"
)


def needs_public_address(
    subnets: Iterable[str],
    route_tables: Sequence[Mapping[str, Any]],
    endpoints: Iterable[Mapping[str, Any]],
) -> tuple[bool, str]:
    """Whether machines in these subnets need a public address, and what is wrong with the way out of some,
    or "".

    A subnet's default route to an internet gateway serves public addresses only (VPC User Guide, "Internet
    gateways"). ``route_tables`` and ``endpoints``: of the subnets' VPC, as EC2 describes them.
    """
    if _has_endpoints(endpoints):
        return False, ""
    ways = {subnet: _default_route(subnet, route_tables) for subnet in subnets}
    public = any(
        way is not None and str(way.get("GatewayId", "")).startswith("igw-") for way in ways.values()
    )
    without = [subnet for subnet, way in sorted(ways.items()) if way is None]
    return public, NO_WAY.format(", ".join(without)) if without else ""


def _has_endpoints(endpoints: Iterable[Mapping[str, Any]]) -> bool:
    services = {
        str(each["ServiceName"]).rsplit(".", 1)[1]
        for each in endpoints
        if str(each.get("State", "")).lower() == "available"
    }
    return {"s3", "sqs"} <= services


def _default_route(subnet: str, route_tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    table = _table_of(subnet, route_tables)
    routes = [] if table is None else table.get("Routes", [])
    live = (each for each in routes if each.get("State", "active") == "active")
    return next((each for each in live if each.get("DestinationCidrBlock") == ANYWHERE), None)


def _table_of(subnet: str, route_tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The subnet's own table, else the main one of the VPC."""
    main = None
    for table in route_tables:
        for association in table.get("Associations", []):
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main"):
                main = table
    return main
