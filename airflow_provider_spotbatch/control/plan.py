"""What a tick will do: actions as values, each with its reason. The reasons are the task's log."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_spotbatch.control.snapshot import Stop
from airflow_provider_spotbatch.job.chunks import Batch, Chunk
from airflow_provider_spotbatch.job.launches import LaunchRecord


@dataclass(frozen=True)
class RecordStop:
    """Write ``stop.json``: from now on nothing new is sent or launched."""

    stop: Stop
    reason: str


@dataclass(frozen=True)
class RecordLoss:
    """Write down that a machine ended with work in hand."""

    instance: str
    cause: str
    chunks: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class CloseChunk:
    """Create a chunk's result with cause ``lost``, so that no agent takes it up again."""

    chunk: Chunk
    reason: str


@dataclass(frozen=True)
class Launch:
    """Write the record, call, write the answer. ``asking`` counts from 1: in the later ones the record
    is there, its answer is not, and the right to ask again is claimed instead."""

    record: LaunchRecord
    reason: str
    asking: int = 1

    @property
    def again(self) -> bool:
        return self.asking > 1


@dataclass(frozen=True)
class Terminate:
    instances: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Send:
    """Write the batch, then send its messages. Before a resend each chunk's result is looked for, and a
    chunk that has one is recorded instead."""

    batch: Batch
    memory_class: int
    reason: str


@dataclass(frozen=True)
class CloseLaunches:
    """Create the next launch name as closed: no controller can launch after it."""

    record: LaunchRecord
    reason: str


@dataclass(frozen=True)
class WriteControl:
    """Rewrite ``control.json``: the agents' sign of life, and what they may spend."""

    report_every: float
    spend_for: float | None
    drain: bool
    reason: str


Action = RecordStop | RecordLoss | CloseChunk | Launch | Terminate | Send | CloseLaunches | WriteControl


@dataclass(frozen=True)
class Plan:
    """``over``: nothing is left to drive; ``pause``: seconds to the next tick."""

    actions: tuple[Action, ...]
    pause: float
    over: bool = False
    stuck: tuple[str, ...] = ()
    """Machines that could not be seen gone within the bound: the job fails and names them."""
