from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.control.metrics import RunMetrics, Tags, Tally, counted, gauges_of
from airflow_provider_spotbatch.control.snapshot import Counts, Machine, Snapshot
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    NoCapacity,
    QuotaExceeded,
    Throttled,
)
from airflow_provider_spotbatch.job.launches import RUNNING, Instance, LaunchOutcome
from airflow_provider_spotbatch.job.outcome import CAUSES, INTERRUPTED, LOST, OK
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import CANCELLED, FAILED, SUCCEEDED, Outcome

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
TAGS = {"dag_id": "d", "task_id": "t"}


class Kept:
    """Metrics in lists, for a test to look at."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.timings: dict[str, list[float]] = {}
        self.levels: dict[str, Mapping[str, float]] = {}

    def count(self, name: str, value: int, tags: Tags) -> None:
        assert value > 0
        assert tags == TAGS
        self.counts[name] = self.counts.get(name, 0) + value

    def timing(self, name: str, seconds: float, tags: Tags) -> None:
        self.timings.setdefault(name, []).append(seconds)

    def gauges(self, source: str, values: Mapping[str, float], tags: Tags) -> None:
        self.levels[source] = values

    def flush(self) -> None: ...


def told_by(kept: Kept, told: Tally | None = None) -> RunMetrics:
    return RunMetrics(kept, "job/1/1", TAGS, told or Tally())


def snapshot(**values: Any) -> Snapshot:
    counts = {"total": 10, "waiting": 10, "sent": 0, "retrying": 0, "ok": 0, "failed": 0}
    counts.update({name: values.pop(name) for name in list(values) if name in counts})
    settled = {"now": 5.0, "run": 1, "run_age": 3.0, "policy": Policy(), "concurrency": 4}
    return Snapshot(**{**settled, **values}, counts=Counts(**counts))


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (Tally(), Tally(), {}),
        (Tally(), Tally(3, {"error": 2}), {"items.ok": 3, "items.error": 2}),
        (Tally(3, {"error": 2}), Tally(5, {"error": 2, "crash": 1}), {"items.ok": 2, "items.crash": 1}),
        (Tally(3, {"error": 2}), Tally(4, {"error": 1}), {"items.ok": 1}),
        (Tally(spent_usd=0.1), Tally(spent_usd=0.1000015), {"cost_microdollars": 2}),
        (Tally(spent_usd=0.2), Tally(spent_usd=0.1), {}),
    ],
)
def test_counters_tell_what_grew(before: Tally, now: Tally, grown: dict[str, int]) -> None:
    assert dict(counted(before, now)) == grown


def test_each_look_counts_what_the_last_had_not() -> None:
    kept = Kept()
    run = told_by(kept)
    run.looked(snapshot(ok=2, outcomes=2), {})
    run.looked(snapshot(ok=2, outcomes=2), {})
    run.looked(snapshot(ok=5, failed=1, outcomes=6), {"error": 1})

    assert kept.counts == {"spotbatch.items.ok": 5, "spotbatch.items.error": 1}


def test_the_next_process_counts_on_from_what_progress_says() -> None:
    kept = Kept()
    progress = {"ok": 4, "failed": 1, "causes": {"error": 1}, "spent_usd": 0.5}
    run = told_by(kept, Tally.of_progress(progress, carried=0, spent_before=0.0))
    run.looked(snapshot(ok=6, failed=1, outcomes=7, spent_usd=0.75), {"error": 1})

    assert kept.counts == {"spotbatch.items.ok": 2, "spotbatch.cost_microdollars": 250_000}
    assert kept.timings == {}, "the first item was told by the process before"


def test_what_earlier_runs_finished_and_cost_is_not_counted_again() -> None:
    kept = Kept()
    told_by(kept, Tally.of_progress(None, carried=6, spent_before=1.0)).looked(
        snapshot(ok=6, spent_usd=1.0), {}
    )

    assert (kept.counts, kept.timings) == ({}, {})


def test_the_first_item_of_a_run_is_told_once() -> None:
    kept = Kept()
    run = told_by(kept)
    run.looked(snapshot(run_age=1.0), {})
    run.looked(snapshot(run_age=2.0, failed=1, outcomes=1), {"error": 1})
    run.looked(snapshot(run_age=3.0, failed=1, ok=2, outcomes=3), {"error": 1})

    assert kept.timings == {"spotbatch.job.first_item": [2.0]}


def test_gauges_show_items_slots_and_machines_by_state() -> None:
    machines = (
        Machine("a", 1, 0, 2, RUNNING, "running", held=("c1", "c2", "c3")),
        Machine("b", 1, 0, 2, RUNNING, "running", held=("c4",)),
        Machine("c", 1, 0, 2, RUNNING),
        Machine("d", 1, 0, 2, RUNNING, "draining", held=("c5",)),
        Machine("e", 1, 0, 2, "terminated", "ended"),
    )
    assert gauges_of(snapshot(waiting=2, sent=5, retrying=1, ok=2, machines=machines)) == {
        "items.open": 8,
        "items.retrying": 1,
        "slots.total": 8,
        "slots.busy": 4,
        "machines.booting": 1,
        "machines.running": 2,
        "machines.draining": 1,
    }


def test_a_run_that_is_left_has_no_gauges() -> None:
    kept = Kept()
    run = told_by(kept)
    run.looked(snapshot(), {})
    assert kept.levels["job/1/1"]["spotbatch.items.open"] == 10
    run.leave()

    assert kept.levels == {"job/1/1": {}}


def test_a_launch_counts_its_machines_and_each_refusal_by_kind() -> None:
    kept = Kept()
    instances = (Instance("i-1", 1, RUNNING, 1), Instance("i-2", 1, RUNNING, 1))
    refusals = (NoCapacity("none left"), QuotaExceeded("4 vCPU"), NoCapacity("none left"))
    told_by(kept).launched(LaunchOutcome(instances, refusals))

    assert kept.counts == {
        "spotbatch.machines.launched": 2,
        "spotbatch.launches.refused.no-capacity": 2,
        "spotbatch.launches.refused.quota": 1,
    }


def test_a_launch_that_gave_nothing_counts_no_machine() -> None:
    kept = Kept()
    told_by(kept).launched(LaunchOutcome())

    assert kept.counts == {}


def test_the_end_of_a_run_counts_what_no_look_had_seen() -> None:
    kept = Kept()
    outcome = Outcome(SUCCEEDED, "", True, "job", 1, 1, 10, 10, 0, {}, 100.0, 130.0, 0.25)
    run = told_by(kept, Tally(ok=9, spent_usd=0.2, begun=True))
    run.finished(outcome)

    assert kept.counts == {
        "spotbatch.items.ok": 1,
        "spotbatch.cost_microdollars": 50_000,
        "spotbatch.jobs.succeeded": 1,
    }
    assert kept.timings == {"spotbatch.job.duration": [30.0]}


def test_a_run_that_ended_without_any_item_tells_no_first_item() -> None:
    kept = Kept()
    outcome = Outcome("cancelled", "", True, "job", 1, 1, 10, 0, 0, {}, 100.0, 130.0)
    told_by(kept).finished(replace(outcome, ok=4))

    assert "spotbatch.job.first_item" not in kept.timings


def test_the_documented_metrics_are_those_that_are_told() -> None:
    kept = Kept()
    run = told_by(kept)
    run.looked(snapshot(ok=1, outcomes=1, spent_usd=1.0), dict.fromkeys(set(CAUSES) - {OK}, 1))
    run.ticked(0.1)
    run.tick_failed()
    run.retried(1)
    for cause in (INTERRUPTED, LOST):
        run.lost(cause)
    run.launched(
        LaunchOutcome(
            (Instance("i-1", 1, RUNNING, 1),),
            tuple(
                verdict("no") for verdict in (NoCapacity, QuotaExceeded, Throttled, AccessDenied, BadRequest)
            ),
        )
    )
    for state in (SUCCEEDED, FAILED, CANCELLED):
        run.finished(Outcome(state, "", True, "job", 1, 1, 1, 1, 0))
    told = {*kept.counts, *kept.timings, *kept.levels["job/1/1"]}

    assert set(re.findall(r"^\| `(\S+)`", DOCUMENT.read_text(), re.MULTILINE)) == told
