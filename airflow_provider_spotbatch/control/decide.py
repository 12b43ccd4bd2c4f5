"""The decision: a snapshot in, a plan out. No clock, no randomness, no I/O.

Each rule below is one function that returns actions; the order in :func:`decide` is the order in
which they are carried out: what is durable first, what ends machines before what starts them, and work
before the machines for it, so that none is started where no work can be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.budget import least_usd, left_usd, lifetime_seconds
from airflow_provider_spotbatch.control.offers import (
    choose_machines,
    in_words,
    is_hopeless,
    often_interrupted,
    room_for,
)
from airflow_provider_spotbatch.control.plan import (
    Action,
    CloseChunk,
    CloseLaunches,
    Launch,
    Plan,
    RecordLoss,
    RecordStop,
    Send,
    Terminate,
    WriteControl,
)
from airflow_provider_spotbatch.control.sizing import (
    CHUNK_SECONDS,
    CHUNK_SECONDS_LEAST,
    CHUNK_SECONDS_MOST,
    CHUNKS_AT_ONCE,
    chunk_sizes,
    items_at_most,
    seconds_ahead,
)
from airflow_provider_spotbatch.control.snapshot import LaunchView, Machine, Retry, Snapshot, Stop
from airflow_provider_spotbatch.control.wording import some
from airflow_provider_spotbatch.job.chunks import FRESH, RESEND, RETRY, Batch, Chunk, ranges_of
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import (
    CHUNK_LOSSES,
    MAX_LOSSES,
    ON_DEMAND,
    SPOT_THEN_ON_DEMAND,
)

PLAN_SECONDS = 60.0
"""A plan older than this is not acted on, so that a controller that woke late does no harm."""

LAUNCH_REPEAT_SECONDS = 1800.0
"""A launch call is never repeated later than this after its record; its machines are then strays."""

SILENT_LEASES = 3.0
"""Leases without a new report after which a machine is ended and replaced: its work went back to the
queue after one, so waiting longer costs only an idle slot, ending sooner a working machine."""

BOOT_SECONDS = 600.0
"""How long a machine may take from its launch to its first report."""

ENDED_SECONDS = 30.0
"""How long a machine may take from its agent's last report to being gone, before it is ended."""

CHUNKS_PER_LOSS = 4
"""Chunks that a slot should finish between two losses: a machine that vanishes takes half a chunk with
it on average, here an eighth of the work."""

BOOT_FAILURES = 3
"""Machines in a row that never worked before the job is stopped: the fourth would not either."""

GONE_SECONDS = 900.0
"""How long the end waits for machines to be seen gone before the job fails and names them."""

CONTROL_SECONDS = 10.0
"""Age at which ``control.json`` is rewritten though nothing changed: agents wait far longer."""

YOUNG_SECONDS = 60.0
"""For so long a run is looked at as often as its events come, however old it is by then."""

PAUSE_SHARE = 20.0
"""What the pause between two looks is a share of: a twentieth delays a job by 2.5 % on average."""

BOOT_SHARE = 10.0
"""The same before any machine has reported: there is nothing to do but to wait, and many jobs may."""

BOOTING_PAUSE = 2.0
"""The longest pause while a machine boots that was asked for just now: its first report sizes chunks."""


def decide(seen: Snapshot) -> Plan:
    """What to do now, and when to look again."""
    stop = seen.stop or _why_stop(seen)
    actions: list[Action] = []
    if stop is not None and seen.stop is None:
        actions.append(RecordStop(stop, f"stopping the job: {stop.message}"))
    if _finished(seen, stop):
        return _wind_up(seen, actions)
    actions += _losses(seen)
    actions += _close_hopeless(seen)
    actions += _end_machines(seen)
    if seen.cancelled is None and stop is None:
        actions += _make_room(seen)
        sends = list(_send(seen))
        actions += sends
        actions += _resend(seen, seen.next_batch + len(sends))
        actions += _complete_launches(seen)
        launches = list(_launch(seen))
        actions += _tell_of_burn(seen, launches)
        actions += launches
    if not any(isinstance(action, WriteControl) for action in actions):
        actions += _tell_agents(seen, draining=stop is not None)
    return Plan(tuple(actions), _pause(seen))


# --- when to stop -------------------------------------------------------------------------------


def _why_stop(seen: Snapshot) -> Stop | None:
    policy, counts = seen.policy, seen.counts
    if counts.open == 0 or seen.cancelled is not None:
        return None
    for view in seen.launches:
        for refusal in view.outcome.refusals if view.outcome else ():
            if is_hopeless(seen, view, refusal):
                cure = f" {refusal.remedy}" if refusal.remedy else ""
                return Stop("refused", f"{refusal.message}.{cure}", retryable=False)
    if (
        policy.early_stop is not None
        and seen.outcomes >= policy.early_stop
        and seen.only_error is not None
        and counts.ok == 0
    ):
        return Stop(
            "early_stop",
            f"the first {seen.outcomes} outcomes were all {seen.only_error} and no item succeeded: "
            "the function seems broken, not the data (early_stop)",
        )
    allowed = policy.failures_allowed(counts.total)
    if policy.on_item_error == "stop" and counts.failed > allowed:
        return Stop(
            "max_failures",
            f"{some(counts.failed, 'item')} failed, more than max_failures allows ({allowed:g})",
            drain=True,
        )
    if seen.run_age > policy.max_runtime:
        waited = _refusal_text(seen)
        return Stop(
            "max_runtime",
            f"max_runtime ({policy.max_runtime:g} s) is over with {some(counts.open, 'item')} to do{waited}",
        )
    return _budget_is_spent(seen) or _too_dear(seen) or _boot_failures(seen)


def _budget_is_spent(seen: Snapshot) -> Stop | None:
    """Also where nothing is at work and what is left would end the cheapest machine as it boots."""
    if seen.budget_usd is None:
        return None
    left, least = left_usd(seen), least_usd(_cheapest_to_start(seen) or 0.0)
    if left > 0 and left >= least:
        return None
    how = f"is spent (${seen.spent_usd:.4f} by our reckoning"
    how += "; what is left pays for no machine's boot)" if left > 0 else ")"
    if not seen.spent_usd:
        how = f"pays for no machine: a minute of the cheapest may cost ${least:.4f},"
    told = f"the budget of ${seen.budget_usd:g} {how} with {some(seen.counts.open, 'item')} to do"
    return Stop("budget", told, retryable=False)


def _cheapest_to_start(seen: Snapshot) -> float | None:
    """Where nothing is at work: dollars an hour of the cheapest machine that what waits may run on."""
    if any(not machine.ended for machine in seen.machines):
        return None
    wanted = [number for number, offers in seen.offers.items() if offers and _wanted_slots(seen, number) > 0]
    return min((offer.usd_per_hour for number in wanted for offer in seen.offers[number]), default=None)


def _too_dear(seen: Snapshot) -> Stop | None:
    """Where nothing is at work and what waits cannot be had within the hourly limit."""
    limit, cheapest = seen.max_usd_per_hour, _cheapest_to_start(seen)
    if limit is None or cheapest is None or cheapest <= limit:
        return None
    return Stop(
        "limit",
        f"the cheapest machine may cost ${cheapest:.4g} an hour, more than the connection's "
        f"max_usd_per_hour ({limit:g}) allows: raise it, or ask for less in item_resources",
        retryable=False,
    )


def _refusal_text(seen: Snapshot) -> str:
    last = max(seen.launches, key=lambda view: view.record.number, default=None)
    if last is None or last.outcome is None or not last.outcome.refusals:
        return ""
    refusal = last.outcome.refusals[-1]
    return f"; the last launch was refused: {refusal.message} {refusal.remedy}".rstrip()


def _boot_failures(seen: Snapshot) -> Stop | None:
    tried = sorted((m for m in seen.machines if m.ended or m.booted), key=lambda m: (m.launch, m.id))
    failed: list[Machine] = []
    for machine in reversed(tried):
        if machine.booted or machine.interrupted:
            break
        failed.append(machine)
    if len(failed) < BOOT_FAILURES:
        return None
    log = next((m.boot_log or m.reason for m in failed if m.boot_log or m.reason), "it left no log")
    told = f"{len(failed)} machines in a row ended before they ran an item. The last said: {log}"
    if not any(m.reported for m in failed):
        told += (
            "\nNone of them wrote a report: unless this says why, see that machines have a way to the store, "
            f"and the right to write there; the console of {failed[0].id} tells more"
        )
    return Stop("boot", told)


# --- the end ------------------------------------------------------------------------------------


def _finished(seen: Snapshot, stop: Stop | None) -> bool:
    """Whether nothing more is to be run: only machines are left to be ended.

    Whoever closed the launch log knew the end of every item, though we may have missed some.
    """
    if seen.counts.open == 0 or seen.cancelled is not None or seen.closed:
        return True
    if stop is None:
        return False
    if not stop.drain:
        return True
    return not any(machine.held and not machine.ended for machine in seen.machines)


def _wind_up(seen: Snapshot, actions: list[Action]) -> Plan:
    """End every machine, close the launch log, and wait until all are seen gone."""
    if not seen.closed:
        actions.append(
            CloseLaunches(
                LaunchRecord(number=seen.next_launch, closed=True, reason="the run ends"),
                "nothing more is to be launched",
            )
        )
    left = tuple(m.id for m in seen.machines if not m.gone)
    if left:
        actions.append(Terminate(left, "all work is done" if seen.counts.open == 0 else "the run ends"))
    unsettled = [view for view in seen.launches if not _settled(seen, view)]
    if seen.closed and not left and not unsettled and seen.fleet_seen:
        return Plan(tuple(actions), 0.0, over=True)
    closing = next((view.age for view in seen.launches if view.record.closed), 0.0)
    if closing > GONE_SECONDS:
        return Plan(
            tuple(actions),
            0.0,
            over=True,
            stuck=left or tuple(f"launch {v.record.number}" for v in unsettled),
        )
    return Plan(tuple(actions), seen.tick_seconds)


def _settled(seen: Snapshot, view: LaunchView) -> bool:
    """Whether no machine of this record can appear any more."""
    if view.record.closed:
        return True
    if view.outcome is not None:
        return view.answer_age >= seen.visibility_bound
    # Its call may still be made by a controller that was stopped in between: its plan dies first.
    return view.asked_age >= PLAN_SECONDS + seen.visibility_bound


# --- machines and their losses ------------------------------------------------------------------


def _losses(seen: Snapshot) -> Iterator[Action]:
    for machine in seen.machines:
        if machine.ended and machine.held and not machine.loss_recorded:
            cause = "interrupted" if machine.interrupted else "lost"
            held = some(len(machine.held), "chunk")
            yield RecordLoss(
                machine.id,
                cause,
                machine.held,
                f"machine {machine.id} was {cause} with {held} in hand: sent again",
            )


def _close_hopeless(seen: Snapshot) -> Iterator[Action]:
    longest = max(CHUNK_SECONDS_LEAST, _longest_chunk(seen))
    for view in seen.open_chunks:
        if view.held or not view.losses:
            continue
        chunk = view.chunk
        if chunk.count == 1:
            if view.item_losses >= MAX_LOSSES:
                yield CloseChunk(
                    chunk,
                    f"item {chunk.ranges[0][0]} was lost or interrupted {view.item_losses} times: given up",
                )
        elif view.losses >= CHUNK_LOSSES:
            yield CloseChunk(
                chunk, f"chunk {chunk.id} was lost {view.losses} times: its items now travel singly"
            )
        elif chunk.count * seen.pace.seconds > longest:
            yield CloseChunk(
                chunk,
                f"chunk {chunk.id} was lost and would take {chunk.count * seen.pace.seconds:.0f} s, too long "
                "for how often machines vanish: its items now travel singly",
            )


def _end_machines(seen: Snapshot) -> Iterator[Action]:
    silent_after = SILENT_LEASES * seen.lease
    ages = {view.record.number: view.age for view in seen.launches}
    for machine in seen.machines:
        if machine.gone:
            continue
        if machine.launch not in ages:
            yield Terminate((machine.id,), f"machine {machine.id} belongs to no launch of this run")
        elif _is_stray(seen, machine):
            yield Terminate((machine.id,), f"machine {machine.id} came too late, or not with the answer")
        elif machine.reported == "ended":
            if machine.silent > ENDED_SECONDS:
                yield Terminate((machine.id,), f"machine {machine.id} did not power off by itself")
        elif machine.reported and machine.silent > silent_after:
            yield Terminate(
                (machine.id,),
                f"machine {machine.id} has been silent for {machine.silent:.0f} s: ended, then replaced",
            )
        elif not machine.reported and machine.silent > BOOT_SECONDS:
            yield Terminate((machine.id,), f"machine {machine.id} did not report within {BOOT_SECONDS:.0f} s")


def _is_stray(seen: Snapshot, machine: Machine) -> bool:
    """Whether it comes from a call that was repeated, or answered, too late to be counted on."""
    view = next(view for view in seen.launches if view.record.number == machine.launch)
    if view.outcome is None:
        return view.age > LAUNCH_REPEAT_SECONDS
    return machine.id not in {instance.id for instance in view.outcome.instances}


# --- launching ----------------------------------------------------------------------------------


def _make_room(seen: Snapshot) -> Iterator[Action]:
    """End machines of a memory class with no work left where another class has too little room: their
    slots and their place below the limits would else be taken until they had idled away their time."""
    spare = [
        machine
        for machine in seen.machines
        if machine.reported == "running"
        and not (machine.ended or machine.held or _unheld(seen, machine.memory_class))
    ]
    for memory_class, offers in sorted(seen.offers.items()):
        missing = _wanted_slots(seen, memory_class) - counted_slots(seen, memory_class)
        if missing <= 0 or not offers:
            continue
        room = min(missing, seen.concurrency - counted_slots(seen))
        missing -= max(0, min(room, room_for(seen, memory_class)))
        while missing > 0 and spare:
            machine = spare.pop()
            missing -= machine.slots
            yield Terminate((machine.id,), "making room for items that need another amount of memory")


def _complete_launches(seen: Snapshot) -> Iterator[Action]:
    """Ask again for what has no answer, once whoever asked last can no longer be about to: only one
    controller at a time may ask, since a second call may give what the first was refused."""
    for view in seen.launches:
        if _awaited(seen, view) and view.asked_age > PLAN_SECONDS and view.age <= LAUNCH_REPEAT_SECONDS:
            reason = f"launch {view.record.number} has no answer yet: asked again"
            yield Launch(view.record, reason, asking=view.asked + 1)


def _awaited(seen: Snapshot, view: LaunchView) -> bool:
    """Whether machines of a record without an answer may still appear and be counted on."""
    bound = LAUNCH_REPEAT_SECONDS + PLAN_SECONDS + seen.visibility_bound
    return view.outcome is None and not view.record.closed and view.age <= bound


def counted_slots(seen: Snapshot, memory_class: int | None = None) -> int:
    """Slots that may be in use or come into use: machines that have not ended, and unanswered records."""
    machines = sum(m.slots for m in seen.machines if not m.ended and memory_class in (None, m.memory_class))
    listed: dict[int, int] = {}
    for machine in seen.machines:
        listed[machine.launch] = listed.get(machine.launch, 0) + 1
    unanswered = sum(
        sum(view.record.slots[listed.get(view.record.number, 0) :])
        for view in seen.launches
        if _awaited(seen, view) and memory_class in (None, view.record.memory_class)
    )
    return machines + unanswered


def _launch(seen: Snapshot) -> Iterator[Launch]:
    if seen.closed or any(_awaited(seen, view) for view in seen.launches):
        return  # one launch at a time: the next needs the answer of the last
    free = seen.concurrency - counted_slots(seen)
    missing_of = {each: _missing_slots(seen, each, free) for each in sorted(seen.offers)}
    for memory_class, missing in missing_of.items():
        chosen = choose_machines(seen, memory_class, missing) if missing > 0 else None
        if chosen is None:
            continue
        offer, slots = chosen
        record = LaunchRecord(
            number=seen.next_launch,
            memory_class=memory_class,
            slots=slots,
            token=f"{seen.run}-{seen.next_launch}",
            purchase=offer.purchase,
            request={**(offer.request or {}), "usd_per_hour": offer.usd_per_hour, "offer": offer.name},
            reason=_launch_reason(seen, memory_class, offer, slots),
            lifetime_seconds=lifetime_seconds(seen, offer, slots, _to_be_had(seen, missing_of)),
        )
        yield Launch(record, record.reason)
        return  # the others in the next tick: a record's name depends on the one before


def _missing_slots(seen: Snapshot, memory_class: int, free: int) -> int:
    return max(0, min(_wanted_slots(seen, memory_class) - counted_slots(seen, memory_class), free))


def _to_be_had(seen: Snapshot, missing_of: dict[int, int]) -> int:
    """Of the missing slots of all memory classes those that the limits leave room for."""
    return sum(min(missing, room_for(seen, each)) for each, missing in missing_of.items())


def _wanted_slots(seen: Snapshot, memory_class: int) -> int:
    """Slots that have something to do: those at work, and one per item that nobody holds."""
    busy = sum(
        min(len(m.held), m.slots) for m in seen.machines if m.memory_class == memory_class and not m.ended
    )
    return busy + _unheld(seen, memory_class)


def _unheld(seen: Snapshot, memory_class: int) -> int:
    """Items to be run that no machine has in hand."""
    return seen.unsent.get(memory_class, 0) + sum(
        view.chunk.count
        for view in seen.open_chunks
        if view.chunk.memory_class == memory_class and not view.held
    )


def _launch_reason(seen: Snapshot, memory_class: int, offer: Offer, slots: tuple[int, ...]) -> str:
    ended = sum(1 for machine in seen.machines if machine.ended)
    why = f"{some(seen.counts.open, 'item')} to do"
    if ended:
        why += f", {some(ended, 'machine')} ended"
    if offer.purchase == ON_DEMAND and seen.policy.purchase == SPOT_THEN_ON_DEMAND:
        why += ", spot machines were " + ("interrupted too often" if often_interrupted(seen) else "refused")
    more = f" with {2**memory_class} × the memory" if memory_class else ""
    machines = f"{len(slots)} machines" if len(slots) > 1 else "a machine"
    return f"starting {machines} with {some(sum(slots), 'slot')} in all{more} ({in_words(offer)}): {why}"


# --- sending ------------------------------------------------------------------------------------


def _send(seen: Snapshot) -> Iterator[Action]:
    """Retries that are due, then fresh items up to the high mark."""
    number = seen.next_batch
    by_class: dict[int, list[Retry]] = {}
    for retry in seen.due:
        by_class.setdefault(retry.memory_class, []).append(retry)
    for memory_class, retries in sorted(by_class.items()):
        chunks = tuple(_retry_chunks(seen, number, memory_class, retries))
        yield Send(
            Batch(number, RETRY, chunks),
            memory_class,
            f"{some(len(retries), 'item')} sent again in {some(len(chunks), 'chunk')}",
        )
        number += 1
    fresh = tuple(_fresh_chunks(seen, number))
    if fresh:
        items = sum(chunk.count for chunk in fresh)
        yield Send(
            Batch(number, FRESH, fresh), 0, f"{some(items, 'item')} sent in {some(len(fresh), 'chunk')}"
        )


def _retry_chunks(seen: Snapshot, batch: int, memory_class: int, retries: list[Retry]) -> Iterator[Chunk]:
    groups: list[list[int]] = []
    attempts: list[int] = []
    most = _retry_size(seen)
    for retry in sorted(retries, key=lambda retry: (retry.attempt, retry.item)):
        fits = groups and attempts[-1] == retry.attempt and len(groups[-1]) < most and not retry.alone
        if fits:
            groups[-1].append(retry.item)
        else:
            groups.append([retry.item])
            attempts.append(retry.attempt)
    for place, (items, attempt) in enumerate(zip(groups, attempts, strict=True)):
        yield Chunk(ChunkId(seen.run, batch, place), ranges_of(items), attempt, memory_class)


def _retry_size(seen: Snapshot) -> int:
    """Items of a retry chunk: one until the pace is known, then as for fresh ones."""
    if not seen.pace.items:
        return 1
    sizes = chunk_sizes(
        len(seen.due),
        max(1, seen.concurrency),
        seen.pace,
        most=items_at_most(seen.pace, seen.item_bytes),
        ahead_seconds=0.0,
        seconds=0.0,
        chunks=1,
        longest=_longest_chunk(seen),
    )
    return next(sizes, 1)


def _longest_chunk(seen: Snapshot) -> float:
    """Seconds of work in one chunk at most: a failure is known, and an interruption costs, no more."""
    longest = CHUNK_SECONDS_MOST
    if seen.policy.on_item_error == "stop":
        longest = CHUNK_SECONDS  # a failure is known when its chunk ends, and is to stop the job soon
    losses = sum(machine.loss_recorded for machine in seen.machines)
    return longest if not losses else min(longest, seen.pace.busy_seconds / losses / CHUNKS_PER_LOSS)


def _fresh_chunks(seen: Snapshot, batch: int) -> Iterator[Chunk]:
    slots = max(1, min(seen.concurrency, seen.counts.open))
    # Chunks that wait for machines with more memory are no work for those that run fresh items.
    ahead_chunks = [view.chunk for view in seen.open_chunks if view.chunk.memory_class == 0]
    open_items = sum(chunk.count for chunk in ahead_chunks)
    if not seen.pace.items or _may_be_broken(seen):
        # Single items, two for every slot, so that none waits for this loop.
        sizes: Iterable[int] = [1] * min(seen.counts.waiting, max(0, 2 * slots - open_items))
    else:
        ahead = open_items * seen.pace.seconds / slots
        low, high = seconds_ahead(seen.policy.poll_interval)
        if ahead >= low and len(ahead_chunks) >= 2 * slots:
            return
        sizes = chunk_sizes(
            seen.counts.waiting,
            slots,
            seen.pace,
            most=items_at_most(seen.pace, seen.item_bytes),
            ahead_seconds=ahead,
            seconds=(high - ahead) * slots,
            chunks=2 * slots - len(ahead_chunks),
            longest=_longest_chunk(seen),
        )
    most = max(2 * slots - len(ahead_chunks), CHUNKS_AT_ONCE)
    yield from _cut(seen, batch, islice(sizes, most))


def _may_be_broken(seen: Snapshot) -> bool:
    """Whether only failures are known so far, and more of them would stop the job: no more is risked."""
    return seen.policy.early_stop is not None and seen.outcomes > 0 and seen.counts.ok == 0


def _cut(seen: Snapshot, batch: int, sizes: Iterable[int]) -> Iterator[Chunk]:
    """Chunks of these sizes from the fresh ranges, in item order."""
    ranges = list(reversed(seen.fresh))
    for place, size in enumerate(sizes):
        taken: list[tuple[int, int]] = []
        while size > 0 and ranges:
            start, stop = ranges.pop()
            end = min(stop, start + size)
            taken.append((start, end))
            size -= end - start
            if end < stop:
                ranges.append((end, stop))
        if not taken:
            return
        yield Chunk(ChunkId(seen.run, batch, place), tuple(taken))


def _resend(seen: Snapshot, number: int) -> Iterator[Action]:
    """Messages that the queue lost: old enough, held by nobody, and an idle agent sees the queue empty."""
    empty = _seen_empty(seen)
    lost_by_class: dict[int, list[Chunk]] = {}
    for view in seen.open_chunks:
        if not view.held and view.sent_age > 2 * seen.lease and view.chunk.memory_class in empty:
            lost_by_class.setdefault(view.chunk.memory_class, []).append(view.chunk)
    for memory_class, chunks in sorted(lost_by_class.items()):
        yield Send(
            Batch(number, RESEND, tuple(chunks)),
            memory_class,
            f"{some(len(chunks), 'chunk')} sent again: the queue seems to have lost them",
        )
        number += 1


def _seen_empty(seen: Snapshot) -> set[int]:
    """The memory classes whose queue an agent with a free slot has seen empty for a lease."""
    return {
        m.memory_class
        for m in seen.machines
        if not m.ended
        and m.reported == "running"
        and m.empty_seconds is not None
        and m.empty_seconds >= seen.lease
    }


# --- agents, and when to look again -------------------------------------------------------------


def _tell_agents(seen: Snapshot, *, draining: bool) -> Iterator[Action]:
    if seen.control_age is not None and seen.control_age < CONTROL_SECONDS and not draining:
        return
    yield WriteControl(_report_every(seen), _spend_for(seen, 0.0), draining, "control.json")


def _tell_of_burn(seen: Snapshot, launches: list[Launch]) -> Iterator[Action]:
    """Before more machines spend from the same budget, all are told how long it lasts then: the
    controller may be gone before its next look."""
    if seen.budget_usd is None or not launches:
        return
    more = sum(len(launch.record.slots) * launch.record.usd_per_hour for launch in launches)
    yield WriteControl(_report_every(seen), _spend_for(seen, more), False, "control.json before a launch")


def _spend_for(seen: Snapshot, more_usd_per_hour: float) -> float | None:
    """Seconds until the budget is gone at the present burn and what comes on top; None: no limit."""
    unseen = sum(
        len(view.record.slots) * view.record.usd_per_hour for view in seen.launches if _awaited(seen, view)
    )
    seen_now = sum(machine.usd_per_hour for machine in seen.machines if not machine.ended)
    burn = (seen_now + unseen + more_usd_per_hour) / 3600
    if seen.budget_usd is None or burn <= 0:
        return None
    return max(0.0, seen.budget_usd - seen.spent_usd) / burn


def _report_every(seen: Snapshot) -> float:
    """Seconds between reports: each is a storage request, so they stretch with the fleet up to 30 s."""
    machines = sum(1 for machine in seen.machines if not machine.ended)
    stretched = min(30.0, max(1.0, machines / 10))
    if seen.run_age < YOUNG_SECONDS or _nearly_done(seen):
        return max(seen.tick_seconds, min(stretched, 2.0))
    return max(seen.tick_seconds, stretched)


def _nearly_done(seen: Snapshot) -> bool:
    slots = max(1, seen.concurrency)
    return seen.counts.open * max(seen.pace.seconds, 1e-3) / slots < YOUNG_SECONDS


def _pause(seen: Snapshot) -> float:
    """Short while much changes: in a young run, and in one that is nearly done or stops. Else a share of
    the run's age, or of the time in which nothing changed: so what happens next, the end too, is noticed
    that much late at most. Never above ``poll_interval``."""
    lively = seen.run_age < YOUNG_SECONDS or _nearly_done(seen) or seen.stop is not None
    quiet = seen.quiet / (PAUSE_SHARE if any(machine.reported for machine in seen.machines) else BOOT_SHARE)
    pause = quiet if lively else seen.run_age / PAUSE_SHARE
    if any(machine.reported == "" and not machine.ended for machine in seen.machines):
        pause = min(pause, max(BOOTING_PAUSE, quiet))
    if seen.next_due is not None:
        pause = min(pause, seen.next_due)
    return max(seen.tick_seconds, min(seen.policy.poll_interval, pause))
