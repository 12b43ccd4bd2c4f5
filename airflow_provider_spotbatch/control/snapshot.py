"""What the control loop decides on: one frozen picture of a run, time included."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.launches import LaunchOutcome, LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy


@dataclass(frozen=True)
class Counts:
    """Items of the run by state; ``ok`` includes those that an earlier run finished."""

    total: int
    waiting: int
    sent: int
    retrying: int
    ok: int
    failed: int

    @property
    def open(self) -> int:
        return self.total - self.ok - self.failed


@dataclass(frozen=True)
class Retry:
    """An item whose next attempt is due now. ``alone``: it must not share a chunk."""

    item: int
    attempt: int
    memory_class: int
    alone: bool = False


@dataclass(frozen=True)
class OpenChunk:
    """A chunk that was sent and has no known result. Ages in seconds of the observer's clock."""

    chunk: Chunk
    sent_age: float
    held: bool
    losses: int
    item_losses: int
    """The most losses that any item of it has seen, over all its chunks."""


@dataclass(frozen=True)
class Machine:
    """A machine as its launch, the fleet and its agent tell of it.

    ``state``: pending, running or terminated as described, ``missing`` where describe does not list it.
    ``reported``: the agent's state, "" before its first report; ``silent``: seconds since its report
    changed (since the launch's answer, before the first report); ``held``: chunks in hand;
    ``due``: it should be visible in describe by now; ``loss_recorded``: its loss is in the store.
    """

    id: str
    launch: int
    memory_class: int
    slots: int
    state: str
    reported: str = ""
    reason: str = ""
    silent: float = 0.0
    held: tuple[str, ...] = ()
    empty_seconds: float | None = None
    interrupted: bool = False
    due: bool = True
    loss_recorded: bool = False
    boot_log: str = ""
    usd_per_hour: float = 0.0

    @property
    def booted(self) -> bool:
        """Whether its agent got as far as leasing work."""
        return self.reported not in ("", "booting") and not self.boot_log

    @property
    def gone(self) -> bool:
        """Seen gone: no longer able to run anything or to cost money."""
        return self.state == "terminated" or (self.state == "missing" and self.due)

    @property
    def ended(self) -> bool:
        """Its slots can no longer be in use."""
        return self.gone or self.reported == "ended"


@dataclass(frozen=True)
class LaunchView:
    """A launch record, its answer if there is one, and their ages in seconds by the store's time.

    ``asked``: how often its call was begun or claimed; ``asked_age``: age of the last of these.
    """

    record: LaunchRecord
    outcome: LaunchOutcome | None
    age: float
    answer_age: float = 0.0
    asked: int = 1
    asked_age: float = 0.0


@dataclass(frozen=True)
class Pace:
    """What was measured: items ended in this run, their mean run time and mean stored size."""

    items: int = 0
    seconds: float = 0.0
    size: float = 0.0
    busy_seconds: float = 0.0
    """Run time of all items together."""


@dataclass(frozen=True)
class Stop:
    """Why a run was stopped before all its items had an outcome.

    ``drain``: running items may end first; ``retryable``: whether an Airflow retry can help.
    """

    kind: str
    message: str
    drain: bool = False
    retryable: bool = True


@dataclass(frozen=True)
class Snapshot:
    """The run as seen in one look. ``now`` and all ages: the observer's monotonic seconds.

    ``fresh``: ranges of items never sent, as far ahead as one tick may need;
    ``due``: retries whose time has come, by memory class and attempt; ``next_due``: seconds to the next;
    ``fleet_seen``: whether describe was answered in this look; ``launches``: in the order of their numbers;
    ``offers``: the machines to be had, by memory class, best first; ``jitter``: a random number in [0, 1);
    ``quiet``: seconds in which nothing of this changed but ages and what machines cost;
    ``only_error``: the one error type of all outcomes so far, None if they differ or one succeeded;
    ``spent_usd`` over all runs of the generation; ``item_bytes``: mean stored size of an input.
    """

    now: float
    run: int
    run_age: float
    policy: Policy
    concurrency: int
    counts: Counts
    fresh: tuple[tuple[int, int], ...] = ()
    due: tuple[Retry, ...] = ()
    next_due: float | None = None
    open_chunks: tuple[OpenChunk, ...] = ()
    machines: tuple[Machine, ...] = ()
    fleet_seen: bool = True
    launches: tuple[LaunchView, ...] = ()
    closed: bool = False
    pace: Pace = field(default_factory=Pace)
    offers: dict[int, tuple[Offer, ...]] = field(default_factory=dict)
    max_instances: int | None = None
    max_usd_per_hour: float | None = None
    budget_usd: float | None = None
    spent_usd: float = 0.0
    outcomes: int = 0
    only_error: str | None = None
    cancelled: str | None = None
    stop: Stop | None = None
    next_batch: int = 1
    next_launch: int = 1
    item_bytes: float = 0.0
    unsent: dict[int, int] = field(default_factory=dict)
    """Items that wait to be sent (fresh, due and not yet due), by memory class."""
    lease: float = 30.0
    visibility_bound: float = 0.0
    tick_seconds: float = 1.0
    jitter: float = 0.0
    control_age: float | None = None
    quiet: float = 0.0
