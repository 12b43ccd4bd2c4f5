"""What items really used: time, peak memory, CPUs. Small sketches that can be added up over machines.

Only items that succeeded are measured: one that failed may have ended early or was cut short, and says
little of what the work needs. Those are counted by cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.outcome import MEMORY, OK, ItemOutcome

FORMAT = 1

RELATIVE_ERROR = 0.05
"""How far a quantile may lie from the true one, as a share of it."""

LEAST_SECONDS = 0.001
LEAST_MEMORY_MB = 1.0
LEAST_CPUS = 0.01
"""Below these, values are not told apart."""

CPU_MEASURED_SECONDS = 0.01
"""CPUs are measured on items that took at least this long: the clocks are too coarse for shorter ones."""

_TOTALS = ("item_seconds", "cpu_seconds", "cpu_of_seconds", "overhead_seconds")

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
_LAST_BUCKET = 255  # reaches 10**11 times the least value


class Sketch:
    """Counts of values in buckets that grow by 10.5 %: quantiles within 5 %, exact count and maximum.

    Values below ``least`` share bucket 0, and count as 0 in quantiles.
    """

    __slots__ = ("buckets", "count", "least", "maximum")

    def __init__(self, least: float) -> None:
        self.least = least
        self.count = 0
        self.maximum = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        bucket = 0
        if value >= self.least:
            bucket = min(_LAST_BUCKET, 1 + int(math.log(value / self.least) / _LOG_GROWTH))
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        if value > self.maximum:
            self.maximum = value

    def merge(self, other: Sketch) -> None:
        """Take in all that ``other`` counted."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.maximum = max(self.maximum, other.maximum)

    def quantile(self, share: float) -> float:
        """The value that ``share`` (in (0, 1]) of all values do not pass; 0 where there are none."""
        rank = math.ceil(share * self.count)
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return self._middle(bucket)
        return 0.0

    def _middle(self, bucket: int) -> float:
        if bucket == 0:
            return 0.0
        middle: float = self.least * _GROWTH ** (bucket - 1) * 2 * _GROWTH / (_GROWTH + 1)
        return min(middle, self.maximum)

    def to_json(self) -> list[Any]:
        """``[maximum, steps to the next bucket that is not empty, its count, …]``."""
        stored: list[Any] = [float(f"{self.maximum:.6g}")]
        before = 0
        for bucket in sorted(self.buckets):
            stored += [bucket - before, self.buckets[bucket]]
            before = bucket
        return stored

    @classmethod
    def from_json(cls, stored: list[Any], least: float) -> Sketch:
        sketch = cls(least)
        sketch.maximum = float(stored[0])
        bucket = 0
        for step, count in zip(stored[1::2], stored[2::2], strict=True):
            bucket += step
            sketch.buckets[bucket] = count
            sketch.count += count
        return sketch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and (self.least, self.to_json()) == (other.least, other.to_json())

    __hash__ = None  # type: ignore[assignment]  # it changes


@dataclass
class Use:
    """What was measured of items, on one machine or on many.

    ``seconds``, ``memory_mb`` and ``cpus`` (CPUs busy on average while an item ran) are of items that
    succeeded. Memory is the peak of the worker's processes, the interpreter included; of items shorter
    than a sample (0.2 s) it is known only where they raised their worker's peak.
    ``item_seconds`` is their run time, summed; ``cpu_seconds`` were used in ``cpu_of_seconds`` of it.
    ``overhead_seconds``: what slots spent on chunks but not in items. ``left_out``: items that did not
    succeed, by cause. ``outgrew``: items ended for their memory, by the limit in MB.
    """

    seconds: Sketch = field(default_factory=lambda: Sketch(LEAST_SECONDS))
    memory_mb: Sketch = field(default_factory=lambda: Sketch(LEAST_MEMORY_MB))
    cpus: Sketch = field(default_factory=lambda: Sketch(LEAST_CPUS))
    item_seconds: float = 0.0
    cpu_seconds: float = 0.0
    cpu_of_seconds: float = 0.0
    overhead_seconds: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)
    outgrew: Counter[int] = field(default_factory=Counter)

    @property
    def items(self) -> int:
        """How many items were measured."""
        return self.seconds.count

    @classmethod
    def of_chunk(cls, outcomes: Iterable[ItemOutcome], slot_seconds: float, memory_limit_mb: float) -> Use:
        """What one chunk used. ``slot_seconds``: for how long it had its slot."""
        use, in_items = cls(), 0.0
        for outcome in outcomes:
            seconds = max(0.0, outcome.end - outcome.start)
            in_items += seconds
            if outcome.cause == OK:
                use._measure(seconds, outcome.peak_mb, outcome.cpu_seconds)
            else:
                use.left_out[outcome.cause] += 1
                if outcome.cause == MEMORY:
                    use.outgrew[round(memory_limit_mb)] += 1
        use.overhead_seconds = max(0.0, slot_seconds - in_items)
        return use

    def _measure(self, seconds: float, peak_mb: float | None, cpu_seconds: float | None) -> None:
        self.seconds.add(seconds)
        self.item_seconds += seconds
        if peak_mb is not None:
            self.memory_mb.add(peak_mb)
        if cpu_seconds is not None and seconds >= CPU_MEASURED_SECONDS:
            self.cpus.add(cpu_seconds / seconds)
            self.cpu_seconds += cpu_seconds
            self.cpu_of_seconds += seconds

    def merge(self, other: Use) -> None:
        """Take in all that ``other`` measured."""
        self.seconds.merge(other.seconds)
        self.memory_mb.merge(other.memory_mb)
        self.cpus.merge(other.cpus)
        self.item_seconds += other.item_seconds
        self.cpu_seconds += other.cpu_seconds
        self.cpu_of_seconds += other.cpu_of_seconds
        self.overhead_seconds += other.overhead_seconds
        self.left_out.update(other.left_out)
        self.outgrew.update(other.outgrew)

    def to_json(self) -> dict[str, Any]:
        """About 1 KB as JSON text, 4 KB for the most varied work."""
        return {
            "format": FORMAT,
            "seconds": self.seconds.to_json(),
            "memory_mb": self.memory_mb.to_json(),
            "cpus": self.cpus.to_json(),
            **{name: round(getattr(self, name), 6) for name in _TOTALS},
            "left_out": dict(self.left_out),
            "outgrew": {str(limit): count for limit, count in self.outgrew.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Use:
        if stored.get("format") != FORMAT:
            raise FormatMismatch("what items used is stored in a format that this release does not read")
        return cls(
            seconds=Sketch.from_json(stored["seconds"], LEAST_SECONDS),
            memory_mb=Sketch.from_json(stored["memory_mb"], LEAST_MEMORY_MB),
            cpus=Sketch.from_json(stored["cpus"], LEAST_CPUS),
            **{name: stored[name] for name in _TOTALS},
            left_out=Counter(stored["left_out"]),
            outgrew=Counter({int(limit): count for limit, count in stored["outgrew"].items()}),
        )
