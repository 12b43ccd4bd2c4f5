"""What a launch record holds for EC2: which machines may be given where, and at what price. Pure.

A record's request holds ``pools`` and ``disk_gb`` of its plan, and what was pinned with them: ``subnets``
(zone → ids, those with most room first), ``images`` (architecture → what ``ask_images`` tells),
``on_demand`` (type → US dollars per hour) and ``least_vcpus`` (class of families → vCPUs of its smallest type
that the job could use).
"""

from __future__ import annotations

from airflow_provider_spotbatch.backends.aws.quotas import quota_class
from airflow_provider_spotbatch.job.launches import LaunchRecord

OVERRIDES = 300
"""Types in zones of one request at most (EC2 User Guide, "EC2 Fleet quotas")."""


def overrides(record: LaunchRecord) -> list[tuple[str, str, str]]:
    """Type, subnet and architecture of all that may be given, the cheapest pools first.

    A request may name one subnet of a zone (EC2 User Guide, "EC2 Fleet limitations"), so a zone's subnets
    take turns from launch to launch: where one is full, the next launch asks for another.
    """
    subnets = {
        zone: ids[(record.number - 1) % len(ids)] for zone, ids in record.request["subnets"].items() if ids
    }
    found = [
        (type_, subnets[zone], architecture)
        for type_, zone, _, architecture in record.request["pools"]
        if zone in subnets
    ]
    return found[:OVERRIDES]


def architectures(record: LaunchRecord) -> list[str]:
    return sorted({architecture for _, _, architecture in overrides(record)})


def zone_of(record: LaunchRecord, subnet: str) -> str:
    """The zone of one of the record's subnets; "" for any other."""
    zones: dict[str, list[str]] = record.request["subnets"]
    return next((zone for zone, subnets in zones.items() if subnet in subnets), "")


def price(record: LaunchRecord, type_: str, zone: str) -> float:
    """In US dollars per hour when the record was written; of the dearest where EC2 gave something else."""
    prices = {(pool[0], pool[1]): float(pool[2]) for pool in record.request["pools"]}
    return prices.get((type_, zone), record.usd_per_hour)


def on_demand_price(record: LaunchRecord, type_: str) -> float:
    """In US dollars per hour, 0 where it is not known."""
    return float(record.request.get("on_demand", {}).get(type_, 0.0))


def least_vcpus(record: LaunchRecord) -> dict[str, int]:
    """Class of families → vCPUs of the smallest type of it that the job could use, bought in this way."""
    least = record.request["least_vcpus"]
    if isinstance(least, int):  # records of releases that took all classes for one
        return {quota_class(type_): least for type_, *_ in overrides(record)}
    return dict(least)
