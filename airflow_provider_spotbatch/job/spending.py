"""What a run's machines were paid for: the parts of their cost, and what they would have cost on demand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spending:
    """Dollars by what the machines did in the time that was paid for.

    ``work_usd``: chunks that ran to their end; ``lost_usd``: chunks that were broken off, mostly by
    interruptions, and are run again; ``boot_usd``: from the launch until there was an agent at work;
    ``idle_usd``: all else. ``priced_usd`` is the part of it that machines with a known price on demand cost,
    ``on_demand_usd`` what the same time of these would have cost on demand.
    """

    work_usd: float = 0.0
    lost_usd: float = 0.0
    boot_usd: float = 0.0
    idle_usd: float = 0.0
    priced_usd: float = 0.0
    on_demand_usd: float = 0.0

    @property
    def total_usd(self) -> float:
        return self.work_usd + self.lost_usd + self.boot_usd + self.idle_usd

    @property
    def saving(self) -> float | None:
        """Share of the price on demand that was not paid; None where no such price is known."""
        return 1 - self.priced_usd / self.on_demand_usd if self.on_demand_usd else None

    def __add__(self, other: Spending) -> Spending:
        return Spending(*(mine + theirs for mine, theirs in zip(self._parts, other._parts, strict=True)))

    @property
    def _parts(self) -> tuple[float, ...]:
        return tuple(asdict(self).values())

    def to_json(self) -> dict[str, Any]:
        return {name: round(usd, 6) for name, usd in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Spending:
        return cls(**stored)
