"""What items really used against what was asked for them, and what to ask for instead."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.outcome import TIMEOUT
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import Report
from airflow_provider_spotbatch.job.use import LEAST_SECONDS, Sketch, Use

AT_ONCE = 32
"""Reports read at the same time."""

ITEMS_LEAST = 20
"""Measured items below which nothing is advised: the next one may be quite different."""

MEMORY_HEADROOM = 1.2
"""Advised memory over the most that any item used: the next job's items are not the same."""

CPU_HEADROOM = 1.25
"""Advised CPUs over the mean that was busy; lighter, since an item short of CPU is only slower."""

TIME_HEADROOM = 3.0
"""Advised item_timeout over the longest item: it is there to end what hangs, not what is slow."""

WORTH = 1.5
"""Less is advised only where what was asked is at least this much more than would do."""

NEAR = 0.9
"""Share of a limit from which the next item may pass it."""

FAR = 10.0
"""An item_timeout of so many times the longest item (and a minute at least) is no guard any more."""

FEW = 0.05
"""Share of items below which outgrowing the memory costs less than more memory for all."""

CPU_SECONDS_LEAST = 10.0
"""Run time over which CPUs must have been measured."""

OVERHEAD_SECONDS_LEAST = 60.0
"""Time spent between items that is worth a word."""

INTERPRETER = "a worker's peak, its interpreter included"

_CPU_STEPS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)


@dataclass(frozen=True)
class Advice:
    """``subject``: memory, cpus or time; ``text``: one line for people; ``ask``: the arguments to set
    (``memory_gb`` and ``cpus`` of Resources, ``item_timeout``), empty where there is none to name."""

    subject: str
    text: str
    ask: dict[str, float]


async def use_of(store: Store, generation: Generation) -> Use:
    """What the items of all runs of a generation used, by the last report of each machine.

    One listing and one read for each machine. Items whose machine vanished before it reported them, and
    reports of another release's format, are missing from it.
    """
    entries = await store.list_objects(generation.agents)
    names = [entry.name for entry in entries if entry.name.endswith(".json")]
    total = Use()
    for start in range(0, len(names), AT_ONCE):
        for data in await asyncio.gather(*map(store.read, names[start : start + AT_ONCE])):
            if data is not None:
                use = await asyncio.to_thread(_reported, data)
                total.merge(use)
    return total


def _reported(report: bytes) -> Use:
    try:
        return Use.from_json(Report.from_bytes(report).use)
    except FormatMismatch:
        return Use()


def describe_use(use: Use, policy: Policy) -> list[str]:
    """The figures as lines of a log, each against what was asked; what items were too short to measure
    is not shown. Empty where nothing was measured."""
    if not use.items:
        return []
    asked = policy.resources
    left_out = ", ".join(f"{count:,} {cause}" for cause, count in use.left_out.most_common())
    limit = "" if policy.item_timeout is None else f" (item_timeout {_seconds(policy.item_timeout)})"
    lines = [
        f"measured on {_items(use.items)} that succeeded" + (f"; left out: {left_out}" if left_out else ""),
        _line("time", use.seconds, _seconds) + limit,
    ]
    if use.memory_mb.count:
        lines.append(
            f"{_line('memory', use.memory_mb, _gigabytes)} of {asked.memory_gb:g} GB asked "
            f"({'; '.join(filter(None, [INTERPRETER, _partly(use.memory_mb, use)]))})"
        )
    if use.cpus.count >= min(ITEMS_LEAST, use.items):
        partly = _partly(use.cpus, use)
        lines.append(f"{_line('CPU', use.cpus, _cpus)} of {asked.cpus:g} asked{partly and f' ({partly})'}")
    return lines


def figures(use: Use) -> dict[str, Any]:
    """The same figures as JSON: median, high (95 % do not pass it) and most of each quantity."""
    quantities = {"seconds": use.seconds, "memory_mb": use.memory_mb, "cpus": use.cpus}
    return {
        "items": use.items,
        "left_out": dict(use.left_out),
        **{
            name: {
                "measured": sketch.count,
                "median": _rounded(sketch.quantile(0.5)),
                "high": _rounded(sketch.quantile(0.95)),
                "most": _rounded(sketch.maximum),
            }
            for name, sketch in quantities.items()
        },
    }


def advise(use: Use, policy: Policy) -> list[Advice]:
    """What to ask for in the next job of the same kind; empty where figures are too few or what was
    asked is right."""
    return [*_on_memory(use, policy), *_on_cpus(use, policy), *_on_time(use, policy)]


def _on_memory(use: Use, policy: Policy) -> list[Advice]:
    asked = policy.resources.memory_gb
    most = use.memory_mb.maximum / 1024
    enough = _memory_step(most * MEMORY_HEADROOM)
    spare = f"{MEMORY_HEADROOM * 100 - 100:.0f} % above the most"
    limits = [limit for limit in use.outgrew if limit >= round(asked * 1024)]
    if limits:
        outgrew = use.outgrew[min(limits)]  # those of a higher limit had outgrown this one before
        head = f"{_items(outgrew)} needed more than the {asked:g} GB asked"
        if enough <= asked:  # no item ended well with more than was asked
            return [Advice("memory", f"{head}, and none was seen to end with more", {})]
        advised = f"memory_gb={enough:g} ({spare})"
        if outgrew <= FEW * (use.items + outgrew):
            text = f"{head} and ran again with more: cheap while they are few; {advised} holds all"
        else:
            text = f"{head} and ran again with more: ask for {advised}"
        return [Advice("memory", text, {"memory_gb": enough})]
    if use.memory_mb.count < ITEMS_LEAST:
        return []
    if most > NEAR * asked:
        text = f"items used up to {most:.2g} GB of {asked:g} GB asked: ask for memory_gb={enough:g} ({spare})"
        return [Advice("memory", text, {"memory_gb": enough})]
    if asked >= WORTH * enough:
        text = f"items used at most {_gigabytes(use.memory_mb.maximum)} of {asked:g} GB asked: "
        return [Advice("memory", f"{text}ask for memory_gb={enough:g} ({spare})", {"memory_gb": enough})]
    return []


def _on_cpus(use: Use, policy: Policy) -> list[Advice]:
    if use.cpus.count < ITEMS_LEAST or use.cpu_of_seconds < CPU_SECONDS_LEAST:
        return []
    asked = policy.resources.cpus
    busy = use.cpu_seconds / use.cpu_of_seconds
    enough = next((step for step in _CPU_STEPS if step >= busy * CPU_HEADROOM), math.ceil(busy))
    spare = f"{CPU_HEADROOM * 100 - 100:.0f} % above the mean"
    if asked >= WORTH * enough:
        text = (
            f"items kept {_cpus(busy)} of {asked:g} CPU busy, and waited for the rest of their time: "
            f"ask for cpus={enough:g} ({spare})"
        )
        return [Advice("cpus", text, {"cpus": enough})]
    if busy > CPU_HEADROOM * asked:
        text = f"items kept {_cpus(busy)} CPUs busy where {asked:g} was asked: ask for cpus={enough:g}"
        return [Advice("cpus", f"{text} ({spare}), or limit their threads", {"cpus": enough})]
    return []


def _on_time(use: Use, policy: Policy) -> list[Advice]:
    return [*_on_timeout(use, policy.item_timeout), *_on_overhead(use)]


def _on_timeout(use: Use, limit: float | None) -> list[Advice]:
    if limit is None:
        return []
    longest = use.seconds.maximum
    ended = use.left_out[TIMEOUT]
    enough = _time_step(max(longest, limit if ended else 0.0) * TIME_HEADROOM)
    if ended and longest > limit / TIME_HEADROOM:
        text = (
            f"{_items(ended)} ran longer than item_timeout={limit:g} s, and the longest that succeeded took "
            f"{_seconds(longest)}: unless they hang, set item_timeout={enough:g}"
        )
        return [Advice("time", text, {"item_timeout": enough})]
    if use.items < ITEMS_LEAST or ended:
        return []
    if longest > NEAR * limit:
        text = f"the longest item took {_seconds(longest)} of item_timeout={limit:g} s"
        return [Advice("time", f"{text}: set item_timeout={enough:g}", {"item_timeout": enough})]
    if limit >= max(60.0, FAR * longest):
        text = f"the longest item took {_seconds(longest)}: item_timeout={enough:g} would end one that hangs"
        return [Advice("time", f"{text} sooner than {limit:g} s", {"item_timeout": enough})]
    return []


def _on_overhead(use: Use) -> list[Advice]:
    if use.overhead_seconds < max(OVERHEAD_SECONDS_LEAST, use.item_seconds) or use.items < ITEMS_LEAST:
        return []
    each = use.item_seconds / use.items
    between = 100 * use.overhead_seconds / (use.overhead_seconds + use.item_seconds)
    text = (
        f"items ran for {_seconds(each)} on average, and slots spent {between:.0f} % of their time between "
        "items: let each item hold more work"
    )
    return [Advice("time", text, {})]


def _line(name: str, sketch: Sketch, shown: Callable[[float], str]) -> str:
    median, high = shown(sketch.quantile(0.5)), shown(sketch.quantile(0.95))
    return f"{name}: median {median}, 95th {high}, most {shown(sketch.maximum)}"


def _partly(sketch: Sketch, use: Use) -> str:
    """Whether the figure could not be had of all items: the rest were too short."""
    return f"measured on {sketch.count:,} of them" if sketch.count < use.items else ""


def _items(count: int) -> str:
    return f"{count:,} item{'' if count == 1 else 's'}"


def _memory_step(gigabytes: float) -> float:
    """Rounded up to what people ask for."""
    step = 0.1 if gigabytes <= 2 else 0.5 if gigabytes <= 8 else 1.0 if gigabytes <= 32 else 4.0
    return round(math.ceil(round(gigabytes / step, 6)) * step, 1)


def _time_step(seconds: float) -> float:
    """Rounded up to two digits, whole seconds at least."""
    step = 10.0 ** max(0, math.floor(math.log10(max(1.0, seconds))) - 1)
    return math.ceil(seconds / step) * step


def _seconds(seconds: float) -> str:
    if seconds < LEAST_SECONDS:
        return "under 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 600:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"


def _gigabytes(megabytes: float) -> str:
    return f"{megabytes / 1024:.2g} GB" if megabytes < 10_240 else f"{megabytes / 1024:.0f} GB"


def _cpus(cpus: float) -> str:
    return f"{cpus:.2g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
