"""A stored tick can be decided on again, and gives the plan that was made then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.decide import decide
from airflow_provider_spotbatch.control.history import snapshot_from_bytes, tick_to_bytes
from airflow_provider_spotbatch.control.plan import Launch, RecordStop
from airflow_provider_spotbatch.control.snapshot import Counts, LaunchView, Pace, Retry, Snapshot, Stop
from airflow_provider_spotbatch.job.errors import FormatMismatch, NoCapacity, QuotaExceeded
from airflow_provider_spotbatch.job.launches import LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from tests.unit.control.test_decide import answered, machine, of, open_chunk, seen

BUSY: dict[str, Any] = {
    "policy": Policy(resources=Resources(gpus=1, architectures=("arm64",)), max_failures=0.5),
    "counts": Counts(100, 60, 20, 2, 17, 1),
    "fresh": ((40, 50), (60, 110)),
    "due": (Retry(3, 2, 1), Retry(4, 1, 0, alone=True)),
    "next_due": 0.0,
    "open_chunks": (open_chunk(held=True), open_chunk(1, ((1, 3), (5, 6)), losses=3)),
    "machines": (machine("m1", held=("a", "b")), machine("m2", state="missing", silent=200.0)),
    "launches": (answered(),),
    "pace": Pace(18, 0.5, 100.0, 9.0),
    "offers": {0: (Offer("small", 2, types=("c7.large",)),), 1: (Offer("large", 1, 0.5),)},
    "unsent": {0: 61, 1: 1},
    "stop": Stop("max_failures", "too many", drain=True),
    "budget_usd": 3.0,
}


@pytest.mark.parametrize("changes", [{}, BUSY], ids=["young", "busy"])
def test_a_tick_is_replayed_from_what_is_stored(changes: dict[str, Any]) -> None:
    snapshot = seen(**changes)
    again = snapshot_from_bytes(tick_to_bytes(snapshot, decide(snapshot)))
    assert again == snapshot
    assert decide(again) == decide(snapshot)


def test_a_tick_of_the_first_release_is_read() -> None:
    """It knew no machine types: offers had neither types nor a purchase."""
    again = snapshot_from_bytes((Path(__file__).parent / "golden/tick-1.json").read_bytes())
    offers = {**BUSY["offers"], 0: (Offer("small", 2, request={"type": "c7"}),)}
    assert again == seen(**{**BUSY, "offers": offers})
    assert decide(again).actions


POOLS = [[f"m{number}i.large", "us-east-2a", 0.03, "x86_64"] for number in range(300)]
REQUEST = {"pools": POOLS, "images": {"x86_64": {"id": "ami-1"}}}


def with_pools(**changes: Any) -> Snapshot:
    """As a cloud makes it: each offer and each launch of hundreds of types and zones."""
    record = LaunchRecord(1, slots=(2,), request={**REQUEST, "usd_per_hour": 0.5, "offer": "spot-2"})
    view = LaunchView(record, LaunchOutcome(refusals=(NoCapacity("none left"),)), 900.0, answer_age=890.0)
    offers = {0: (Offer("spot-2", 2, 0.5, request=REQUEST), Offer("spot-1", 1, 0.3, request=REQUEST))}
    return seen(**{"launches": (view,), "next_launch": 2, "offers": offers, **changes})


def test_which_pools_an_offer_has_is_not_repeated_in_every_tick() -> None:
    snapshot = with_pools()
    data = tick_to_bytes(snapshot, decide(snapshot))
    assert b"m7i.large" not in data
    assert len(data) < 8_000


def test_the_decision_is_the_same_without_them() -> None:
    snapshot = with_pools()
    again = snapshot_from_bytes(tick_to_bytes(snapshot, decide(snapshot)))
    [launch], [told] = of(decide(snapshot), Launch), of(decide(again), Launch)
    assert replace(told.record, request={}) == replace(launch.record, request={})
    assert (told.record.offer, told.record.usd_per_hour) == (launch.record.offer, launch.record.usd_per_hour)
    assert told.reason == launch.reason


def test_a_tick_that_holds_them_is_read() -> None:
    """As releases before 1.0 wrote them."""
    snapshot = with_pools()
    stored = json.loads(tick_to_bytes(snapshot, decide(snapshot)))
    stored["snapshot"]["offers"]["0"][0]["request"] = REQUEST
    stored["snapshot"]["launches"][0]["record"]["request"] |= REQUEST
    again = snapshot_from_bytes(json.dumps(stored).encode())
    assert again.offers[0][0].request == REQUEST
    assert again.launches[0].record == snapshot.launches[0].record


def test_refusals_keep_their_verdict() -> None:
    refusal = QuotaExceeded("quota 0", remedy="raise it", code="X", below_one_machine=True)
    view = LaunchView(LaunchRecord(1, slots=(2,)), LaunchOutcome(refusals=(refusal,)), 9.0)
    snapshot = seen(launches=(view,))
    again = snapshot_from_bytes(tick_to_bytes(snapshot, decide(snapshot)))
    assert of(decide(again), RecordStop) == of(decide(snapshot), RecordStop) != []


def test_a_tick_of_another_format_is_refused() -> None:
    with pytest.raises(FormatMismatch):
        snapshot_from_bytes(b'{"format": 2}')
