"""Strategies: jobs, scripts, faults of the cloud, and what befalls controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.job.errors import NoCapacity, Refusal
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, SPOT_THEN_ON_DEMAND, Policy
from tests.property.boundaries import AFTER, BEFORE, Befall, kill_at, stall_at
from tests.property.scripted import FROZEN, GONE, NOTICE, Script
from tests.property.simulation import Simulation

CAUSES = ["error", "timeout", "memory", "crash"]


@dataclass(frozen=True)
class Refusals:
    """Every ``each``-th machine asked for is refused, up to ``most`` times."""

    each: int
    most: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_asked", [0])

    def __call__(self, record: LaunchRecord, ordinal: int) -> Refusal | None:
        asked: list[int] = self._asked
        asked[0] += 1
        if asked[0] > self.each * self.most or asked[0] % self.each:
            return None
        return NoCapacity("no such machine just now", remedy="wait")


def chances(most: float) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, 0.0, most / 10, most])


@st.composite
def scripts(draw: st.DrawFn, items: int) -> Script:
    which = st.integers(0, items - 1)
    failures = draw(
        st.dictionaries(which, st.lists(st.sampled_from(CAUSES), min_size=1, max_size=4), max_size=3)
    )
    befalls = st.lists(st.sampled_from([NOTICE, GONE, FROZEN]), min_size=1, max_size=3)
    return Script(
        failures=failures,
        mishaps=draw(st.dictionaries(which, befalls, max_size=3)),
        seconds=draw(st.lists(st.sampled_from([0.0, 0.4, 3.0, 20.0, 70.0]), min_size=1, max_size=3)),
        frozen_seconds=draw(st.sampled_from([20.0, 45.0, 200.0])),
    )


@st.composite
def cloud_faults(draw: st.DrawFn) -> Faults:
    refuse: Any = draw(st.none() | st.builds(Refusals, st.integers(1, 3), st.integers(1, 6)))
    return Faults(
        latency=draw(st.sampled_from([0.0, 0.3, 2.0])),
        lose_answer=draw(chances(0.5)),
        hide_fresh=draw(st.sampled_from([0.0, 20.0])),
        throttle_describe=draw(chances(0.6)),
        fail_terminate=draw(chances(0.6)),
        die_booting=draw(chances(0.3)),
        reclaims_per_hour=draw(st.sampled_from([0.0, 0.0, 20.0])),
        without_notice=draw(chances(1.0)),
        lose_message=draw(chances(0.4)),
        double_message=draw(chances(0.4)),
        fail_send=draw(chances(0.3)),
        shuffle=draw(st.booleans()),
        fail_request=draw(chances(0.005)),
        own_create=draw(chances(0.2)),
        **({} if refuse is None else {"refuse": refuse}),
    )


def befalls() -> st.SearchStrategy[Befall]:
    when, number = st.sampled_from([BEFORE, AFTER]), st.integers(1, 40)
    stalls = st.builds(stall_at, number, when, st.sampled_from([5.0, 70.0, 400.0]))
    return st.builds(kill_at, number, when) | stalls


@st.composite
def offers(draw: st.DrawFn) -> list[Offer]:
    """Machines of one to three sizes, at any price, as spot and perhaps on demand too."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
    ways = draw(st.sampled_from([(SPOT,), (SPOT, ON_DEMAND)]))
    return [
        Offer(f"{way}-{slots}", slots, usd_per_hour=draw(st.sampled_from([0.1, 0.3, 1.0])), purchase=way)
        for way in ways
        for slots in sizes
    ]


@st.composite
def simulations(draw: st.DrawFn, **fixed: Any) -> Simulation:
    """A job with its script, on a cloud without faults yet: see ``cloud_faults``."""
    items = draw(st.integers(1, 12))
    policy = Policy(
        concurrency=draw(st.integers(1, 6)),
        item_retries=draw(st.integers(0, 2)),
        early_stop=None,
        on_item_error=draw(st.sampled_from(["fail", "collect"])),
        poll_interval=draw(st.sampled_from([5.0, 15.0])),
        purchase=draw(st.sampled_from([SPOT, SPOT_THEN_ON_DEMAND])),
    )
    return Simulation(
        items=items,
        seed=draw(st.integers(0, 1000)),
        policy=policy,
        script=draw(scripts(items)),
        slots=draw(st.integers(1, 3)),
        offers=draw(st.none() | offers()),
        boot_seconds=draw(st.sampled_from([0.0, 5.0, 40.0])),
        end_seconds=draw(st.sampled_from([0.0, 15.0])),
        visibility_bound=draw(st.sampled_from([0.0, 30.0])),
        **fixed,
    )
