"""The collector between runs and Airflow's Stats."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_spotbatch import metrics
from airflow_provider_spotbatch.control.metrics import SILENT
from airflow_provider_spotbatch.metrics import AirflowMetrics, airflow_metrics

OURS = {"dag_id": "d", "task_id": "t"}
THEIRS = {"dag_id": "d", "task_id": "other"}
NEVER = 3600.0


class Stats:
    """Keeps what was sent, as Airflow's Stats are called."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def incr(self, stat: str, count: int, *, tags: dict[str, str]) -> None:
        self.sent.append((stat, count, tags))

    def gauge(self, stat: str, value: float, *, tags: dict[str, str]) -> None:
        self.sent.append((stat, value, tags))

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, str]) -> None:
        self.sent.append((stat, dt, tags))

    def take(self) -> list[tuple[Any, ...]]:
        sent, self.sent = self.sent, []
        return sent


def test_counts_of_the_same_tags_are_sent_as_one() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=True, every=NEVER)
    for tags in (OURS, THEIRS, OURS):
        held.count("items", 2, tags)
    held.flush()

    assert stats.take() == [("items", 4, OURS), ("items", 2, THEIRS)]
    held.flush()
    assert stats.take() == []


def test_durations_are_sent_each() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=True, every=NEVER)
    held.timing("tick", 0.5, OURS)
    held.timing("tick", 1.5, OURS)
    held.flush()

    assert [dt.total_seconds() for _, dt, _ in stats.take()] == [0.5, 1.5]


def test_gauges_of_the_same_tags_are_summed_over_runs() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=True, every=NEVER)
    held.gauges("run 1", {"slots": 4}, OURS)
    held.gauges("run 2", {"slots": 3}, OURS)
    held.gauges("run 3", {"slots": 1}, THEIRS)
    held.gauges("run 1", {"slots": 5}, OURS)
    held.flush()

    assert stats.take() == [("slots", 8, OURS), ("slots", 1, THEIRS)]


def test_where_tags_are_not_kept_gauges_are_summed_over_all_runs() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=False, every=NEVER)
    held.gauges("run 1", {"slots": 4}, OURS)
    held.gauges("run 3", {"slots": 1}, THEIRS)
    held.flush()

    assert stats.take() == [("slots", 5, {})]


def test_gauges_of_the_last_run_end_at_zero_once() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=True, every=NEVER)
    held.gauges("run 1", {"slots": 4}, OURS)
    held.flush()
    held.gauges("run 1", {}, OURS)
    stats.take()
    held.flush()

    assert stats.take() == [("slots", 0.0, OURS)]
    held.flush()
    assert stats.take() == []


def test_gauges_that_were_never_sent_are_not_set_to_zero() -> None:
    stats = Stats()
    held = AirflowMetrics(stats, tagged=False, every=NEVER)
    held.gauges("run 1", {"slots": 0}, OURS)
    held.gauges("run 1", {}, OURS)
    held.flush()

    assert stats.take() == []


def test_a_thread_sends_what_nobody_flushes() -> None:
    stats = Stats()
    AirflowMetrics(stats, tagged=True, every=0.01).count("items", 1, OURS)

    deadline = time.monotonic() + 10
    while not stats.sent:
        assert time.monotonic() < deadline, "nothing was sent"
        time.sleep(0.005)
    assert stats.sent == [("items", 1, OURS)]


def test_a_collector_that_fails_is_told_of_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Stats):
        def incr(self, stat: str, count: int, *, tags: dict[str, str]) -> None:
            raise OSError("no route to the collector")

    held = AirflowMetrics(Broken(), tagged=True, every=NEVER)
    for _ in range(3):
        held.count("items", 1, OURS)
        held.flush()

    told = [record.message for record in caplog.records if "metrics cannot be sent" in record.message]
    assert told == ["metrics cannot be sent: OSError: no route to the collector"]


def test_a_collector_that_hangs_holds_nobody_up() -> None:
    free = threading.Event()

    class Hanging(Stats):
        def incr(self, stat: str, count: int, *, tags: dict[str, str]) -> None:
            free.wait(30)

    held = AirflowMetrics(Hanging(), tagged=True, every=NEVER)
    held.count("items", 1, OURS)
    sending = threading.Thread(target=held.flush)
    sending.start()
    started = time.monotonic()
    held.count("items", 1, OURS)
    held.gauges("run", {"slots": 1}, OURS)
    held.timing("tick", 1.0, OURS)
    took = time.monotonic() - started
    free.set()
    sending.join()

    assert took < 5


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_of_process", None)


@pytest.mark.usefixtures("fresh")
def test_nothing_is_held_where_airflow_collects_nothing() -> None:
    assert airflow_metrics() is SILENT


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("options", "tagged"),
    [
        ({"STATSD_ON": "True"}, False),
        ({"STATSD_ON": "True", "STATSD_INFLUXDB_ENABLED": "True"}, True),
        ({"STATSD_DATADOG_ENABLED": "True"}, True),
        ({"OTEL_ON": "True"}, True),
    ],
)
def test_what_airflow_collects_with_decides_whether_tags_are_kept(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], tagged: bool
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    held = airflow_metrics()

    assert isinstance(held, AirflowMetrics)
    assert held._tagged is tagged
    assert airflow_metrics() is held


@pytest.mark.usefixtures("fresh")
def test_a_forked_process_has_metrics_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    before = airflow_metrics()
    metrics._forget()

    assert airflow_metrics() is not before
