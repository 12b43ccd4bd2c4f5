"""Where machines may be: the connection's subnets, or the default ones of the region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.job.errors import InvalidInput

FACTS_SECONDS = 3600.0


async def ask_subnets(clients: Clients, ids: Sequence[str]) -> dict[str, list[str]]:
    """Zone → ids of the subnets there, those with most free addresses first.

    Raises InvalidInput where there are none.
    """
    which = {"SubnetIds": list(ids)} if ids else {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    found = await clients.pages("ec2", "DescribeSubnets", "Subnets", **which)
    if not found:
        raise InvalidInput(
            f"{clients.region} has no default subnets in this account: name 'subnets' in the connection"
        )
    zones: dict[str, list[str]] = {}
    for subnet in sorted(found, key=lambda each: (-_free(each), str(each["SubnetId"]))):
        zones.setdefault(subnet["AvailabilityZone"], []).append(subnet["SubnetId"])
    return zones


def _free(subnet: Mapping[str, Any]) -> int:
    return int(subnet.get("AvailableIpAddressCount", 0))
