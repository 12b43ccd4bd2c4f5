"""The last step of a run, in the worker: nothing is running any more, now its index and outcome are
written. Whoever comes second takes what is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_spotbatch.control.accounting import spending_line, spending_of
from airflow_provider_spotbatch.control.advice import use_of
from airflow_provider_spotbatch.control.cancel import allows_retry, close_launches, end_machines
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.metrics import SILENT, Metrics
from airflow_provider_spotbatch.control.narrate import use_lines
from airflow_provider_spotbatch.control.observe import AT_ONCE, Observer
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.control.snapshot import Snapshot
from airflow_provider_spotbatch.job.index import encode_index
from airflow_provider_spotbatch.job.keys import ChunkId, Run
from airflow_provider_spotbatch.job.run_outcome import CANCELLED, FAILED, SUCCEEDED, Outcome

GONE_SECONDS = 900.0
"""How long the end waits for machines to be seen gone; then the task fails and names them."""

SHOWN_GROUPS = 3


async def finish(site: Site, run: Run, say: Callable[[str], None], metrics: Metrics = SILENT) -> Outcome:
    """Write the run's index and outcome and remove its queues; the outcome that stands.

    Safe to repeat and to run twice at once. Ends machines that are left.
    """
    signer = site.signer(run.generation)
    stored = await site.store.read(run.outcome)
    if stored is not None:
        return await asyncio.to_thread(Outcome.from_bytes, signer, run.number, stored)
    controller = Controller(site, run, say, metrics)
    observer = await controller.open(to_launch=False)
    await close_launches(site, run)
    gone = await end_machines(site, run, observer.fleet, say, deadline=GONE_SECONDS)
    seen = await take_everything(observer)
    await _write_index(site, run, observer)
    outcome = _outcome(observer, seen)
    if outcome.state == CANCELLED:
        outcome = replace(outcome, retryable=await allows_retry(site.store, run))
    if not gone:
        left = ", ".join(machine.id for machine in seen.machines if not machine.gone)
        outcome = replace(
            outcome,
            state=FAILED,
            message=f"machines could not be seen gone and may cost money: {left}. {outcome.message}",
        )
    launched = (view.record.memory_class for view in seen.launches)
    for memory_class in range(max(observer.most_memory_class, *launched, 0) + 1):
        await site.backend.queue(run, memory_class).delete()
    if outcome.state != CANCELLED:
        await _tell_use(observer, say)
    if outcome.cost_usd is not None:
        resumed = observer.spent_before > 0
        say(spending_line(outcome.cost_usd, outcome.ok, outcome.spending, resumed=resumed))
    # Last, since whoever finds an outcome has nothing left to do.
    if not await site.store.create(run.outcome, outcome.to_bytes(signer)):
        stored = await site.store.read(run.outcome)
        assert stored is not None
        return await asyncio.to_thread(Outcome.from_bytes, signer, run.number, stored)
    controller.metrics.finished(outcome)
    return outcome


async def _tell_use(observer: Observer, say: Callable[[str], None]) -> None:
    """What the items of all runs used, and what to ask for: told once, by whoever finishes."""
    use = await use_of(observer.site.store, observer.run.generation)
    for line in use_lines(use, observer.record.policy):
        say(line)


async def take_everything(observer: Observer) -> Snapshot:
    """Look once more, then take in results that are durable but that no report has told of."""
    await observer.look()
    still_open = [chunk.id for chunk, *_ in observer.ledger.open_chunks()]
    if still_open:
        generation = observer.run.generation
        entries = await observer.site.store.list_objects(generation.results)
        durable = {entry.name.rsplit("/", 1)[1] for entry in entries}
        await _read_heads(observer, [chunk for chunk in still_open if str(chunk) in durable])
    return await observer.look()


async def _read_heads(observer: Observer, chunks: list[ChunkId]) -> None:
    for start in range(0, len(chunks), AT_ONCE):
        for head in await asyncio.gather(
            *(observer.head(chunk) for chunk in chunks[start : start + AT_ONCE])
        ):
            if head is not None:
                await observer.take_head(head, observer.site.clock())


async def _write_index(site: Site, run: Run, observer: Observer) -> None:
    signer = site.signer(run.generation)

    def encoded() -> bytes:
        return b"".join(encode_index(signer, run.number, observer.ledger.records()))

    await site.store.create(run.index, await asyncio.to_thread(encoded))


def _outcome(observer: Observer, seen: Snapshot) -> Outcome:
    state, message, retryable = _verdict(observer, seen)
    counts = seen.counts
    generation = observer.run.generation
    return Outcome(
        state=state,
        message=message,
        retryable=retryable,
        job=generation.job,
        generation=generation.number,
        run=observer.run.number,
        items=counts.total,
        ok=counts.ok,
        failed=counts.failed,
        causes={cause: count for cause, count in sorted(observer.ledger.causes.items()) if count},
        started=observer.record.created,
        ended=observer.site.wall_clock(),
        cost_usd=observer.spent_usd or None,
        spending=spending_of(observer.machine_times()) if observer.spent_usd else None,
    )


def _verdict(observer: Observer, seen: Snapshot) -> tuple[str, str, bool]:
    counts = seen.counts
    done = f"{counts.ok} of {counts.total} items have a result and keep it"
    allowed = seen.policy.failures_allowed(counts.total)
    if counts.open == 0 and counts.failed <= allowed:
        return SUCCEEDED, f"{counts.ok} of {counts.total} items succeeded", True
    if seen.stop is not None:
        return FAILED, f"{seen.stop.message}. {done}.{_groups(observer)}", seen.stop.retryable
    if seen.cancelled is not None and counts.open:
        return CANCELLED, f"the run was cancelled: {seen.cancelled}. {done}.", True
    if counts.open:
        return FAILED, f"the run ended with {counts.open} items to do. {done}.", True
    message = (
        f"{counts.failed} of {counts.total} items failed, more than max_failures allows ({allowed:g}). "
        f"{done}; an Airflow retry runs only the others.{_groups(observer)}"
    )
    return FAILED, message, True


def _groups(observer: Observer) -> str:
    """The commonest errors of the failed attempts, for the message."""
    groups = Counter(failure.label for failure in observer.failures)
    if not groups:
        return ""
    shown = "; ".join(f"{count} × {label}" for label, count in groups.most_common(SHOWN_GROUPS))
    return f" Failed attempts: {shown}"


async def outcome_of(site: Site, run: Run) -> Outcome | None:
    """The stored outcome of a run, or None while it has none."""
    stored = await site.store.read(run.outcome)
    if stored is None:
        return None
    return Outcome.from_bytes(site.signer(run.generation), run.number, stored)
