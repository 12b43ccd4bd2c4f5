"""A connection, read: which backend, its store, its key, its limits. It holds secrets: never log it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What one connection says. Times in seconds, money in US dollars per hour.

    ``key`` signs; ``old_keys`` may still be read. ``store`` "" : the backend's own default.
    ``retention_days`` None: nothing is ever removed.
    ``options`` are the fields of the backend itself (local: ``path``, ``instances``,
    ``rehearse``).
    """

    conn_id: str
    backend: str
    key: bytes = field(repr=False)
    old_keys: tuple[bytes, ...] = field(default=(), repr=False)
    store: str = ""
    store_options: dict[str, Any] = field(default_factory=dict, repr=False)
    max_instances: int | None = None
    max_usd_per_hour: float | None = None
    budget_usd: float | None = None
    idle_timeout: float = 60.0
    orphan_after: float = 1800.0
    retention_days: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
