"""How a simulated cloud misbehaves: a value that a test sets, and may replace at any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_spotbatch.job.errors import Refusal
from airflow_provider_spotbatch.job.launches import LaunchRecord


def _never(record: LaunchRecord, ordinal: int) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Faults:
    """Chances (0 to 1) are drawn for each call or message; times in seconds. The default: none.

    ``latency``: a call's request and its answer travel for up to this long each, so that calls
    overlap, and a caller may be cancelled between effect and answer.

    Fleet: ``refuse`` says of each machine asked for whether it is refused, and with what verdict;
    ``lose_answer``: the launch is done, but raises; ``hide_fresh``: a new machine is missing from
    describe for up to this long (never beyond the cloud's ``visibility_bound``);
    ``throttle_describe``; ``fail_terminate``, for each machine; ``die_booting``: a machine is taken
    back before its agent starts; ``reclaims_per_hour`` of each spot machine, of which
    ``without_notice`` is the share that is not told.

    Queue: ``lose_message`` and ``double_message``, for each message sent; ``fail_send``: a part is
    sent, then it raises; ``shuffle``: messages are received in any order.

    ``throttle_offers``: nobody may ask for machines and prices.

    Store: ``fail_request``: StoreUnavailable, with or without effect; ``own_create``: a create
    succeeds, but is told that the object exists.
    """

    latency: float = 0.0
    refuse: Callable[[LaunchRecord, int], Refusal | None] = _never
    lose_answer: float = 0.0
    hide_fresh: float = 0.0
    throttle_describe: float = 0.0
    throttle_offers: float = 0.0
    fail_terminate: float = 0.0
    die_booting: float = 0.0
    reclaims_per_hour: float = 0.0
    without_notice: float = 0.0
    lose_message: float = 0.0
    double_message: float = 0.0
    fail_send: float = 0.0
    shuffle: bool = False
    fail_request: float = 0.0
    own_create: float = 0.0
