"""The output of a generation's items: what its machines wrote, as lines in time order.

Within a machine the order is that of its output; machines are merged by the times that they wrote, so
far as their clocks agree.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow_provider_spotbatch.backends.store import Store, StoredObject
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Generation, Run, launch_entry
from airflow_provider_spotbatch.job.launches import LaunchOutcome

AHEAD_BYTES = 32 * 1024 * 1024
"""Output read ahead, over all machines: one object of each is held at least."""

AHEAD_OBJECTS = 16
"""Objects of one machine read at the same time."""


@dataclass(frozen=True)
class LogLine:
    """``item`` None: the machine's own words, or output between two items. ``time``: seconds since the
    epoch by the machine's clock, when the line was read from its process."""

    machine: str
    item: int | None
    attempt: int
    time: float
    text: str


@dataclass
class _Seen:
    """How far a machine's output was read: the last object, its tag then and how many lines it had, and the
    name before it."""

    last: str = ""
    tag: str = ""
    lines: int = 0
    before: str | None = None


class ItemLogs:
    """Reads the output of a generation's items, each line once: a second :meth:`new_lines` gives what has
    come since. ``machines`` None: of all machines."""

    def __init__(self, store: Store, generation: Generation, machines: frozenset[str] | None = None) -> None:
        self._store = store
        self._generation = generation
        self._machines = machines
        self._seen: dict[str, _Seen] = {}

    async def new_lines(self) -> AsyncIterator[LogLine]:
        """The lines that were not given yet, of all machines, in time order."""
        machines = await machines_with_output(self._store, self._generation)
        if self._machines is not None:
            machines = [machine for machine in machines if machine in self._machines]
        ahead = AHEAD_BYTES // max(1, len(machines))
        streams = [self._of_machine(machine, ahead) for machine in machines]
        firsts = await asyncio.gather(*(anext(stream, None) for stream in streams))
        heap = [(line.time, number, line) for number, line in enumerate(firsts) if line is not None]
        heapq.heapify(heap)
        while heap:
            _, number, line = heap[0]
            yield line
            following = await anext(streams[number], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.time, number, following))

    async def _of_machine(self, machine: str, ahead: int) -> AsyncIterator[LogLine]:
        seen = self._seen.setdefault(machine, _Seen())
        found = await self._store.list_objects(self._generation.logs(machine), after=seen.before)
        # The last object may have been written anew with more lines: its first writing was not answered.
        fresh = [entry for entry in found if (entry.name, entry.tag) != (seen.last, seen.tag)]
        for some in _together(fresh, ahead):
            stored = await asyncio.gather(*(self._store.read(entry.name) for entry in some))
            for entry, data in zip(some, stored, strict=True):
                lines = (data or b"").splitlines()
                told = seen.lines if entry.name == seen.last else 0
                if entry.name != seen.last:
                    seen.before = seen.last or None
                seen.last, seen.tag, seen.lines = entry.name, entry.tag, len(lines)
                for line in lines[told:]:
                    yield _parsed(machine, line)


def _together(entries: list[StoredObject], most_bytes: int) -> list[list[StoredObject]]:
    """Objects in the groups that they are read in."""
    groups: list[list[StoredObject]] = []
    size = 0
    for entry in entries:
        if not groups or len(groups[-1]) == AHEAD_OBJECTS or size + entry.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.size
    return groups


def _parsed(machine: str, line: bytes) -> LogLine:
    try:
        stored = json.loads(line)
        item = stored["item"]
        return LogLine(
            machine, None if item is None else int(item), int(stored["attempt"]), float(stored["time"]),
            str(stored["text"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return LogLine(machine, None, 0, 0.0, line.decode("utf-8", "backslashreplace"))


async def machines_with_output(store: Store, generation: Generation) -> list[str]:
    """The machines that have stored output of items, in order of their ids."""
    return [folder.rsplit("/", 1)[1] for folder in await store.list_folders(generation.all_logs)]


async def machines_of_run(store: Store, run: Run) -> frozenset[str]:
    """All machines that the run was given, or that reported to it."""
    reports, launches = await asyncio.gather(store.list_objects(run.agents), store.list_objects(run.launches))
    found = {
        entry.name.rsplit("/", 1)[1][: -len(".json")] for entry in reports if entry.name.endswith(".json")
    }
    for entry in launches:
        with reading(entry.name):
            if launch_entry(entry.name)[1] == "result.json":
                data = await store.read(entry.name)
                if data is not None:
                    found |= {instance.id for instance in LaunchOutcome.from_bytes(data).instances}
    return frozenset(found)


async def chosen_machines(store: Store, run: Run, *, of_run: bool, part: str | None) -> frozenset[str] | None:
    """The machines whose output is asked for: those of the run alone if ``of_run``, with ``part`` in their
    id if it is given; None stands for all. Raises InvalidInput where there is none."""
    if not of_run and part is None:
        return None
    known = (
        await machines_of_run(store, run)
        if of_run
        else frozenset(await machines_with_output(store, run.generation))
    )
    if part is None:
        return known
    chosen = frozenset(machine for machine in known if part in machine)
    if not chosen:
        raise InvalidInput(
            f"no machine has {part!r} in its id; there are: {', '.join(sorted(known)) or 'none'}"
        )
    return chosen
