"""The recorded price table as facts for machine sizing: see ``data/README.md``."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from airflow_provider_spotbatch.backends.machine_sizing import MachineType, Price

TABLE = Path(__file__).parent / "data" / "ec2-prices-us-east-2-2022.csv"
ZONE = "us-east-2"

PREVIOUS_GENERATIONS = {"c4", "d2", "g3", "g3s", "h1", "i2", "i3", "m4", "p2", "r3", "r4", "t2", "x1", "x1e"}
"""Families with a successor at the time of the record; EC2's own list of previous generations is in
DescribeInstanceTypes, which the record lacks."""

SPECIALISED = {"hpc6a", "inf1"}


@cache
def recorded() -> tuple[tuple[MachineType, ...], tuple[Price, ...]]:
    """The machine types and their prices, spot and on demand."""
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    types = {row["instance_type"]: _machine_type(row) for row in rows}
    return tuple(types.values()), tuple(_price(row) for row in rows)


def _machine_type(row: dict[str, str]) -> MachineType:
    name = row["instance_type"]
    family, gpus = name.split(".")[0], int(float(row["gpus"]))
    return MachineType(
        name=name,
        vcpus=int(float(row["vcpus"])),
        memory_gb=float(row["memory_gb"]),
        gpus=gpus,
        gpu_memory_gb=float(row["gpu_memory_gb"]) / max(1, gpus),
        burstable=family.startswith("t"),
        bare_metal=name.endswith(".metal"),
        specialised=family in SPECIALISED or family.startswith("u-"),
        current_generation=family not in PREVIOUS_GENERATIONS,
    )


def _price(row: dict[str, str]) -> Price:
    spot = row["purchase"] == "spot"
    interruptions = float(row["interruption_percent"]) if spot else None
    return Price(row["instance_type"], ZONE, row["purchase"], float(row["usd_per_hour"]), interruptions)
