"""How many machines of each type and zone the box's cloud has to give, and why it gives no others."""

from __future__ import annotations

import fnmatch
import threading
from dataclasses import dataclass

from tests.cloud.cloudbox.refusals import Limit

PLENTY = 1_000_000
NO_CAPACITY = "InsufficientInstanceCapacity"


@dataclass
class _Refusal:
    machine_type: str
    zone: str
    code: str
    limit: Limit


class Pools:
    """One pool per machine type and zone. Names are patterns where rules are set: ``m5.*``, ``*``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room: list[tuple[str, str, int]] = []
        self._taken: dict[tuple[str, str], int] = {}
        self._holders: dict[str, tuple[str, str]] = {}
        self._refusals: list[_Refusal] = []

    def set_room(self, machines: int, machine_type: str, zone: str) -> None:
        """Each pool that matches has so many in all. The last rule that matches a pool counts."""
        with self._lock:
            self._room.append((machine_type, zone, machines))

    def refuse(
        self, code: str, machine_type: str, zone: str, times: int | None, seconds: float | None
    ) -> None:
        with self._lock:
            self._refusals.append(_Refusal(machine_type, zone, code, Limit.of(times, seconds)))

    def clear(self) -> None:
        """Plenty of everything again. What runs stays counted."""
        with self._lock:
            self._room.clear()
            self._refusals.clear()

    def take(self, machine_type: str, zone: str) -> str | None:
        """Take one machine: None, or the code of the refusal."""
        with self._lock:
            for refusal in self._refusals:
                matches = _matches((machine_type, zone), (refusal.machine_type, refusal.zone))
                if matches and refusal.limit.spend():
                    return refusal.code
            taken = self._taken.get((machine_type, zone), 0)
            if taken >= self._room_of(machine_type, zone):
                return NO_CAPACITY
            self._taken[machine_type, zone] = taken + 1
            return None

    def give_back(self, machine_type: str, zone: str) -> None:
        with self._lock:
            self._taken[machine_type, zone] -= 1

    def held_by(self, instance: str, machine_type: str, zone: str) -> None:
        """What was taken is this instance's until it has ended."""
        with self._lock:
            self._holders[instance] = (machine_type, zone)

    def ended(self, instance: str) -> None:
        with self._lock:
            if pool := self._holders.pop(instance, None):
                self._taken[pool] -= 1

    def _room_of(self, machine_type: str, zone: str) -> int:
        matching = [
            machines
            for *pattern, machines in self._room
            if _matches((machine_type, zone), (pattern[0], pattern[1]))
        ]
        return matching[-1] if matching else PLENTY


def _matches(pool: tuple[str, str], pattern: tuple[str, str]) -> bool:
    return all(map(fnmatch.fnmatchcase, pool, pattern))
