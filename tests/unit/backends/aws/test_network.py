"""Whether machines need a public address to reach S3 and SQS."""

from __future__ import annotations

from typing import Any

from airflow_provider_spotbatch.backends.aws.network import needs_public_address


def table(*subnets: str, main: bool = False, **route: str) -> dict[str, Any]:
    associations = [{"SubnetId": subnet, "Main": False} for subnet in subnets]
    routes = [{"DestinationCidrBlock": "172.31.0.0/16", "GatewayId": "local", "State": "active"}]
    if route:
        routes.append({"DestinationCidrBlock": "0.0.0.0/0", "State": "active", **route})
    return {"Associations": [*associations, *([{"Main": True}] if main else [])], "Routes": routes}


ENDPOINTS = [
    {"ServiceName": f"com.amazonaws.us-east-2.{service}", "State": "available"} for service in ("s3", "sqs")
]


def test_an_internet_gateway_serves_public_addresses_alone() -> None:
    assert needs_public_address(["s-1"], [table(main=True, GatewayId="igw-1")], []) == (True, "")


def test_behind_nat_no_address_is_needed() -> None:
    tables = [table(main=True, GatewayId="igw-1"), table("s-1", NatGatewayId="nat-1")]
    assert needs_public_address(["s-1"], tables, []) == (False, "")


def test_endpoints_of_both_services_are_a_way() -> None:
    assert needs_public_address(["s-1"], [table(main=True)], ENDPOINTS) == (False, "")
    assert needs_public_address(["s-1"], [table(main=True, GatewayId="igw-1")], ENDPOINTS) == (False, "")


def test_an_endpoint_of_one_service_is_none() -> None:
    public, wrong = needs_public_address(["s-1"], [table(main=True)], ENDPOINTS[:1])
    assert not public
    assert "from s-1: add an S3 gateway endpoint" in wrong


def test_subnets_without_a_way_are_named() -> None:
    tables = [table(main=True, GatewayId="igw-1"), table("s-2", "s-3")]
    public, wrong = needs_public_address(["s-1", "s-2", "s-3"], tables, [])
    assert public
    assert "s-2, s-3" in wrong
    assert "s-1" not in wrong


def test_a_route_to_a_gateway_that_is_gone_is_none() -> None:
    tables = [table(main=True, GatewayId="igw-1", State="blackhole")]
    public, wrong = needs_public_address(["s-1"], tables, [])
    assert not public
    assert "s-1" in wrong
