"""The machine types of a region: what they have, and in which zones they are to be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.machine_sizing import MachineType

FACTS_SECONDS = 7 * 24 * 3600.0
"""New types appear a few times a year."""

SPECIALISED = ("dl", "f", "hpc", "inf", "mac", "trn", "u", "vt")
"""Families made for a purpose that few jobs have (EC2 User Guide, "Instance types")."""


async def ask_types(clients: Clients) -> list[dict[str, Any]]:
    """All types of the region, as JSON of :class:`MachineType`."""
    found = await clients.pages("ec2", "DescribeInstanceTypes", "InstanceTypes", MaxResults=100)
    types = (machine_type(each) for each in found)
    return [asdict(type_) for type_ in types if type_ is not None]


async def ask_zones(clients: Clients) -> dict[str, list[str]]:
    """Type → zones of the region that have it."""
    offerings = await clients.pages(
        "ec2",
        "DescribeInstanceTypeOfferings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        MaxResults=1000,
    )
    zones: dict[str, list[str]] = {}
    for offering in offerings:
        zones.setdefault(offering["InstanceType"], []).append(offering["Location"])
    return {type_: sorted(its) for type_, its in sorted(zones.items())}


def machine_type(described: Mapping[str, Any]) -> MachineType | None:
    """A type out of what EC2 says of it; None for one that runs neither x86_64 nor arm64 Linux."""
    architecture = _architecture(described)
    if architecture is None:
        return None
    gpus = [gpu for gpu in _gpus(described) if gpu.get("Manufacturer") == "NVIDIA"]
    return MachineType(
        name=described["InstanceType"],
        vcpus=int(described["VCpuInfo"]["DefaultVCpus"]),
        memory_gb=described["MemoryInfo"]["SizeInMiB"] / 1024,
        gpus=sum(int(gpu.get("Count", 0)) for gpu in gpus),
        gpu_memory_gb=min((gpu["MemoryInfo"]["SizeInMiB"] / 1024 for gpu in gpus), default=0.0),
        architecture=architecture,
        burstable=bool(described.get("BurstablePerformanceSupported")),
        bare_metal=bool(described.get("BareMetal")),
        specialised=_is_specialised(described),
        current_generation=bool(described.get("CurrentGeneration", True)),
    )


def _architecture(described: Mapping[str, Any]) -> str | None:
    supported = described.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    return next((each for each in ("arm64", "x86_64") if each in supported), None)


def _is_specialised(described: Mapping[str, Any]) -> bool:
    """Also GPUs of makers whose drivers our images do not have."""
    family = _letters(described["InstanceType"])
    others = any(gpu.get("Manufacturer") != "NVIDIA" for gpu in _gpus(described))
    chips = any(described.get(info) for info in ("FpgaInfo", "InferenceAcceleratorInfo", "NeuronInfo"))
    return family in SPECIALISED or others or chips


def _gpus(described: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpus: list[dict[str, Any]] = described.get("GpuInfo", {}).get("Gpus", [])
    return gpus


def _letters(type_: str) -> str:
    """``m`` of ``m6i.large``."""
    end = next((place for place, letter in enumerate(type_) if not letter.isalpha()), len(type_))
    return type_[:end]
