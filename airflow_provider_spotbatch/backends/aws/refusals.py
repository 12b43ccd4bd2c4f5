"""What EC2 refused of a launch, as verdicts: of the whole request, or of pools (types in subnets)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.pools import least_vcpus, overrides
from airflow_provider_spotbatch.backends.aws.quotas import explained, limit_told, quota_class
from airflow_provider_spotbatch.backends.aws.verdicts import (
    LAUNCHING,
    VCPU_QUOTAS,
    is_about_the_whole,
    verdict,
)
from airflow_provider_spotbatch.job.errors import NoCapacity, QuotaExceeded, Refusal
from airflow_provider_spotbatch.job.launches import LaunchRecord

NAMED = 6
"""Types that a message names."""

OF_EVERY_POOL = "InvalidParameterValue"
"""Of a type that does not go with the rest of the request, but also of an instance profile that does not
exist: then no pool gives a machine, and none tells anything else."""


@dataclass
class _Told:
    """What pools were refused with one code and, of quotas of vCPUs, for one class of families."""

    code: str
    message: str
    pools: set[tuple[str, str]] = field(default_factory=set)
    types: list[str] = field(default_factory=list)


async def refusals_of_pools(
    clients: Clients, record: LaunchRecord, errors: Iterable[Mapping[str, Any]], machines: int
) -> list[Refusal]:
    """One for each error code, and for each quota: a fleet tells an error for every type and subnet.

    ``machines``: how many it gave beside them. Fatal only where it gave none, and none is to be had from
    any pool however long one waits; else what is refused for good is a want of capacity in some pools.
    """
    told = _told(errors)
    of_a_pool = {each.code for each in told} != {OF_EVERY_POOL} or machines > 0
    limits = {
        quota_class(each.types[0]): limit
        for each in told
        if each.types and (limit := limit_told(each.message)) is not None
    }
    refusals: list[tuple[_Told, Refusal]] = []
    for each in told:
        message = f"{each.message}{_named(each.types)}"
        meant = verdict(each.code, message, LAUNCHING, of_a_pool=of_a_pool)
        if not isinstance(meant, Refusal):  # EC2 failed in that pool
            meant = NoCapacity(str(meant), remedy="Other types and zones are tried", code=each.code)
        refusals.append((each, await _with_quota(clients, record, meant, each.types, limits)))
    if not machines and _for_good(record, refusals):
        return [refusal for _, refusal in refusals]
    return [_of_some_pools(refusal) for _, refusal in refusals]


async def refusal_of_launch(clients: Clients, record: LaunchRecord, refusal: Refusal) -> Refusal:
    """A refusal of the whole request, with what is to be known of the quota of vCPUs if it is of one."""
    limit = limit_told(refusal.message)
    limits = {} if limit is None else {quota_class(type_): limit for type_, *_ in overrides(record)[:1]}
    return await _with_quota(clients, record, refusal, (), limits)


def override_of(part: Mapping[str, Any]) -> dict[str, str]:
    """The override that a part of a fleet's answer is about."""
    told: dict[str, str] = part.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return told


async def _with_quota(
    clients: Clients,
    record: LaunchRecord,
    refusal: Refusal,
    types: Sequence[str],
    limits: Mapping[str, float],
) -> Refusal:
    if not isinstance(refusal, QuotaExceeded) or refusal.code not in VCPU_QUOTAS:
        return refusal
    of_types = types or [type_ for type_, *_ in overrides(record)]
    return await explained(clients, refusal, of_types, record.purchase, least_vcpus(record), limits)


def _told(errors: Iterable[Mapping[str, Any]]) -> list[_Told]:
    told: dict[tuple[str, str], _Told] = {}
    for error in errors:
        code = str(error.get("ErrorCode", "UnfulfillableCapacity"))
        override = override_of(error)
        type_ = override.get("InstanceType", "")
        quota = quota_class(type_) if code in VCPU_QUOTAS else ""
        each = told.setdefault((code, quota), _Told(code, str(error.get("ErrorMessage", ""))))
        each.pools.add((type_, override.get("SubnetId", "")))
        if type_ and type_ not in each.types:
            each.types.append(type_)
    return list(told.values()) or [
        _Told("UnfulfillableCapacity", "EC2 gave fewer machines than were asked for")
    ]


def _for_good(record: LaunchRecord, refusals: Sequence[tuple[_Told, Refusal]]) -> bool:
    """Whether no pool of the record will ever give a machine: all that were told of were refused for good,
    and these were all, or it was for what the others have too."""
    if not all(refusal.fatal for _, refusal in refusals):
        return False
    told = {pool for each, _ in refusals for pool in each.pools}
    whole = any(is_about_the_whole(each.code) for each, _ in refusals)
    quotas = all(
        isinstance(refusal, QuotaExceeded) for _, refusal in refusals
    )  # below all of the job's types
    return whole or quotas or told >= {(type_, subnet) for type_, subnet, _ in overrides(record)}


def _of_some_pools(refusal: Refusal) -> Refusal:
    if not refusal.fatal:
        return refusal
    return NoCapacity(refusal.message, remedy=refusal.remedy, code=refusal.code)


def _named(types: Sequence[str]) -> str:
    if not types:
        return ""
    more = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
    return f" ({', '.join(types[:NAMED])}{more})"
