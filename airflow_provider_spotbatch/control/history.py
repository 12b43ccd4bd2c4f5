"""Snapshots and plans as JSON, so that an incident can be replayed: ``decide`` is a pure function, so a
stored snapshot gives the plan that was made of it.

What only the backend reads of offers and launches (which types in which zones at which price) is left out:
it is most of a snapshot, a decision never looks at it, and the launch records hold it in full.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Any

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.plan import Plan, WriteControl
from airflow_provider_spotbatch.control.snapshot import (
    Counts,
    LaunchView,
    Machine,
    OpenChunk,
    Pace,
    Retry,
    Snapshot,
    Stop,
)
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.launches import LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy

FORMAT = 1

DECIDED_BY = ("usd_per_hour", "offer")
"""What decisions read of a launch record's request."""


def tick_to_bytes(seen: Snapshot, plan: Plan) -> bytes:
    """One tick: what was seen, and what was made of it (its actions by kind and reason)."""
    actions = [[type(action).__name__, action.reason] for action in plan.actions]
    body = {
        "format": FORMAT,
        "snapshot": _encode(seen),
        "plan": {"actions": actions, "pause": plan.pause, "over": plan.over, "stuck": plan.stuck},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def snapshot_from_bytes(data: bytes) -> Snapshot:
    """The snapshot of a stored tick, to be decided on again."""
    stored = json.loads(data)
    if stored.get("format") != FORMAT:
        raise FormatMismatch(f"a tick has format {stored.get('format')!r}; this release reads {FORMAT}")
    return _decode(stored["snapshot"])


def reasons_from_bytes(data: bytes) -> list[str]:
    """Why a stored tick did what it did, but for the signs of life."""
    plan = json.loads(data)["plan"]
    return [str(reason) for kind, reason in plan["actions"] if kind != WriteControl.__name__]


def _encode(seen: Snapshot) -> dict[str, Any]:
    body = {field.name: getattr(seen, field.name) for field in fields(seen)}
    return body | {
        "policy": seen.policy.to_json(),
        "counts": asdict(seen.counts),
        "pace": asdict(seen.pace),
        "due": [asdict(retry) for retry in seen.due],
        "open_chunks": [{**view.__dict__, "chunk": view.chunk.to_json()} for view in seen.open_chunks],
        "machines": [asdict(machine) for machine in seen.machines],
        "launches": [_encode_launch(view) for view in seen.launches],
        "offers": {
            number: [{**offer.__dict__, "request": None} for offer in offers]
            for number, offers in seen.offers.items()
        },
        "stop": None if seen.stop is None else asdict(seen.stop),
    }


def _encode_launch(view: LaunchView) -> dict[str, Any]:
    outcome = None if view.outcome is None else json.loads(view.outcome.to_bytes())
    request = {name: view.record.request[name] for name in DECIDED_BY if name in view.record.request}
    record = replace(view.record, request=request)
    return {**view.__dict__, "record": json.loads(record.to_bytes()), "outcome": outcome}


def _decode(body: dict[str, Any]) -> Snapshot:
    return Snapshot(
        **body
        | {
            "policy": Policy.from_json(body["policy"]),
            "counts": Counts(**body["counts"]),
            "pace": Pace(**body["pace"]),
            "fresh": tuple((start, stop) for start, stop in body["fresh"]),
            "due": tuple(Retry(**retry) for retry in body["due"]),
            "open_chunks": tuple(
                OpenChunk(**view | {"chunk": Chunk.from_json(view["chunk"])}) for view in body["open_chunks"]
            ),
            "machines": tuple(
                Machine(**machine | {"held": tuple(machine["held"])}) for machine in body["machines"]
            ),
            "launches": tuple(_decode_launch(view) for view in body["launches"]),
            "offers": {
                int(number): tuple(map(_decode_offer, offers)) for number, offers in body["offers"].items()
            },
            "stop": None if body["stop"] is None else Stop(**body["stop"]),
            "unsent": {int(number): items for number, items in body["unsent"].items()},
        }
    )


def _decode_offer(stored: dict[str, Any]) -> Offer:
    """Ticks of releases that knew no machine types have no ``types``."""
    return Offer(**stored | {"types": tuple(stored.get("types", ()))})


def _decode_launch(view: dict[str, Any]) -> LaunchView:
    outcome = (
        None if view["outcome"] is None else LaunchOutcome.from_bytes(json.dumps(view["outcome"]).encode())
    )
    return LaunchView(
        **view | {"record": LaunchRecord.from_bytes(json.dumps(view["record"]).encode()), "outcome": outcome}
    )
