"""The sweep: ends what outlived its run, and removes what belongs to nobody. It needs no controller, and
is meant to run every hour, whatever else has happened.

It never touches a run that may be alive: one that is in the store, has neither outcome nor cancel, and
whose time is not over. That nobody drives it at the moment is no reason to end its machines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from airflow_provider_spotbatch.backends.base import RunMachine
from airflow_provider_spotbatch.control.site import Site, read_run
from airflow_provider_spotbatch.job.errors import (
    FormatMismatch,
    Refusal,
    SignatureMismatch,
    SpotBatchError,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import (
    JOBS,
    Generation,
    Run,
    removed_number,
    run_of_queue,
    run_of_tag,
)
from airflow_provider_spotbatch.job.launches import TERMINATED
from airflow_provider_spotbatch.job.signing import unverified_body

END_SECONDS = 300.0
"""How long machines are told to end before the sweep fails and names those that did not."""

LATE_SECONDS = 600.0
"""What a run may pass its max_runtime by before its machines are ended: its controller ends them first,
and the clocks of two hosts of an Airflow may differ."""

ITEMS_SECONDS = 24 * 3600.0
"""Age of the newest part of a submission that nobody names, before it is removed: by then it has died."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

UNKNOWN = "is not in the store"
"""Why a run is over of which the store does not even know that it was cleaned away."""

REMOVED = "was removed with its job"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Leftover:
    """A machine, queue or folder of items that belongs to nobody any more, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is going to end and remove. ``alive``: machines that are left to their run."""

    machines: tuple[Leftover, ...]
    queues: tuple[Leftover, ...]
    submissions: tuple[Leftover, ...]
    alive: int


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did. ``machines``: ended and seen gone; ``queues`` and ``submissions`` (folders of
    items that no specification names): removed; ``forgotten``: machines that ended long ago, of which
    nothing is kept any more; ``alive``: machines that were left to their run."""

    machines: tuple[str, ...]
    queues: tuple[str, ...]
    submissions: tuple[str, ...]
    forgotten: int
    alive: int


async def sweep(
    site: Site,
    say: Say,
    *,
    deadline: float = END_SECONDS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> SweepReport:
    """End what outlived its run or its limit, and remove what belongs to nobody. Safe to repeat.

    Raises SpotBatchError, naming them, where machines were not seen gone within ``deadline`` seconds;
    all else is done by then.
    """
    plan = await plan_sweep(site, say, deadline=deadline, sleep=sleep)
    for leftover in plan.machines:
        say(f"machine {leftover.name} outlived its run, which {leftover.why}: ending it")
    machines = [leftover.name for leftover in plan.machines]
    left = await _end(site, machines, say, deadline, sleep)
    report = SweepReport(
        machines=tuple(machines),
        queues=await _remove_queues(site, plan.queues, say),
        submissions=await _remove_submissions(site, plan.submissions, say),
        forgotten=await site.backend.forget_ended(),
        alive=plan.alive,
    )
    if left:
        raise SpotBatchError(
            f"these machines were not seen gone within {deadline:g} s and may cost money: {', '.join(left)}. "
            "End them by hand, or sweep again"
        )
    return report


async def plan_sweep(
    site: Site,
    say: Say,
    *,
    deadline: float = END_SECONDS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> SweepPlan:
    """What :func:`sweep` would do now. Changes nothing."""
    runs = _Runs(site, say)
    machines = await _machines(site, say, deadline, sleep)
    over = {machine.instance.id: await runs.why_over(run_of_tag(machine.run)) for machine in machines}
    leftover = [Leftover(instance, why) for instance, why in sorted(over.items()) if why is not None]
    return SweepPlan(
        machines=tuple(leftover),
        queues=await _leftover_queues(site, runs),
        submissions=await _dead_submissions(site),
        alive=len(over) - len(leftover),
    )


class _Runs:
    """What was found of runs in this sweep: each is looked at once."""

    def __init__(self, site: Site, say: Say) -> None:
        self._site = site
        self._say = say
        self._known: dict[Run, str | None] = {}

    async def why_over(self, run: Run) -> str | None:
        """Why nothing of the run may be left; None if it may be alive."""
        if run not in self._known:
            self._known[run] = await self._look_at(run)
        return self._known[run]

    async def _look_at(self, run: Run) -> str | None:
        if await self._site.store.exists(run.outcome):
            return "has its outcome"
        if await self._site.store.exists(run.cancel):
            return "was cancelled"
        try:
            record = await read_run(self._site, run)
        except (SignatureMismatch, FormatMismatch) as error:
            self._say(f"run {run.tag} is left alone, since it cannot be read: {error}")
            return None
        if record is None:
            removed = await self._site.store.exists(removed_number(run.generation))
            return REMOVED if removed else UNKNOWN
        if self._site.wall_clock() > record.created + record.policy.max_runtime + LATE_SECONDS:
            return f"is past its max_runtime ({record.policy.max_runtime:g} s)"
        return None


# --- machines -------------------------------------------------------------------------------------


async def _machines(
    site: Site, say: Say, deadline: float, sleep: Callable[[float], Awaitable[None]]
) -> list[RunMachine]:
    """All machines that may cost money. Raises Throttled where nobody could look within ``deadline``."""
    began, pause = site.clock(), FIRST_PAUSE
    while True:
        try:
            found = await site.backend.machines()
        except Throttled as refusal:
            if site.clock() - began > deadline:
                raise
            say(f"the machines cannot be listed: {refusal.message}. Trying again")
            await sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE, 2 * pause)
        else:
            return [machine for machine in found if machine.instance.state != TERMINATED]


async def _end(
    site: Site,
    instances: list[str],
    say: Say,
    deadline: float,
    sleep: Callable[[float], Awaitable[None]],
) -> list[str]:
    """Terminate machines until each is seen gone; those that are not, after ``deadline`` seconds."""
    began, pause, left = site.clock(), FIRST_PAUSE, instances
    while left:
        try:
            await site.backend.terminate(left)
        except Refusal as refusal:
            told = f"{refusal.message} {refusal.remedy}".rstrip()
            say(f"ERROR: machines {', '.join(left)} could not be ended and may cost money: {told}")
        left = await _still_there(site, left)
        if not left or site.clock() - began > deadline:
            break
        await sleep(pause * random.uniform(0.5, 1.0))
        pause = min(LONGEST_PAUSE, 2 * pause)
    return left


async def _still_there(site: Site, instances: list[str]) -> list[str]:
    """Those of the machines that are not seen gone: all of them where nobody could look."""
    try:
        found = await site.backend.machines()
    except Throttled:
        return instances
    there = {machine.instance.id for machine in found if machine.instance.state != TERMINATED}
    return [instance for instance in instances if instance in there]


# --- queues ---------------------------------------------------------------------------------------


async def _leftover_queues(site: Site, runs: _Runs) -> tuple[Leftover, ...]:
    """Queues of runs that are over. Those of runs that this store does not know may be another
    connection's, and hold nothing but messages."""
    found = []
    for name in await site.backend.queues():
        named = run_of_queue(name)
        if named is None:
            continue
        why = await runs.why_over(named[0])
        if why is not None and why != UNKNOWN:
            found.append(Leftover(name, why))
    return tuple(found)


async def _remove_queues(site: Site, queues: tuple[Leftover, ...], say: Say) -> tuple[str, ...]:
    for leftover in queues:
        named = run_of_queue(leftover.name)
        assert named is not None, "it was planned by this name"
        say(f"removing the queue {leftover.name}: its run {leftover.why}")
        await site.backend.queue(*named).delete()
        if leftover.why == REMOVED:  # nobody sends to it any more: what says so would be all that is left
            run, memory_class = named
            await site.store.delete([run.queue_deleted(memory_class)])
    return tuple(leftover.name for leftover in queues)


# --- items ----------------------------------------------------------------------------------------


async def _dead_submissions(site: Site) -> tuple[Leftover, ...]:
    """Folders of items that a submission stored before it died: no specification names them."""
    newest: dict[str, float] = {}
    async for page in site.store.pages(JOBS):
        for entry in page:
            folder, _, _ = entry.name.rpartition("/")
            if len(folder.split("/")) == 5 and folder.split("/")[3] == "items":
                newest[folder] = max(newest.get(folder, 0.0), entry.modified)
    old = [folder for folder, at in sorted(newest.items()) if site.wall_clock() - at >= ITEMS_SECONDS]
    dead = [folder for folder in old if not await _named(site, folder)]
    return tuple(Leftover(folder, "its submission died half-way") for folder in dead)


async def _remove_submissions(site: Site, submissions: tuple[Leftover, ...], say: Say) -> tuple[str, ...]:
    removed = []
    for leftover in submissions:
        if await _named(site, leftover.name):
            continue  # it was slow, not dead
        say(f"removing {leftover.name}: {leftover.why}")
        async for page in site.store.pages(leftover.name):
            await site.store.delete([entry.name for entry in page])
        removed.append(leftover.name)
    return tuple(removed)


async def _named(site: Site, folder: str) -> bool:
    """Whether the generation's specification names these items, whichever key signed it."""
    _, job, generation, _, submission = folder.split("/")
    spec = await site.store.read(Generation(job, int(generation)).spec)
    return spec is not None and unverified_body(spec)["items"]["submission"] == submission
