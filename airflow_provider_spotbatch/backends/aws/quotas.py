"""EC2's limits of vCPUs: which one a machine type counts against, what it is now, how to raise it.

Codes: EC2 User Guide, "Spot Instance quotas" and "On-Demand Instance quotas" (2025), by Service Quotas' names
"All … Spot Instance Requests" and "Running On-Demand … instances".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.machine_sizing import MachineType
from airflow_provider_spotbatch.job.errors import QuotaExceeded, SpotBatchError
from airflow_provider_spotbatch.job.policy import SPOT

UNKNOWN = ""

_CODES = {
    "standard (A, C, D, H, I, M, R, T, Z)": ("L-34B43A08", "L-1216C47A"),
    "G and VT": ("L-3819A6DF", "L-DB2E81BA"),
    "P": ("L-7212CCBC", "L-417A185B"),
    "X": ("L-E3A00192", "L-7295265B"),
    "F": ("L-88CF9481", "L-74FC7D96"),
    "Inf": ("L-B5D1601B", "L-1945791B"),
    "Trn": ("L-6B0D517C", "L-2C3B7624"),
    "DL": ("L-85EED4F7", "L-6E869C2A"),
    "P5": ("L-C4BD4855", "L-417A185B"),
    "HPC": (UNKNOWN, "L-F7808C92"),
    "high memory": (UNKNOWN, "L-43DA4232"),
}
"""Quota codes of spot and of on-demand machines, by class of families."""

_STANDARD = next(iter(_CODES))
_CLASSES = {
    **dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), _STANDARD),
    **dict.fromkeys(("g", "gr", "vt"), "G and VT"),
    **dict.fromkeys(("p2", "p3", "p4"), "P"),
    "p5": "P5",
    "x": "X",
    "f": "F",
    "inf": "Inf",
    "trn": "Trn",
    "dl": "DL",
    "hpc": "HPC",
    "u": "high memory",
}
"""By what the types' names begin with: letters alone, or with the generation where that decides."""

_LIMIT_TOLD = re.compile(r"vCPU limit of (\d+)")


def quota_class(type_: str) -> str:
    """The class of families whose quota a machine type counts against: of a family that is not known here, it
    is taken for one of its own."""
    named = re.match("([a-z]+)[0-9]?", type_)
    if named is None:
        return type_
    return _CLASSES.get(named.group()) or _CLASSES.get(named.group(1)) or named.group()


def quota_code(class_: str, purchase: str) -> str:
    """UNKNOWN where it is not known."""
    spot, on_demand = _CODES.get(class_, (UNKNOWN, UNKNOWN))
    return spot if purchase == SPOT else on_demand


def least_vcpus_of(types: Iterable[MachineType]) -> dict[str, int]:
    """Class of families → vCPUs of its smallest type."""
    least: dict[str, int] = {}
    for type_ in types:
        class_ = quota_class(type_.name)
        least[class_] = min(type_.vcpus, least.get(class_, type_.vcpus))
    return least


def limit_told(message: str) -> float | None:
    """The quota that a refusal's message tells, None where it tells none."""
    told = _LIMIT_TOLD.search(message)
    return float(told.group(1)) if told else None


async def explained(
    clients: Clients,
    refusal: QuotaExceeded,
    types: Sequence[str],
    purchase: str,
    least_vcpus: Mapping[str, int],
    limits_told: Mapping[str, float],
) -> QuotaExceeded:
    """The refusal with the quota that stands in the way, what it is now and the command that raises it.

    ``least_vcpus``: class → of the smallest machine that would do. Fatal where the quotas of all of them are
    below that: while one class has room there is something to wait for. ``limits_told``: class → its quota,
    as far as EC2's messages tell, for who may not ask for quotas.
    """
    class_ = quota_class(types[0]) if types else _STANDARD
    now = await _quota(clients, class_, purchase, limits_told)
    code = quota_code(class_, purchase)
    below = _is_below(now, class_, least_vcpus)
    for other in sorted(set(least_vcpus) - {class_}):
        if not below:
            break
        below = _is_below(await _quota(clients, other, purchase, limits_told), other, least_vcpus)
    return QuotaExceeded(
        refusal.message,
        remedy=_remedy(clients.region, class_, purchase, code, now),
        code=refusal.code,
        below_one_machine=below,
    )


def _remedy(region: str, class_: str, purchase: str, code: str, now: float | None) -> str:
    is_now = f", now {now:g}," if now is not None else ""
    quota = f"The quota of vCPUs of {class_} {purchase} instances{is_now}"
    if code == UNKNOWN:
        return f"{quota} is found in the console of Service Quotas (Amazon EC2, {region}): raise it there"
    wanted = max(64, 2 * int(now or 0))
    return (
        f"{quota} is {code}. Raise it: aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {code} --desired-value {wanted} --region {region}"
    )


def _is_below(vcpus: float | None, class_: str, least_vcpus: Mapping[str, int]) -> bool:
    return vcpus is not None and vcpus < least_vcpus.get(class_, 1)


async def _quota(
    clients: Clients, class_: str, purchase: str, limits_told: Mapping[str, float]
) -> float | None:
    """The quota's value; None where nobody may know it: the permission is optional."""
    code = quota_code(class_, purchase)
    if code == UNKNOWN:
        return limits_told.get(class_)
    try:
        answer = await clients.call("service-quotas", "GetServiceQuota", ServiceCode="ec2", QuotaCode=code)
    except SpotBatchError:
        return limits_told.get(class_)
    return float(answer["Quota"]["Value"])
