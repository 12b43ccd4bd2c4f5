"""Launch records (intent) and their outcomes (answer); instances as a fleet describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import (
    FormatMismatch,
    Refusal,
    refusal_from_json,
)

FORMAT = 1

PENDING = "pending"
RUNNING = "running"
TERMINATED = "terminated"


@dataclass(frozen=True)
class LaunchRecord:
    """The intent to start machines, written before the call. The unit of launch is this record.

    ``slots``: one entry per machine asked for, all the same: the items it may run at once at most;
    ``token``: makes a repeated call harmless; ``request``: what the backend's sizing chose (types, place,
    prices), opaque to the control loop but for what it adds itself: ``usd_per_hour``, the dearest machine
    it may give, and ``offer``, the name of the offer it was made from.
    ``lifetime_seconds``: from its boot, after which each machine ends whatever else happens; None in records
    of releases that pinned none. ``closed``: no launch at all, but the end of the log: nothing may be
    launched after it.
    """

    number: int
    memory_class: int = 0
    slots: tuple[int, ...] = ()
    token: str = ""
    purchase: str = "spot"
    request: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    closed: bool = False
    lifetime_seconds: float | None = None

    @property
    def usd_per_hour(self) -> float:
        """Of the dearest machine it may give."""
        return float(self.request.get("usd_per_hour", 0.0))

    @property
    def offer(self) -> str:
        return str(self.request.get("offer", ""))

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **self.__dict__}, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LaunchRecord:
        stored = json.loads(data)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("a launch record has a format that this release does not read")
        stored["slots"] = tuple(stored["slots"])
        return cls(**stored)


@dataclass(frozen=True)
class Instance:
    """A machine as the fleet describes it now. ``launch``: the record it came from.

    ``interrupted``: the platform took it back (only meaningful once terminated).
    ``usd_per_hour``: its price at launch; ``on_demand_usd_per_hour``: what it would have cost on demand, 0
    where that is not known.
    """

    id: str
    launch: int
    state: str
    slots: int
    usd_per_hour: float = 0.0
    interrupted: bool = False
    reason: str = ""
    on_demand_usd_per_hour: float = 0.0


@dataclass(frozen=True)
class LaunchOutcome:
    """What a launch gave: machines, refusals, or some of each."""

    instances: tuple[Instance, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "instances": [instance.__dict__ for instance in self.instances],
                "refusals": [refusal.to_json() for refusal in self.refusals],
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LaunchOutcome:
        stored = json.loads(data)
        if stored.get("format") != FORMAT:
            raise FormatMismatch("a launch outcome has a format that this release does not read")
        return cls(
            tuple(Instance(**instance) for instance in stored["instances"]),
            tuple(refusal_from_json(refusal) for refusal in stored["refusals"]),
        )
