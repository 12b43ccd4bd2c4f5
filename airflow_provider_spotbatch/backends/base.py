"""The ports: what a cloud must be able to do. One implementation per backend, one conformance suite.

Every method is async and never blocks the event loop; every network call inside has a timeout and
its SDK's own bounded retries. Refusals are raised or returned as the verdicts of ``job.errors``;
nobody tells errors apart by their text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.launches import (
    Instance,
    LaunchOutcome,
    LaunchRecord,
)
from airflow_provider_spotbatch.job.policy import SPOT, Policy
from airflow_provider_spotbatch.job.resources import Resources


class Fleet(Protocol):
    """The machines of one run."""

    visibility_bound: float
    """Seconds after which a launched machine is surely in ``describe``: 0 where that is at once."""

    async def launch(self, record: LaunchRecord, within: float = math.inf) -> LaunchOutcome:
        """Ask for the record's machines, once: a repeated call with an equal record gives the same
        machines and starts no others. May be partial: machines and refusals. A refusal of the whole
        is an outcome without machines, not an exception. Raises only where nothing is known of the
        call's effect (time-out, broken connection): then the caller repeats it. ``within``: seconds after
        which the cloud is no longer asked, since by then others may count on that; it raises then too.
        """
        ...

    async def describe(self) -> list[Instance]:
        """The run's machines: all that may cost money, and the terminated for as long as the cloud
        remembers them. A fresh machine may be missing for ``visibility_bound``; an empty list is no
        proof before that. Raises :class:`Throttled` where it could not look.
        """
        ...

    async def terminate(self, instances: Sequence[str]) -> None:
        """Ask for the end of these machines. Harmless for those that are gone or unknown. Returning
        is no proof that they are gone: describe again. Raises a verdict if any could not be asked.
        """
        ...

    async def close(self) -> None:
        """Remove what served only to launch, once nothing more is launched. Harmless when repeated, and
        for a run that launched nothing. Raises a verdict if any of it is left."""
        ...


@dataclass(frozen=True)
class Lease:
    """A message that is ours until the lease ends. ``deliveries`` counts from 1 and is a hint."""

    receipt: str
    body: str
    deliveries: int


class Queue(Protocol):
    """At-least-once, unordered. It has no depth: clouds answer that late or roughly."""

    async def send(self, bodies: Sequence[str]) -> None:
        """Make the messages durable. After an error any part of them may have been sent: send all
        again, a doubled message is harmless. Creates the queue if need be, but never after
        :meth:`delete`: then it raises QueueGone.
        """
        ...

    async def receive(self, most: int, wait: float) -> list[Lease]:
        """Up to ``most`` messages, leased for the queue's lease time. Waits up to ``wait`` seconds
        for the first; empty means none was to be had in that time, not that none exists. A queue
        that was never created is an empty one. Raises QueueGone after :meth:`delete`.
        """
        ...

    async def extend(self, lease: Lease) -> None:
        """Renew the lease to its full time from now. Raises LeaseLost if it is no longer ours."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the message back, to be received at once by anybody. Harmless if no longer ours."""
        ...

    async def ack(self, lease: Lease) -> None:
        """Remove the message for good. Harmless if no longer ours: then it is removed or another's."""
        ...

    async def delete(self) -> None:
        """Remove the queue and its messages, for good. Harmless if it is gone or never was."""
        ...


@dataclass(frozen=True)
class Offer:
    """A kind of machine that can be had: how many items of the asked size it runs at once, its price.

    ``name`` is unique in its list and stays the same while prices move: launch records refer to it;
    ``types`` are the machine types it may give, for people; ``purchase``: ``spot`` or ``on-demand``;
    ``usd_per_hour``: of the dearest machine that it may give, which limits go by;
    ``expected_usd_per_hour``: of a machine on average; ``on_demand_usd_per_hour``: what the cheapest of its
    types costs on demand, 0 where that is not known; ``estimated``: prices on demand are not the cloud's own
    word, but reckoned by size; ``request`` goes into the launch record for the backend itself; ``most`` is
    how many machines a run may have at once for items of one size of memory.
    """

    name: str
    slots: int
    usd_per_hour: float = 0.0
    most: int = 1_000_000
    request: dict[str, Any] | None = None
    purchase: str = SPOT
    types: tuple[str, ...] = ()
    expected_usd_per_hour: float = 0.0
    on_demand_usd_per_hour: float = 0.0
    estimated: bool = False


@dataclass(frozen=True)
class BareMachines:
    """Machines that come with an operating system and nothing of ours: what they must be sent.

    ``pythons``: architecture → minor version of the image's own Python, "" where it is not known;
    ``distributions``: what the backend's own code imports on them;
    ``only``: folder below site-packages → patterns of the entries that it needs of it, where that is much
    less than all.
    """

    pythons: Mapping[str, str]
    distributions: tuple[str, ...]
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``found`` tells what was found, or what is wrong; ``remedy`` what
    would cure it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class RunMachine:
    """A machine with the run that it carries the tag of (``Run.tag``)."""

    run: str
    instance: Instance


class Backend(Protocol):
    """One place to run jobs, as a connection describes it. Opening it does no I/O and imports no SDK."""

    name: str
    lease: float
    """Seconds a received message stays ours without being extended."""
    tick_seconds: float
    """Pause between ticks while a job is young or nearly done."""
    store_uri: str
    store_options: dict[str, Any]
    root: str
    """A folder on the Airflow side for what is built there, such as environments."""

    def open_store(self) -> Store:
        """The object store, as the Airflow side reaches it."""
        ...

    def fleet(self, run: Run, boot: Boot) -> Fleet:
        """The run's machines; each receives ``boot`` made its own."""
        ...

    def queue(self, run: Run, memory_class: int) -> Queue:
        """The run's queue of one memory class."""
        ...

    async def machines(self) -> list[RunMachine]:
        """The machines of every run that this connection's store holds, or held: those that may cost
        money, and perhaps some that are terminated. A fresh one may be missing, as in
        :meth:`Fleet.describe`. Raises :class:`Throttled` where it could not look.
        """
        ...

    async def terminate(self, instances: Sequence[str]) -> None:
        """:meth:`Fleet.terminate`, for machines of any run."""
        ...

    async def queues(self) -> list[str]:
        """Names (``Run.queue``) of queues that exist, of this connection and perhaps of others that
        share the place."""
        ...

    async def forget_ended(self) -> int:
        """Remove what is still kept of machines that ended more than a day ago; of how many."""
        ...

    async def check(self) -> list[Check]:
        """Look at what jobs need of this place beside its store: permissions, room, what it has to give.
        At least one check. Starts nothing, costs nothing and leaves nothing behind. Refusals are failed
        checks that name the missing permission and its remedy, not exceptions.
        """
        ...

    async def bare_machines(self, resources: Resources) -> BareMachines | None:
        """What machines for such items must be sent; None where they find this process's interpreter and
        package."""
        ...

    def default_concurrency(self, resources: Resources, items: int) -> int:
        """How many items run at once where the user does not say."""
        ...

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        """The machines that fit one item, sold in a way that the policy allows, best first. Raises
        InvalidInput, naming what would fit, where no machine does."""
        ...

    def boot_options(self) -> dict[str, Any]:
        """What an agent needs to open this backend's queue and notices: no secrets."""
        ...

    def in_region(self, region: str) -> Backend:
        """The same connection, whose machines and queues are those of another region; its store stays where
        it is. Does no I/O. Raises InvalidInput where this place has no regions."""
        ...

    def continues_elsewhere(self) -> str | None:
        """None if any Airflow process can drive a run; else what identifies this machine and its
        view of the store: a trigger that finds another identity leaves the run to the worker."""
        ...


class Notices(Protocol):
    """The platform's warnings, as an agent hears them."""

    async def wait(self) -> str:
        """Return once this machine has been told that it will be taken back, with the reason.
        Never returns otherwise; cancelled when the agent ends."""
        ...

    async def wait_for_advice(self) -> str:
        """The same once the platform advises to leave this machine, since it may soon be taken back. Work
        that runs may end there. Never returns where a platform gives no such advice."""
        ...


class Machine(Protocol):
    """What an agent opens on the machine it runs on."""

    def queue(self, run: Run, memory_class: int) -> Queue: ...

    def notices(self) -> Notices: ...

    async def secret(self, reference: str) -> str:
        """The value that a reference of ``Environment.secrets`` stands for, asked with the machine's own
        rights. Raises SpotBatchError, naming the reference and the remedy, never a value."""
        ...
