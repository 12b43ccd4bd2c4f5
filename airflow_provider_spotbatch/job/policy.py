"""How a run treats its items: the operator's arguments as one checked value, kept in ``run.json``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.resources import Resources, positive

ON_ITEM_ERROR = ("fail", "stop", "collect")
REUSE = ("failed", "always", "never")
SPOT, ON_DEMAND, SPOT_THEN_ON_DEMAND = "spot", "on-demand", "spot-then-on-demand"
PURCHASE = (SPOT, ON_DEMAND, SPOT_THEN_ON_DEMAND)

MAX_LOSSES = 20
"""How often an item may be lost or interrupted before it is given up: it may be what kills machines."""

CHUNK_LOSSES = 3
"""Losses of a chunk of many items after which its items travel singly: one of them may be to blame."""


@dataclass(frozen=True)
class Policy:
    """Limits and choices of one run. Times in seconds, money in US dollars.

    ``concurrency`` None: the backend's default.
    """

    item_retries: int = 2
    item_timeout: float | None = None
    resources: Resources = field(default_factory=Resources)
    concurrency: int | None = None
    on_item_error: str = "fail"
    max_failures: int | float | None = None
    early_stop: int | None = 20
    reuse: str = "failed"
    purchase: str = SPOT
    budget_usd: float | None = None
    max_runtime: float = 24 * 3600.0
    poll_interval: float = 15.0

    def __post_init__(self) -> None:
        _whole("item_retries", self.item_retries, least=0)
        _whole("concurrency", self.concurrency, least=1)
        _whole("early_stop", self.early_stop, least=1)
        for name in ("item_timeout", "budget_usd"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        positive("max_runtime", self.max_runtime)
        positive("poll_interval", self.poll_interval)
        _one_of("on_item_error", self.on_item_error, ON_ITEM_ERROR)
        _one_of("reuse", self.reuse, REUSE)
        _one_of("purchase", self.purchase, PURCHASE)
        _check_max_failures(self.max_failures)

    def failures_allowed(self, items: int) -> float:
        """How many items may fail before the job fails: infinite for ``collect`` without a limit."""
        if self.max_failures is None:
            return math.inf if self.on_item_error == "collect" else 0
        if isinstance(self.max_failures, float):
            return math.floor(self.max_failures * items)
        return self.max_failures

    @property
    def purchases(self) -> tuple[str, ...]:
        """How machines may be bought, the preferred way first."""
        return (SPOT, ON_DEMAND) if self.purchase == SPOT_THEN_ON_DEMAND else (self.purchase,)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Policy:
        return cls(**{**stored, "resources": Resources.from_json(stored["resources"])})


def _whole(name: str, value: Any, *, least: int) -> None:
    if value is None and name != "item_retries":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _check_max_failures(value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"max_failures must be a count (int) or a fraction (float below 1), not {value!r}")
    if isinstance(value, float) and not 0 < value < 1:
        raise InvalidInput(
            f"max_failures={value!r}: a float is a fraction between 0 and 1 (both excluded); "
            "for a count write an int, for 'any number' use on_item_error='collect'"
        )
    if value < 0:
        raise InvalidInput(f"max_failures must be 0 or more, not {value!r}")
