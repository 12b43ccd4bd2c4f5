"""A job's metrics as a StatsD server receives them: Airflow's own client, real datagrams."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.metered_job import ITEMS, WRONG
from tests.support.runs import REPOSITORY

Received = Mapping[str, list[float]]


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Received:
    """``name|kind`` → the values that came, in order; without Airflow's prefix."""
    pytest.importorskip("statsd", reason="Airflow's StatsD client needs the distribution statsd")
    folder = tmp_path_factory.mktemp("metrics")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        server.bind(("127.0.0.1", 0))
        ran = subprocess.run(
            [sys.executable, "-m", "tests.support.metered_job", str(folder / "root")],
            cwd=REPOSITORY,
            env=_environment(folder, server.getsockname()[1]),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        server.setblocking(False)
        return _read(server)


def _environment(folder: Path, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(port),
    }


def _read(server: socket.socket) -> Received:
    found: dict[str, list[float]] = defaultdict(list)
    while True:
        try:
            line = server.recv(65_536).decode()
        except BlockingIOError:
            return found
        name, _, rest = line.removeprefix("airflow.").partition(":")
        value, kind = rest.split("|")[:2]
        found[f"{name}|{kind}"].append(float(value))


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("spotbatch.items.ok", ITEMS - WRONG),
        ("spotbatch.items.error", WRONG),
        ("spotbatch.items.retried", WRONG),
        ("spotbatch.jobs.succeeded", 1),
    ],
)
def test_what_three_controllers_counted_is_counted_once(received: Received, name: str, total: int) -> None:
    assert sum(received[f"{name}|c"]) == total


def test_machines_are_counted(received: Received) -> None:
    assert 1 <= sum(received["spotbatch.machines.launched|c"]) <= 2


def test_a_local_job_counts_no_cost_and_no_loss(received: Received) -> None:
    ours = {name for name in received if name.startswith("spotbatch.")}

    assert not {name for name in ours if "cost" in name or "lost" in name or "refused" in name}


def test_the_job_and_its_first_item_are_timed_once_in_milliseconds(received: Received) -> None:
    (job,), (first,) = received["spotbatch.job.duration|ms"], received["spotbatch.job.first_item|ms"]

    assert 100 < first < job < 120_000


def test_every_tick_is_timed(received: Received) -> None:
    assert sum(received["spotbatch.ticks.done|c"]) == len(received["spotbatch.tick.duration|ms"]) >= 3
    assert "spotbatch.ticks.failed|c" not in received


@pytest.mark.parametrize("name", ["items.open", "slots.total", "machines.running"])
def test_gauges_rise_and_end_at_zero(received: Received, name: str) -> None:
    levels = received[f"spotbatch.{name}|g"]

    assert max(levels) >= 1
    assert levels[-1] == 0
