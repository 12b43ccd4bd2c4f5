"""Which machines to ask for: from what a cloud has and charges, and what one item needs, to plans.

Pure: no I/O, no clock, the same plans for the same facts. Neutral: each cloud brings its own facts.

A plan is one size of machine: n items at a time, and every pool (machine type and zone) that holds n
of them near the best price. The caller launches whole machines of the best plan and the remainder
from a smaller one; after a refusal it goes on to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import ON_DEMAND
from airflow_provider_spotbatch.job.resources import Resources

MEMORY_LOST_SMALL = 0.075
MEMORY_LOST_LARGE = 0.04
MEMORY_SMALL_GB = 64.0
"""Listed memory that hypervisor and kernel keep: 7.5 % (Karpenter's VM_MEMORY_OVERHEAD_PERCENT, chosen
so as not to overestimate any known type and image), beyond 64 GB 4 % (i4i.32xlarge: 1,007,423 of
1,048,576 MiB are left, aws/karpenter-provider-aws issue 6611)."""

SYSTEM_GB = 0.5
"""What the system's services and the agent take: about 0.2 GB each, and 64 MB of results not yet written."""

SYSTEM_DISK_GB = 8.0
"""Disk for the image, the interpreter and the environments, besides what items ask for."""

NEAR = 1.25
"""Pools up to this factor above the cheapest belong to a plan: their mean is then about an eighth above."""

WIDE = 2.0
"""How far a plan with too few types, or a plan as a whole, may lie above the best."""

LEAST_TYPES = 10
"""Fewer types than this make capacity scarce: a plan takes dearer ones, up to WIDE, to have as many."""

MOST_TYPES = 40
"""More add nothing to the capacity and much to the request (Karpenter sends 60 at most)."""

MOST_PLANS = 12
"""Sizes of machine per kind of purchase that a caller may try one after the other."""

SHARE = 4
"""A job's slots are spread over at least so many machines, where it has that many machines' worth."""

WORTH = 1.5
"""A machine up to this factor above the best price per slot is one that a job may be spread over."""

INTERRUPTION_HOURS = 0.1
"""What one interruption costs in time of its machine: half a chunk of 2 min that is run again, about 3 min
until it is noticed and its replacement asked for, 2 min of boot."""

EFFORT_USD_PER_HOUR = 0.005
"""What a machine is reckoned to cost its job beside its price: its agent's requests (some hundred an hour, 5
dollars per million on S3) and its boot. Makes few large machines win over many small ones of about equal
price; no part of any price that is told or limited."""


@dataclass(frozen=True)
class MachineType:
    """A kind of machine as its cloud lists it. Memory in GB (2**30 bytes), ``gpu_memory_gb`` of each GPU;
    ``architecture``: ``x86_64`` or ``arm64``; ``specialised``: made for a purpose that few jobs have, and
    under a quota of its own (EC2: inference and training chips, FPGAs, HPC, machines of many TB)."""

    name: str
    vcpus: int
    memory_gb: float
    gpus: int = 0
    gpu_memory_gb: float = 0.0
    architecture: str = "x86_64"
    burstable: bool = False
    bare_metal: bool = False
    specialised: bool = False
    current_generation: bool = True

    @property
    def usual(self) -> bool:
        """Whether it may be used though nobody asked for it by name."""
        return self.current_generation and not (self.burstable or self.bare_metal or self.specialised)


@dataclass(frozen=True)
class Price:
    """What a type costs in a zone where it is offered, in US dollars per hour.

    ``purchase``: ``spot`` or ``on-demand``; ``interruption_percent``: machines in a hundred that are taken
    back, None where the cloud does not tell.
    """

    type: str
    zone: str
    purchase: str
    usd_per_hour: float
    interruption_percent: float | None = None

    @property
    def expected_usd_per_hour(self) -> float:
        """With what interruptions cost on top.

        A machine of a job lives about an hour, so the percentage is taken as the chance per hour, which
        errs on the dear side; each interruption costs INTERRUPTION_HOURS of the machine.
        """
        chance = (self.interruption_percent or 0.0) / 100
        return self.usd_per_hour * (1 + chance * INTERRUPTION_HOURS)


@dataclass(frozen=True)
class Extras:
    """What a machine of a place costs beside its type, in US dollars per hour: for each GB of disk that a
    plan asks for, and whatever it asks for. They make few large machines win over many small ones."""

    usd_per_disk_gb: float = 0.0
    usd_per_machine: float = 0.0

    def usd_per_hour(self, disk_gb: float) -> float:
        """Of one machine."""
        return self.usd_per_machine + self.usd_per_disk_gb * disk_gb


class Pool(NamedTuple):
    """A machine type in a zone, with what one costs now, extras included: one override of a fleet request."""

    type: str
    zone: str
    usd_per_hour: float
    architecture: str


@dataclass(frozen=True)
class MachinePlan:
    """Machines of ``slots`` items each, from any of ``pools``, the cheapest first.

    ``usd_per_slot``: expected price per hour, interruptions and extras included: the mean over the types
    where the cloud chooses by capacity (spot), the cheapest where it chooses by price; ``disk_gb``: the root
    disk that each machine needs.
    """

    purchase: str
    slots: int
    pools: tuple[Pool, ...]
    usd_per_slot: float
    disk_gb: float

    @property
    def types(self) -> tuple[str, ...]:
        """Machine types, the cheapest first."""
        return tuple(dict.fromkeys(pool.type for pool in self.pools))

    @property
    def usd_per_hour(self) -> float:
        """The dearest machine that it may give."""
        return max(pool.usd_per_hour for pool in self.pools)

    def offer(self) -> Offer:
        """What the control loop chooses from. Its request holds ``pools`` as lists of their four fields,
        and ``disk_gb``."""
        return Offer(
            name=f"{self.purchase}-{self.slots}",
            slots=self.slots,
            usd_per_hour=self.usd_per_hour,
            expected_usd_per_hour=self.usd_per_slot * self.slots,
            purchase=self.purchase,
            types=self.types,
            request={
                "pools": [list(pool) for pool in self.pools],
                "disk_gb": self.disk_gb,
            },
        )


def memory_for_items_gb(type_: MachineType) -> float:
    """What is left for items of the memory that the cloud lists."""
    small = min(type_.memory_gb, MEMORY_SMALL_GB)
    large = type_.memory_gb - small
    return small * (1 - MEMORY_LOST_SMALL) + large * (1 - MEMORY_LOST_LARGE) - SYSTEM_GB


def slots_on(type_: MachineType, resources: Resources, most_disk_gb: float) -> int:
    """How many such items run at once on one machine: 0 if none fits. One CPU is one vCPU."""
    slots = min(type_.vcpus / resources.cpus, memory_for_items_gb(type_) / resources.memory_gb)
    if resources.disk_gb:
        slots = min(slots, (most_disk_gb - SYSTEM_DISK_GB) / resources.disk_gb)
    if gpus := resources.gpus_of_item:
        enough = type_.gpu_memory_gb >= resources.gpu_memory_gb
        slots = min(slots, type_.gpus / gpus if enough else 0)
    return max(0, math.floor(slots + 1e-9))


def launchable_architectures(
    types: Sequence[MachineType], resources: Resources, most_disk_gb: float
) -> set[str]:
    """Architectures of the machine types that may be used for such items and hold one."""
    return {
        type_.architecture
        for type_ in types
        if _allowed(type_, resources) and slots_on(type_, resources, most_disk_gb) > 0
    }


def plan_machines(
    types: Iterable[MachineType],
    prices: Iterable[Price],
    resources: Resources,
    *,
    concurrency: int,
    purchases: Sequence[str],
    architectures: Iterable[str],
    most_disk_gb: float,
    extras: Extras,
    max_instances: int | None = None,
) -> list[MachinePlan]:
    """The plans for items of these resources, best first, those of the first purchase before the others'.

    ``architectures``: those that the environment can be had for; ``most_disk_gb``: the largest root disk.
    Raises InvalidInput, naming what would fit, where no machine holds one item.
    """
    known = set(architectures)
    allowed = [type_ for type_ in types if type_.architecture in known and _allowed(type_, resources)]
    holding = {
        type_.name: (type_, slots)
        for type_ in allowed
        if (slots := slots_on(type_, resources, most_disk_gb)) > 0
    }
    if not holding:
        raise InvalidInput(_why_nothing_fits(allowed, resources, most_disk_gb))
    sold: dict[str, list[_Sold]] = {purchase: [] for purchase in purchases}
    for price in prices:
        if price.purchase in sold and price.type in holding:
            sold[price.purchase].append(_Sold(*holding[price.type], price, price.expected_usd_per_hour))
    found = [
        plan
        for purchase in purchases
        if sold[purchase]
        for plan in _plans(sold[purchase], purchase, resources, extras, concurrency, max_instances)
    ]
    if not found:
        fitting, sold_as = ", ".join(sorted(holding)[:3]), " or ".join(purchases)
        raise InvalidInput(
            f"no zone of this connection offers machines that hold one item ({fitting}) as {sold_as}: "
            "name other item_resources.instance_types, or add zones"
        )
    return found


# --- which types ----------------------------------------------------------------------------------


class _Sold(NamedTuple):
    """A type, the items that one machine of it holds, and one of its prices."""

    type: MachineType
    slots: int
    price: Price
    usd: float
    """Expected, per hour."""


def _allowed(type_: MachineType, resources: Resources) -> bool:
    """Whether its kind may be used, whatever its size: what is asked for by name; else no burstable, metal,
    specialised or previous-generation type, and GPUs only for who needs them (their quotas are others)."""
    if resources.architectures and type_.architecture not in resources.architectures:
        return False
    if resources.instance_types:
        return any(fnmatchcase(type_.name, pattern) for pattern in resources.instance_types)
    if type_.gpus and not resources.gpus_of_item:
        return False
    return type_.usual


def _why_nothing_fits(allowed: Sequence[MachineType], resources: Resources, most_disk_gb: float) -> str:
    if not allowed:
        kinds = ("instance_types", "architectures")
        named = [f"{kind}={list(value)}" for kind in kinds if (value := getattr(resources, kind))]
        return f"this place has no machine type for item_resources {' and '.join(named) or resources}"
    largest = {
        "cpus": max(type_.vcpus for type_ in allowed),
        "memory_gb": max(memory_for_items_gb(type_) for type_ in allowed),
        "disk_gb": most_disk_gb - SYSTEM_DISK_GB,
        "gpus": max(type_.gpus for type_ in allowed),
        "gpu_memory_gb": max(type_.gpu_memory_gb for type_ in allowed),
    }
    for need, most in largest.items():
        if getattr(resources, need) > most:
            return (
                f"one item asks for item_resources.{need}={getattr(resources, need):g}; "
                f"the largest machine has {most:.4g} for items"
            )
    asked = ", ".join(f"{need}={value:g}" for need in largest if (value := getattr(resources, need)))
    return f"no machine has all that one item asks for at once ({asked}): ask for less of one of them"


# --- which sizes ----------------------------------------------------------------------------------


def _plans(
    sold: Sequence[_Sold],
    purchase: str,
    resources: Resources,
    extras: Extras,
    concurrency: int,
    max_instances: int | None,
) -> list[MachinePlan]:
    """The plans of one kind of purchase, best first."""
    pools = sorted(sold, key=lambda each: (each.usd, each.price.type, each.price.zone))
    of_size = {
        slots: _plan(pools, purchase, slots, resources, extras)
        for slots in {min(each.slots, concurrency) for each in pools}
    }
    needed = math.ceil(concurrency / max_instances) if max_instances else 1
    most = max(_most_slots(of_size.values(), concurrency), needed)
    if any(slots > most for slots in of_size):
        of_size[most] = _plan(pools, purchase, most, resources, extras)
    plans = [plan for slots, plan in sorted(of_size.items()) if slots <= most]

    def rank(plan: MachinePlan) -> tuple[int, float, int]:
        too_small = max(0, needed - plan.slots)
        few_types = NEAR if len(plan.types) < LEAST_TYPES else 1.0
        effort = EFFORT_USD_PER_HOUR / plan.slots
        return too_small, (plan.usd_per_slot + effort) * few_types, plan.slots

    ranked = sorted(plans, key=rank)
    kept = _ladder(ranked)
    return [plan for plan in ranked if plan.slots in kept]


def _ladder(ranked: Sequence[MachinePlan]) -> set[int]:
    """Sizes to keep: the best of each doubling, so that remainders find a fitting machine and refusals other
    pools, and the next best; none far above the best price but the smallest, for the last few slots."""
    bound = WIDE * min(plan.usd_per_slot for plan in ranked)
    worth = [plan.slots for plan in ranked if plan.usd_per_slot <= bound or plan is ranked[0]]
    rungs: dict[int, int] = {}
    for slots in worth:
        rungs.setdefault(slots.bit_length(), slots)
    kept = {*rungs.values(), min(plan.slots for plan in ranked)}
    return kept | set([slots for slots in worth if slots not in kept][: max(0, MOST_PLANS - len(kept))])


def _most_slots(plans: Iterable[MachinePlan], concurrency: int) -> int:
    """Slots of one machine at most: a quarter of the job's, but no less than those of the smallest machine
    that is worth its price: a job of fewer than four of these is spread no thinner."""
    plans = list(plans)
    bound = WORTH * min(plan.usd_per_slot for plan in plans)
    smallest = min(plan.slots for plan in plans if plan.usd_per_slot <= bound)
    return max(smallest, concurrency // SHARE)


def _plan(
    pools: Sequence[_Sold], purchase: str, slots: int, resources: Resources, extras: Extras
) -> MachinePlan:
    """Every pool that holds ``slots`` items near the best price, and dearer ones if that is too few types.
    ``pools``: the cheapest first."""
    pools = [pool for pool in pools if pool.slots >= slots]
    disk_gb = SYSTEM_DISK_GB + slots * resources.disk_gb
    beside = extras.usd_per_hour(disk_gb)
    cheapest: dict[str, float] = {}
    for pool in pools:
        cheapest.setdefault(pool.type.name, pool.usd + beside)
    costs = list(cheapest.values())
    near = sum(cost <= NEAR * costs[0] for cost in costs)
    wide = sum(cost <= WIDE * costs[0] for cost in costs)
    kept = min(MOST_TYPES, near if wide < LEAST_TYPES else max(near, LEAST_TYPES))
    names = set(list(cheapest)[:kept])
    bound = max(NEAR * costs[0], costs[kept - 1])
    chosen = tuple(
        Pool(pool.type.name, pool.price.zone, pool.price.usd_per_hour + beside, pool.type.architecture)
        for pool in pools
        if pool.usd + beside <= bound and pool.type.name in names
    )
    expected = costs[0] if purchase == ON_DEMAND else math.fsum(costs[:kept]) / kept
    return MachinePlan(
        purchase=purchase,
        slots=slots,
        pools=chosen,
        usd_per_slot=expected / slots,
        disk_gb=disk_gb,
    )
