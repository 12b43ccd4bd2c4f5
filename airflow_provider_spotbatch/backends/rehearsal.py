"""Rehearsed interruptions: what is to befall local machines, so that users see their DAG survive it.

The fate of a machine is fixed when it starts, and carried out by the machine itself: no controller
takes part, and the same machine of the same run always has the same fate.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.resources import positive

NOTICE = "notice"
"""The machine is told, and taken back when its grace is over."""

VANISH = "vanish"
"""The machine is taken back at once."""

FREEZE = "freeze"
"""All that runs on the machine stands still for a while, and goes on as if nothing had been."""

HOW = (NOTICE, VANISH, FREEZE)

FREEZE_SECONDS = 20.0
"""Longer than a lease, so that another machine takes over; shorter than the silence after which the
controller ends a machine, so that this one wakes and finds that its work is done."""

EVENTS = 100
"""The most that one machine lives through."""

FORMS = (
    'a rate for each machine, such as "2/h" or "0.5/m", or a list of losses such as '
    f'[{{"after": 5, "how": "notice", "machine": 0}}], where "how" is one of {", ".join(HOW)}'
)


@dataclass(frozen=True)
class Event:
    """``after``: seconds from the machine's start; ``how``: one of ``HOW``; ``seconds`` of a freeze;
    ``machine``: which of the machines that a run starts with, counted from 0."""

    after: float
    how: str
    machine: int = 0
    seconds: float = FREEZE_SECONDS

    @property
    def ends_the_machine(self) -> bool:
        return self.how != FREEZE


@dataclass(frozen=True)
class Rehearsal:
    """Scripted ``events``, or ``per_second``: events of each machine by chance. Neither: none."""

    events: tuple[Event, ...] = field(default=())
    per_second: float = 0.0

    def fate(self, launch: int, ordinal: int, chance: random.Random) -> list[Event]:
        """What befalls one machine of a launch, in the order of time. A script is about the machines
        of the first launch: those that replace them live in peace."""
        if self.per_second:
            return _drawn(self.per_second, chance)
        mine = [event for event in self.events if launch == 1 and event.machine == ordinal]
        return sorted(mine, key=lambda event: event.after)


def _drawn(per_second: float, chance: random.Random) -> list[Event]:
    events: list[Event] = []
    at = 0.0
    while len(events) < EVENTS and not (events and events[-1].ends_the_machine):
        at += chance.expovariate(per_second)
        events.append(Event(at, chance.choice(HOW)))
    return events


def parse_rehearsal(value: Any) -> Rehearsal:
    """A connection's ``rehearse``: ``"2/h"``, ``"0.5/m"``, or a list of events, also as JSON text.

    Raises InvalidInput for any other form.
    """
    if isinstance(value, str):
        rate = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*([hm])\s*", value)
        if rate is not None and float(rate[1]) > 0:
            return Rehearsal(per_second=float(rate[1]) / {"h": 3600.0, "m": 60.0}[rate[2]])
        try:
            value = json.loads(value)
        except ValueError:
            raise _wrong(value) from None
    if not isinstance(value, list):
        raise _wrong(value)
    return Rehearsal(events=tuple(_event(each) for each in value))


def _event(value: Any) -> Event:
    known = {"after", "how", "machine", "seconds"}
    if not isinstance(value, dict) or not {"after", "how"} <= value.keys() <= known:
        raise _wrong(value)
    if value["how"] not in HOW:
        raise _wrong(value)
    event = Event(**value)
    positive("rehearse: 'seconds'", event.seconds)
    if not _is_time(event.after) or isinstance(event.machine, bool) or not isinstance(event.machine, int):
        raise _wrong(value)
    return event


def _is_time(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf


def _wrong(value: Any) -> InvalidInput:
    return InvalidInput(f"'rehearse' must be {FORMS}; not {value!r}")
