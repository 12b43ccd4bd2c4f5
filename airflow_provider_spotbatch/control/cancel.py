"""The end of a run from outside: its machines are ended, its results stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from airflow_provider_spotbatch.backends.base import Fleet
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.closing import is_closed
from airflow_provider_spotbatch.control.decide import PLAN_SECONDS
from airflow_provider_spotbatch.control.find_run import numbered_folders
from airflow_provider_spotbatch.control.site import Site, boot_for, read_run, read_spec
from airflow_provider_spotbatch.control.store_time import store_ahead
from airflow_provider_spotbatch.control.wording import machines
from airflow_provider_spotbatch.job.errors import (
    CloudUnavailable,
    Refusal,
    SpotBatchError,
    StoreUnavailable,
    Throttled,
)
from airflow_provider_spotbatch.job.keys import Generation, Run, job_prefix, launch_entry
from airflow_provider_spotbatch.job.launches import TERMINATED, LaunchRecord

PAUSE_SECONDS = 0.5

Say = Callable[[str], None]


async def cancel(
    site: Site, run: Run, reason: str, say: Say, *, deadline: float = 90.0, retryable: bool = True
) -> bool:
    """End the run's machines and see them gone, within ``deadline`` seconds; True once seen.

    Harmless when repeated, and for a run that is over. Nothing can be launched for it afterwards.
    ``retryable`` False: a task that waits for the run fails for good, and Airflow does not retry it.
    Raises StoreUnavailable where the store cannot be told; the machines are asked to end all the same.
    """
    try:
        if await write_cancel(site.store, run, reason, site.wall_clock(), retryable=retryable):
            say(f"cancelling run {run.tag}: {reason}")
        spec, record = await read_spec(site, run.generation), await read_run(site, run)
        if spec is None or record is None:
            return True
        await close_launches(site, run)
        fleet = site.backend.fleet(run, await boot_for(site, run, spec, record))
    except StoreUnavailable:
        await _end_what_carries_the_tag(site, run, say)
        raise
    return await end_machines(site, run, fleet, say, deadline=deadline)


async def machines_left(site: Site, run: Run) -> list[str]:
    """Ids of the machines that carry the run's tag and are not terminated, in order."""
    return sorted(
        machine.instance.id
        for machine in await site.backend.machines()
        if machine.run == run.tag and machine.instance.state != TERMINATED
    )


async def _end_what_carries_the_tag(site: Site, run: Run, say: Say) -> None:
    """Ask once for the end of the run's machines, as far as can be without the store."""
    left = await machines_left(site, run)
    if left:
        say(f"the store cannot be told that run {run.tag} ends; ending {machines(left)}")
        await site.backend.terminate(left)


async def write_cancel(store: Store, run: Run, reason: str, now: float, *, retryable: bool) -> bool:
    """Tell the run's machines and its controller to end; False where that was told before.

    Machines look for it every 10 s and end by themselves.
    """
    body = {"format": 1, "reason": reason, "at": now, "retryable": retryable}
    return await store.create(run.cancel, json.dumps(body).encode())


async def allows_retry(store: Store, run: Run) -> bool:
    """Whether Airflow may retry the task of a cancelled run."""
    data = await store.read(run.cancel)
    return data is None or bool(json.loads(data).get("retryable", True))


async def unfinished_runs(store: Store, job: str) -> list[Run]:
    """The runs of the job that have begun and have no outcome, in order."""
    found = []
    for number, _ in await numbered_folders(store, job_prefix(job)):
        generation = Generation(job, number)
        for own, _ in await numbered_folders(store, generation.runs):
            run = Run(generation, own)
            begun = await store.exists(run.run) and not await is_closed(store, run)
            if begun and not await store.exists(run.outcome):
                found.append(run)
    return found


async def close_launches(site: Site, run: Run) -> None:
    """Make the next launch name a closed one, so that no controller of the run can launch any more."""
    for _ in range(1000):
        entries = await site.store.list_objects(run.launches)
        last = max((launch_entry(entry.name)[0] for entry in entries), default=0)
        if last:
            data = await site.store.read(run.launch(last))
            if data is not None and LaunchRecord.from_bytes(data).closed:
                return
        closing = LaunchRecord(number=last + 1, closed=True, reason="the run was cancelled")
        await site.store.create(run.launch(last + 1), closing.to_bytes())


async def end_machines(site: Site, run: Run, fleet: Fleet, say: Say, *, deadline: float) -> bool:
    """Terminate until every machine is seen gone, and none that was asked for can still appear.

    The launch log is closed by now. A machine can appear until the visibility bound after its launch's
    answer; a record without an answer may belong to a controller that was stopped just before its call,
    which can be made until its plan is too old.
    """
    began = site.clock()
    told: set[str] = set()
    ahead: float | None = None
    while True:
        try:
            looked = site.clock()
            left = [machine.id for machine in await fleet.describe() if machine.state != TERMINATED]
            if left:
                if not told.issuperset(left):
                    say(f"ending {machines(left)}")
                    told.update(left)
                await fleet.terminate(left)
            else:
                ahead = await store_ahead(site, run) if ahead is None else ahead
                if looked - ahead >= await _settled_at(site, run, fleet.visibility_bound):
                    await _close(fleet, say)
                    return True
        except (Throttled, StoreUnavailable, CloudUnavailable):
            pass  # looked at again after the pause
        except Refusal as refusal:
            if not await _was_any_asked_for(site, run):
                return True
            say(f"ERROR: machines could not be ended and may cost money: {refusal}")
            if refusal.fatal:
                return False  # waiting cures nothing; they end by their own limits
        if site.clock() - began > deadline:
            return False
        await asyncio.sleep(PAUSE_SECONDS)


async def _was_any_asked_for(site: Site, run: Run) -> bool:
    """Whether the launch log holds more than the record that closed it."""
    return len(await site.store.list_objects(run.launches)) > 1


async def _close(fleet: Fleet, say: Say) -> None:
    """What served to launch costs nothing: a sweep removes it where this fails."""
    try:
        await fleet.close()
    except SpotBatchError as error:
        say(f"what served to launch machines could not be removed: {error}")


async def _settled_at(site: Site, run: Run, bound: float) -> float:
    """When no machine can appear any more, in the store's time: of the answers, and of the record that
    closed the launch log."""
    written = {entry.name: entry.modified for entry in await site.store.list_objects(run.launches)}
    numbers = sorted(number for number, kind in map(launch_entry, written) if kind == "json")
    closed_at = written[run.launch(numbers.pop())]
    answered = [written.get(run.launch_result(number), closed_at + PLAN_SECONDS) for number in numbers]
    return max(answered) + bound if answered else closed_at
