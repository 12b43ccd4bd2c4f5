"""Which machines to ask for: on recorded prices, and on any prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.backends.machine_sizing import (
    LEAST_TYPES,
    SHARE,
    SYSTEM_DISK_GB,
    WIDE,
    WORTH,
    Extras,
    MachinePlan,
    MachineType,
    Price,
    memory_for_items_gb,
    plan_machines,
    slots_on,
)
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT
from airflow_provider_spotbatch.job.resources import Resources
from benchmarks.recorded_prices import recorded

DISK = 16_384.0
BOTH = ("x86_64", "arm64")
DISK_ALONE = Extras(usd_per_disk_gb=0.08 / 730)
WITH_ADDRESS = replace(DISK_ALONE, usd_per_machine=0.005)


def plans(
    types: Sequence[MachineType],
    prices: Sequence[Price],
    resources: Resources = Resources(),  # noqa: B008 - frozen
    concurrency: int = 64,
    **changes: Any,
) -> list[MachinePlan]:
    given = {
        "purchases": (SPOT,),
        "architectures": BOTH,
        "most_disk_gb": DISK,
        "extras": DISK_ALONE,
        **changes,
    }
    return plan_machines(types, prices, resources, concurrency=concurrency, **given)


def prices_of(types: Sequence[MachineType], usd_per_vcpu: float = 0.01, **changes: Any) -> list[Price]:
    base = Price("", "a", SPOT, 0.0)
    return [replace(base, type=t.name, usd_per_hour=t.vcpus * usd_per_vcpu, **changes) for t in types]


def family(name: str, sizes: Sequence[int] = (2, 4, 8, 16), **changes: Any) -> list[MachineType]:
    """Machines of these vCPUs with 4 GB for each."""
    return [MachineType(f"{name}.{vcpus}", vcpus, 4.0 * vcpus, **changes) for vcpus in sizes]


# --- what a machine holds -------------------------------------------------------------------------


def test_a_machine_of_two_gb_does_not_hold_an_item_of_two_gb() -> None:
    assert slots_on(MachineType("small", 2, 2.0), Resources(cpus=1, memory_gb=2), DISK) == 0
    assert slots_on(MachineType("medium", 2, 4.0), Resources(cpus=1, memory_gb=2), DISK) == 1


def test_memory_for_items_is_what_kernel_system_and_agent_leave() -> None:
    assert memory_for_items_gb(MachineType("m", 4, 16.0)) == pytest.approx(14.3)
    i4i_32xlarge_gb = 1_007_423 / 1024
    assert memory_for_items_gb(MachineType("i4i.32xlarge", 128, 1024.0)) == pytest.approx(
        i4i_32xlarge_gb, rel=0.01
    )


@pytest.mark.parametrize(
    ("resources", "slots"),
    [
        (Resources(cpus=1, memory_gb=1), 16),
        (Resources(cpus=3, memory_gb=1), 5),
        (Resources(cpus=0.5, memory_gb=0.1), 32),
        (Resources(cpus=1, memory_gb=10), 5),
        (Resources(cpus=1, memory_gb=1, disk_gb=5000), 3),
        (Resources(cpus=1, memory_gb=1, gpus=1), 4),
        (Resources(cpus=1, memory_gb=1, gpus=3), 1),
        (Resources(cpus=1, memory_gb=1, gpu_memory_gb=16), 4),
        (Resources(cpus=1, memory_gb=1, gpus=1, gpu_memory_gb=17), 0),
        (Resources(cpus=0.1, memory_gb=0.01), 160),
    ],
)
def test_slots_are_bounded_by_what_runs_out_first(resources: Resources, slots: int) -> None:
    machine = MachineType("g", 16, 64.0, gpus=4, gpu_memory_gb=16.0)
    assert slots_on(machine, resources, DISK) == slots


# --- on recorded prices ---------------------------------------------------------------------------

RECORDED = [
    (64, Resources(cpus=1, memory_gb=2)),
    (100, Resources(cpus=1, memory_gb=4)),
    (1000, Resources(cpus=1, memory_gb=2)),
]


def cheapest_single_type(concurrency: int, resources: Resources, purchase: str, extras: Extras) -> float:
    """Expected dollars per slot and hour of the best single type, no machine above a quarter of the slots."""
    types, prices = recorded()
    holding = {
        type_.name: slots_on(type_, resources, DISK) for type_ in types if type_.usual and not type_.gpus
    }
    return min(
        (price.expected_usd_per_hour + extras.usd_per_hour(SYSTEM_DISK_GB)) / min(slots, concurrency // SHARE)
        for price in prices
        if price.purchase == purchase and (slots := holding.get(price.type, 0))
    )


@pytest.mark.parametrize("extras", [DISK_ALONE, WITH_ADDRESS])
@pytest.mark.parametrize("purchase", [SPOT, ON_DEMAND])
@pytest.mark.parametrize(("concurrency", "resources"), RECORDED)
def test_the_expected_price_is_near_that_of_the_cheapest_single_type(
    concurrency: int, resources: Resources, purchase: str, extras: Extras
) -> None:
    best = plans(*recorded(), resources, concurrency, purchases=(purchase,), extras=extras)[0]
    near = 1.15 * cheapest_single_type(concurrency, resources, purchase, extras)
    mean = sum(pool.usd_per_hour for pool in best.pools) / len(best.pools) / best.slots
    assert best.usd_per_slot <= near
    assert mean <= near or purchase == ON_DEMAND  # there EC2 takes the cheapest that it has
    assert len(best.types) >= LEAST_TYPES


@pytest.mark.parametrize("purchase", [SPOT, ON_DEMAND])
@pytest.mark.parametrize(("concurrency", "resources"), RECORDED)
def test_no_machine_holds_more_than_a_quarter_of_the_slots(
    concurrency: int, resources: Resources, purchase: str
) -> None:
    for plan in plans(*recorded(), resources, concurrency, purchases=(purchase,)):
        assert plan.slots * SHARE <= concurrency


@pytest.mark.parametrize("gpus", [1, 4])
def test_items_with_gpus_get_machines_with_gpus(gpus: int) -> None:
    types, prices = recorded()
    known = {type_.name: type_ for type_ in types}
    for plan in plans(types, prices, Resources(cpus=4, memory_gb=8, gpus=gpus, gpu_memory_gb=16), 8):
        assert all(known[name].gpus >= gpus * plan.slots for name in plan.types)
        assert all(known[name].gpu_memory_gb >= 16 for name in plan.types)


def test_items_without_gpus_get_machines_without() -> None:
    types, prices = recorded()
    with_gpus = {type_.name for type_ in types if type_.gpus}
    assert not with_gpus & {name for plan in plans(types, prices) for name in plan.types}


# --- which types ----------------------------------------------------------------------------------

UNUSUAL = [
    MachineType("t3.large", 2, 8.0, burstable=True),
    MachineType("m5.metal", 96, 384.0, bare_metal=True),
    MachineType("m4.large", 2, 8.0, current_generation=False),
    MachineType("inf1.large", 2, 8.0, specialised=True),
]


@pytest.mark.parametrize("unusual", UNUSUAL, ids=lambda type_: type_.name)
def test_unusual_types_are_used_only_where_they_are_named(unusual: MachineType) -> None:
    types = [*family("m6"), unusual]
    prices = prices_of(types)
    assert unusual.name not in {name for plan in plans(types, prices) for name in plan.types}
    [named, *others] = plans(types, prices, Resources(instance_types=(f"{unusual.name[:3]}*",)))
    assert {name for plan in (named, *others) for name in plan.types} == {unusual.name}


def test_both_architectures_are_used_where_the_environment_and_the_item_allow() -> None:
    types = [*family("m6"), *family("m6g", architecture="arm64")]
    prices = prices_of(types)

    def used(resources: Resources, architectures: Sequence[str]) -> set[str]:
        found = plans(types, prices, resources, architectures=architectures)
        return {pool.architecture for plan in found for pool in plan.pools}

    assert used(Resources(), BOTH) == set(BOTH)
    assert used(Resources(), ("x86_64",)) == {"x86_64"}
    assert used(Resources(architectures=("arm64",)), BOTH) == {"arm64"}


def test_every_zone_of_a_type_near_the_price_is_a_pool() -> None:
    types = family("m6", (4,))
    prices = [replace(price, zone=zone) for price in prices_of(types) for zone in "abc"]
    prices.append(Price("m6.4", "dear", SPOT, 0.2))
    [plan] = plans(types, prices, Resources(cpus=4, memory_gb=8), 1)
    assert [pool.zone for pool in plan.pools] == ["a", "b", "c"]
    assert plan.types == ("m6.4",)


def test_the_dearest_pool_sets_the_price_that_limits_go_by() -> None:
    types = [*family("a", (4,)), *family("b", (4,))]
    prices = [Price("a.4", "z", SPOT, 0.10), Price("b.4", "z", SPOT, 0.12)]
    [plan] = plans(types, prices, Resources(cpus=4, memory_gb=8), 1, extras=Extras())
    assert [pool.type for pool in plan.pools] == ["a.4", "b.4"]
    assert plan.offer().usd_per_hour == 0.12
    assert 0.10 < plan.offer().expected_usd_per_hour < 0.12


def test_disk_and_address_are_in_every_price() -> None:
    types = [*family("a", (4,)), *family("b", (4,))]
    prices = [Price("a.4", "z", SPOT, 0.10), Price("b.4", "z", SPOT, 0.12)]
    resources = Resources(cpus=2, memory_gb=4, disk_gb=100)
    bare, whole = (
        plans(types, prices, resources, 2, extras=extras)[0].offer()
        for extras in (Extras(), Extras(usd_per_disk_gb=0.0001, usd_per_machine=0.005))
    )
    beside = 0.0001 * 208 + 0.005
    assert whole.usd_per_hour == pytest.approx(bare.usd_per_hour + beside)
    assert whole.expected_usd_per_hour == pytest.approx(bare.expected_usd_per_hour + beside)
    assert [pool[2] for pool in (whole.request or {})["pools"]] == [
        pytest.approx(pool[2] + beside) for pool in (bare.request or {})["pools"]
    ]


def test_interruptions_count_as_time_that_is_paid_twice() -> None:
    often = Price("m", "z", SPOT, 1.0, interruption_percent=50.0)
    assert often.expected_usd_per_hour - Price("m", "z", SPOT, 1.0).expected_usd_per_hour == pytest.approx(
        0.05
    )


def test_disk_grows_with_the_slots() -> None:
    types = family("m6", (4,))
    [plan] = plans(types, prices_of(types), Resources(cpus=2, memory_gb=2, disk_gb=30), 2)[:1]
    assert (plan.slots, plan.disk_gb) == (2, 68.0)


# --- which sizes ----------------------------------------------------------------------------------


def test_the_preferred_way_of_buying_comes_first() -> None:
    types = family("m6")
    prices = [*prices_of(types), *prices_of(types, 0.05, purchase=ON_DEMAND)]
    found = [plan.purchase for plan in plans(types, prices, purchases=(SPOT, ON_DEMAND))]
    assert found == sorted(found, reverse=True)
    assert set(found) == {SPOT, ON_DEMAND}


def test_a_limit_of_machines_asks_for_larger_ones() -> None:
    types = family("m6", (2, 4, 8, 16, 32, 64))
    found = plans(types, prices_of(types), concurrency=64, max_instances=2)
    assert found[0].slots == 32
    assert plans(types, prices_of(types), concurrency=64)[0].slots <= 16


def test_smaller_machines_are_offered_for_the_remainder() -> None:
    types = family("m6", (2, 4, 8, 16, 32, 64))
    found = plans(types, prices_of(types), concurrency=256)
    assert {plan.slots for plan in found} == {2, 4, 8, 16, 32, 64}


def test_names_of_offers_are_unique_and_do_not_follow_the_price() -> None:
    types, prices = recorded()
    dearer = [replace(price, usd_per_hour=price.usd_per_hour * 1.1) for price in prices]
    both = {"purchases": (SPOT, ON_DEMAND)}
    names = [plan.offer().name for plan in plans(types, prices, **both)]
    assert len(set(names)) == len(names)
    assert {plan.offer().name for plan in plans(types, dearer, **both)} == set(names)


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (Resources(cpus=200), r"cpus=200; the largest machine has 16 "),
        (Resources(memory_gb=64), r"memory_gb=64; the largest machine has 58.7 "),
        (Resources(disk_gb=20_000), r"disk_gb=20000; the largest machine has 1.638e\+04|16376"),
        (Resources(gpus=1), r"gpus=1; the largest machine has 0 "),
        (Resources(instance_types=("z9.*",)), r"instance_types=\['z9\.\*'\]"),
        (Resources(architectures=("arm64",)), r"architectures=\['arm64'\]"),
    ],
)
def test_what_fits_nowhere_is_refused_with_what_would(resources: Resources, told: str) -> None:
    types = family("m6")
    with pytest.raises(InvalidInput, match=told):
        plans(types, prices_of(types), resources)


def test_needs_that_no_machine_has_together_are_told_together() -> None:
    types = [MachineType("c", 64, 64.0), MachineType("r", 4, 512.0)]
    with pytest.raises(InvalidInput, match=r"at once \(cpus=32, memory_gb=256\)"):
        plans(types, prices_of(types), Resources(cpus=32, memory_gb=256))


def test_machines_that_are_not_sold_so_are_told() -> None:
    types = family("m6")
    with pytest.raises(InvalidInput, match=r"no zone of this connection offers .* as on-demand"):
        plans(types, prices_of(types), purchases=(ON_DEMAND,))


# --- on any prices --------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[MachineType], list[Price]]:
    """Up to 40 types in up to 3 zones, at any price and rate of interruption."""
    types, prices = [], []
    for number in range(draw(st.integers(1, 40))):
        vcpus = draw(st.sampled_from([1, 2, 4, 8, 16, 48, 96]))
        type_ = MachineType(
            name=f"m{number}",
            vcpus=vcpus,
            memory_gb=vcpus * draw(st.sampled_from([1.0, 2.0, 4.0, 8.0])),
            gpus=draw(st.sampled_from([0, 0, 0, 1, 4])),
            gpu_memory_gb=16.0,
            architecture=draw(st.sampled_from(BOTH)),
            burstable=draw(st.booleans()) and draw(st.booleans()),
        )
        types.append(type_)
        for zone in draw(st.sets(st.sampled_from("abc"), max_size=3)):
            usd = vcpus * draw(st.floats(0.005, 0.05))
            prices.append(
                Price(type_.name, zone, SPOT, usd, draw(st.none() | st.sampled_from([2.5, 19.0, 61.0])))
            )
            if draw(st.booleans()):
                prices.append(Price(type_.name, zone, ON_DEMAND, usd * 3))
    return types, prices


NEEDS = st.builds(
    Resources,
    cpus=st.sampled_from([0.5, 1, 2, 7]),
    memory_gb=st.sampled_from([0.5, 2, 4, 30]),
    gpus=st.sampled_from([0, 0, 0, 1]),
)


@given(
    world=worlds(),
    resources=NEEDS,
    concurrency=st.integers(1, 2000),
    max_instances=st.none() | st.integers(1, 50),
)
def test_whatever_the_prices_plans_keep_to_the_rules(
    world: tuple[list[MachineType], list[Price]],
    resources: Resources,
    concurrency: int,
    max_instances: int | None,
) -> None:
    types, prices = world
    options = {"purchases": (SPOT, ON_DEMAND), "max_instances": max_instances}
    try:
        found = plans(types, prices, resources, concurrency, **options)
    except InvalidInput:
        return
    known = {type_.name: type_ for type_ in types}
    assert found == plans(types, prices, resources, concurrency, **options)
    assert len({(plan.purchase, plan.slots) for plan in found}) == len(found)
    for plan in found:
        assert 1 <= plan.slots <= concurrency
        assert all(slots_on(known[name], resources, DISK) >= plan.slots for name in plan.types)
        assert not any(known[name].burstable for name in plan.types)
        per_slot = cheapest_per_slot(known, prices, resources, plan.purchase)
        costs = per_slot(plan.slots)
        within = sum(cost <= WIDE * min(costs) for cost in costs)
        assert len(plan.types) >= (LEAST_TYPES if within >= LEAST_TYPES else 1)
        best = min(per_slot(1, at_most=concurrency))
        if plan.slots * SHARE > concurrency and max_instances is None:
            smaller = [other for other in found if other.slots < plan.slots]
            assert all(o.usd_per_slot > WORTH * best for o in smaller if o.purchase == plan.purchase)


def cheapest_per_slot(
    known: dict[str, MachineType], prices: Sequence[Price], resources: Resources, purchase: str
) -> Callable[..., list[float]]:
    """Expected dollars per slot of each type that holds so many slots, of which it uses no more."""

    def per_slot(slots: int, at_most: int | None = None) -> list[float]:
        cheapest: dict[str, float] = {}
        for price in prices:
            type_ = known[price.type]
            usable = not type_.burstable and (resources.gpus or not type_.gpus)
            holds = slots_on(type_, resources, DISK)
            if price.purchase == purchase and usable and holds >= slots:
                usd = price.expected_usd_per_hour + DISK_ALONE.usd_per_hour(SYSTEM_DISK_GB)
                usd /= min(holds, at_most) if at_most else slots
                cheapest[price.type] = min(usd, cheapest.get(price.type, usd))
        return list(cheapest.values())

    return per_slot
