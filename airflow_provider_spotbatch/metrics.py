"""Metrics of runs through Airflow's own collector: StatsD, Datadog or OpenTelemetry, as ``[metrics]`` says.

One process may drive hundreds of runs. Figures are held and added up here, and a thread sends them every
few seconds: the triggerer's event loop only adds to dictionaries.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Stats, conf

from airflow_provider_spotbatch.control.metrics import SILENT, Metrics, Tags

FLUSH_SECONDS = 5.0
"""How often figures are sent: at least once in the 10 s after which StatsD servers sum up."""

MOST_TIMINGS = 10_000
"""Durations held between two sendings: 200 triggers make 1,000 in 5 s."""

COLLECTORS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
KEEPING_TAGS = ("statsd_datadog_enabled", "statsd_influxdb_enabled", "otel_on")
"""Options of ``[metrics]`` by which something is collected, and by which tags are kept."""

Key = tuple[str, tuple[tuple[str, str], ...]]

log = logging.getLogger(__name__)


class AirflowMetrics:
    """Holds figures and sends them to ``stats``, which is Airflow's ``Stats``.

    ``tagged``: whether the collector keeps tags. Where it does not, gauges of one name are summed over
    all runs of the process: each would overwrite the other's.
    """

    def __init__(self, stats: Any, *, tagged: bool, every: float = FLUSH_SECONDS) -> None:
        self._stats = stats
        self._tagged = tagged
        self._every = every
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._counts: Counter[Key] = Counter()
        self._timings: deque[tuple[str, float, Tags]] = deque(maxlen=MOST_TIMINGS)
        self._gauges: dict[str, tuple[Tags, Mapping[str, float]]] = {}
        self._shown: set[Key] = set()
        self._told = False
        self._thread: threading.Thread | None = None

    def count(self, name: str, value: int, tags: Tags) -> None:
        with self._lock:
            self._counts[name, tuple(tags.items())] += value
        self._send_soon()

    def timing(self, name: str, seconds: float, tags: Tags) -> None:
        self._timings.append((name, seconds, tags))
        self._send_soon()

    def gauges(self, source: str, values: Mapping[str, float], tags: Tags) -> None:
        with self._lock:
            if values:
                self._gauges[source] = tags, values
            else:
                self._gauges.pop(source, None)
        self._send_soon()

    def flush(self) -> None:
        """Send what is held. Whatever goes wrong is logged once, and the figures are lost."""
        with self._sending:
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - no figure is worth a run
                if not self._told:
                    log.warning("metrics cannot be sent: %s: %s", type(error).__name__, error)
                self._told = True

    def _send(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            gauges = self._sums()
        timings = [self._timings.popleft() for _ in range(len(self._timings))]
        for (name, tags), value in counts.items():
            self._stats.incr(name, count=value, tags=dict(tags))
        for name, seconds, of in timings:
            self._stats.timing(name, timedelta(seconds=seconds), tags=dict(of))
        for (name, tags), level in gauges.items():
            self._stats.gauge(name, level, tags=dict(tags))

    def _sums(self) -> dict[Key, float]:
        """Gauges summed over runs; those that no run has any more are set to 0, once."""
        sums: dict[Key, float] = {}
        for of, values in self._gauges.values():
            tags = tuple(of.items()) if self._tagged else ()
            for name, value in values.items():
                sums[name, tags] = sums.get((name, tags), 0.0) + value
        gone = self._shown - sums.keys()
        self._shown = set(sums)
        return {**sums, **dict.fromkeys(gone, 0.0)}

    def _send_soon(self) -> None:
        """Make sure that the thread runs which sends."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._keep_sending, name="spotbatch-metrics", daemon=True
                    )
                    self._thread.start()

    def _keep_sending(self) -> None:
        while True:
            time.sleep(self._every)
            self.flush()


_of_process: Metrics | None = None


def airflow_metrics() -> Metrics:
    """The metrics of this process; silent where Airflow collects none."""
    global _of_process
    if _of_process is None:
        _of_process = AirflowMetrics(Stats, tagged=_any(KEEPING_TAGS)) if _any(COLLECTORS) else SILENT
    return _of_process


def _any(options: tuple[str, ...]) -> bool:
    return any(conf.getboolean("metrics", option, fallback=False) for option in options)


def _forget() -> None:
    """A forked process has none of the threads, and perhaps a lock that one of them held."""
    global _of_process
    _of_process = None


os.register_at_fork(after_in_child=_forget)
