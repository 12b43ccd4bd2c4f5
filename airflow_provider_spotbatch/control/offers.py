"""Which offer the next launch asks for, and how many machines of it. Pure functions of the snapshot.

Whole machines of the best offer first, the remainder from a smaller one in a later record. After a
refusal an offer rests while the next ones are tried; then its turn comes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.budget import affordable
from airflow_provider_spotbatch.control.snapshot import LaunchView, Snapshot
from airflow_provider_spotbatch.job.errors import QuotaExceeded, Refusal, Throttled
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, SPOT_THEN_ON_DEMAND

REST_SECONDS = 5.0
REST_SECONDS_MOST = 300.0
"""An offer rests 5 s after a refusal, doubled each time up to 5 min, with jitter: capacity comes back in
minutes, and each attempt is a call that the cloud counts."""

SPOT_WAIT_SECONDS = 300.0
"""For so long spot machines must have been refused before ``spot-then-on-demand`` buys others."""

INTERRUPTIONS = 3
INTERRUPTED_SHARE = 0.25
"""So many of the spot machines, and such a share of them, must have been interrupted before it prefers
others: three are no accident, a quarter means that much of what is paid for is run again."""


def choose_machines(seen: Snapshot, memory_class: int, missing: int) -> tuple[Offer, tuple[int, ...]] | None:
    """The offer to ask for now and the slots of each machine, all the same; None if nothing may be had.

    ``missing``: slots to add at most.
    """
    to_be_had = [
        (offer, room)
        for offer in _in_order(seen, memory_class)
        if not _rests(seen, memory_class, offer) and (room := _room(seen, memory_class, offer)) > 0
    ]
    for offer, room in to_be_had:
        if offer.slots <= missing:
            return offer, (offer.slots,) * min(missing // offer.slots, room)
    if not to_be_had:
        return None
    smallest, _ = min(to_be_had, key=lambda each: each[0].slots)  # the best of equals: they are in order
    return (smallest, (missing,)) if _worth_it(seen, memory_class, smallest, missing) else None


def room_for(seen: Snapshot, memory_class: int) -> int:
    """Slots that the limits leave for machines of a memory class, whether or not these may be had now."""
    return max(
        (_room(seen, memory_class, offer) * offer.slots for offer in _in_order(seen, memory_class)), default=0
    )


def _worth_it(seen: Snapshot, memory_class: int, offer: Offer, missing: int) -> bool:
    """Whether to use only a part of a machine. Less than half of one is bought only where no smaller one
    exists, resting or not, or nothing else is at work."""
    smaller = any(other.slots < offer.slots for other in _in_order(seen, memory_class))
    at_work = any(not machine.ended for machine in seen.machines if machine.memory_class == memory_class)
    return 2 * missing >= offer.slots or not smaller or not at_work


def in_words(offer: Offer) -> str:
    """An offer in the words of the log."""
    if not offer.types:
        return offer.name
    others = len(offer.types) - 1
    return f"{offer.purchase}: {offer.types[0]}" + (f" or one of {others} other types" if others else "")


def is_hopeless(seen: Snapshot, view: LaunchView, refusal: Refusal) -> bool:
    """Whether waiting cannot cure a refusal, nor can another way of buying machines, and none are at work."""
    if not refusal.fatal or _goes_on(seen, view):
        return False
    if not isinstance(refusal, QuotaExceeded):
        return True
    memory_class = view.record.memory_class
    return set(_purchases(seen, memory_class)) <= _below_quota(seen, memory_class)


def _goes_on(seen: Snapshot, refused: LaunchView) -> bool:
    """Whether machines for the same items are at work, or were given since: what one launch was refused for
    good ends no work."""
    memory_class, number = refused.record.memory_class, refused.record.number
    at_work = any(not machine.ended for machine in seen.machines if machine.memory_class == memory_class)
    return at_work or any(
        view.outcome is not None and view.outcome.instances and view.record.number > number
        for view in _newest_first(seen, memory_class)
    )


def _in_order(seen: Snapshot, memory_class: int) -> Sequence[Offer]:
    """The offers that may be asked for, the first to be tried first."""
    below_quota = _below_quota(seen, memory_class)
    offers = [offer for offer in seen.offers.get(memory_class, ()) if offer.purchase not in below_quota]
    if seen.policy.purchase != SPOT_THEN_ON_DEMAND:
        return offers
    spot = [offer for offer in offers if offer.purchase == SPOT]
    on_demand = [offer for offer in offers if offer.purchase == ON_DEMAND]
    if often_interrupted(seen):
        return [*on_demand, *spot]
    if not spot or _spot_refused_seconds(seen, memory_class) >= SPOT_WAIT_SECONDS:
        return [*spot, *on_demand]
    return spot


def often_interrupted(seen: Snapshot) -> bool:
    """Whether too many of the run's spot machines were taken back to go on with them."""
    bought_as = {view.record.number: view.record.purchase for view in seen.launches}
    spot = [machine for machine in seen.machines if bought_as.get(machine.launch) == SPOT]
    interrupted = sum(machine.interrupted for machine in spot)
    return interrupted >= max(INTERRUPTIONS, INTERRUPTED_SHARE * len(spot))


def _spot_refused_seconds(seen: Snapshot, memory_class: int) -> float:
    """For how long every request for spot machines has been refused."""
    since = 0.0
    for view in _newest_first(seen, memory_class):
        if view.record.purchase != SPOT:
            continue
        if view.outcome is None or view.outcome.instances:
            break
        since = view.answer_age
    return since


def _purchases(seen: Snapshot, memory_class: int) -> Iterator[str]:
    return (offer.purchase for offer in seen.offers.get(memory_class, ()))


def _below_quota(seen: Snapshot, memory_class: int) -> set[str]:
    """Ways of buying for which the quota is below one machine."""
    return {
        view.record.purchase
        for view in _newest_first(seen, memory_class)
        for refusal in (view.outcome.refusals if view.outcome else ())
        if isinstance(refusal, QuotaExceeded) and refusal.fatal
    }


def _rests(seen: Snapshot, memory_class: int, offer: Offer) -> bool:
    """Whether it was refused too recently. Who is throttled leaves all offers alone for a while."""
    refused = 0
    last: LaunchView | None = None
    for view in reversed(seen.launches):
        refusals = view.outcome.refusals if view.outcome else ()
        throttled = any(isinstance(refusal, Throttled) for refusal in refusals)
        of_offer = (view.record.memory_class, view.record.offer) == (memory_class, offer.name)
        if not of_offer and not throttled:
            continue
        if not refusals:
            break
        last = last or view
        refused += 1
        if view.outcome and view.outcome.instances:
            break
    if last is None:
        return False
    rest = min(REST_SECONDS_MOST, REST_SECONDS * 2.0 ** (refused - 1)) * (0.5 + seen.jitter)
    return last.answer_age < rest


def _newest_first(seen: Snapshot, memory_class: int) -> Iterator[LaunchView]:
    return (view for view in reversed(seen.launches) if view.record.memory_class == memory_class)


def _room(seen: Snapshot, memory_class: int, offer: Offer) -> int:
    """Machines of an offer that limits leave room for: the offer's own, and the connection's limits of
    machines and of dollars per hour, and the budget, which hold over machines of all sizes of memory."""
    alive = [machine for machine in seen.machines if not machine.ended]
    room = offer.most - sum(machine.memory_class == memory_class for machine in alive)
    if seen.max_instances is not None:
        room = min(room, seen.max_instances - len(alive))
    if seen.max_usd_per_hour is not None and offer.usd_per_hour > 0:
        burn = math.fsum(machine.usd_per_hour for machine in alive)
        room = min(room, math.floor((seen.max_usd_per_hour - burn) / offer.usd_per_hour + 1e-9))
    return int(min(room, affordable(seen, offer)))
