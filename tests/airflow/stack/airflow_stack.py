"""A real Airflow of the tests' own: scheduler with LocalExecutor, triggerers, dag-processor, API server."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.airflow.stack.rest import Api, Refused
from tests.airflow.stack.waiting import until

HERE = Path(__file__).parent
DEPLOYMENT = "stack"

HEALTHY_SECONDS = 120.0
"""Until everything reports healthy: about 30 s on two idle cores."""

BUSY_SECONDS = 60
API_BUSY_SECONDS = 1
"""How long a component waits for the database. A scheduler ends where it waits in vain. The API server
waits in its event loop for requests that need that loop to end: the sooner it refuses, the better."""

STOP_SECONDS = 15.0
"""What a component has to end by itself before it is killed."""

UNHEALTHY_AFTER = 10
"""Seconds without a heartbeat after which the triggers of a triggerer are given to another."""

API_SERVER = "api-server"
TRIGGERER = "triggerer"

DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

COMMANDS = {
    API_SERVER: ["api-server", "--workers", "1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    TRIGGERER: ["triggerer", "--skip-serve-logs"],
}


class Stack:
    """Every component is the leader of a session of its own; whatever it starts is ended with it.

    ``connections``: name → extra of a connection of type spotbatch.
    """

    def __init__(
        self, home: Path, connections: dict[str, dict[str, Any]], dags: Path = HERE / "dags"
    ) -> None:
        self.home = home
        self.port = _free_port()
        self._environment = _environment(home, self.port, connections, dags)
        self._leaders: dict[str, subprocess.Popen[bytes]] = {}
        self._triggerers: dict[str, int] = {}
        self.api = Api(f"http://localhost:{self.port}")

    def migrate(self) -> None:
        done = self._start("migrate", ["db", "migrate"])
        assert done.wait(HEALTHY_SECONDS) == 0, self._log("migrate").read_text()
        with closing(sqlite3.connect(self.home / "airflow.db")) as database:
            database.execute("PRAGMA journal_mode=WAL")  # readers and a writer do not wait for each other

    def start(self, dags: Iterable[str]) -> None:
        """Start what is not running; wait until all is healthy and the DAGs are known."""
        for name in COMMANDS:
            if name not in self._leaders:
                self._leaders[name] = self._start(name, COMMANDS[name])
        until(self._healthy, HEALTHY_SECONDS, self._why_unhealthy)
        self._await_triggerer(TRIGGERER)
        until(lambda: all(self._knows(dag) for dag in dags), HEALTHY_SECONDS, self._why_unhealthy)

    def start_triggerer(self, name: str = TRIGGERER) -> None:
        """Start a triggerer and wait for its first heartbeat; several may run under different names."""
        self._leaders[name] = self._start(name, COMMANDS[TRIGGERER])
        self._await_triggerer(name)

    def _await_triggerer(self, name: str) -> None:
        known = max(self._triggerers.values(), default=0)
        new = until(
            lambda: [number for number in self.triggerers_alive() if number > known],
            HEALTHY_SECONDS,
            self._why_unhealthy,
        )
        self._triggerers[name] = max(new)

    def triggerer_of(self, task: dict[str, Any]) -> str | None:
        """Which triggerer has a deferred task now, as far as Airflow knows."""
        job = (task["triggerer_job"] or {}).get("id")
        return next((name for name, own in self._triggerers.items() if own == job), None)

    def stop(self, name: str) -> None:
        """End a component as a service manager does: SIGTERM, and SIGKILL for what is left."""
        leader = self._leaders.pop(name)
        leader.terminate()
        with suppress(subprocess.TimeoutExpired):
            leader.wait(STOP_SECONDS)
        self._end(leader)

    def kill(self, name: str) -> None:
        """End a component with SIGKILL, at once."""
        self._end(self._leaders.pop(name))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to every process of a component."""
        for pid in self.processes(name):
            os.kill(pid, number)

    def stop_all(self) -> None:
        for leader in self._leaders.values():
            leader.terminate()
        for name in list(self._leaders):
            self.stop(name)

    def kill_all(self) -> None:
        for name in list(self._leaders):
            self.kill(name)

    def processes(self, name: str) -> list[int]:
        return _session(self._leaders[name].pid)

    def triggerers_alive(self) -> list[int]:
        """Airflow's ids of the triggerers whose heart beats."""
        found = self.api.get("jobs?job_type=TriggererJob&job_state=running&is_alive=true")
        return [job["id"] for job in found["jobs"]]

    def runs(self, name: str) -> bool:
        return name in self._leaders

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        busy = API_BUSY_SECONDS if name == API_SERVER else BUSY_SECONDS
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "airflow", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment | {DATABASE: f"sqlite:///{self.home}/airflow.db?timeout={busy}"},
                cwd=self.home,
                start_new_session=True,
            )

    def _end(self, leader: subprocess.Popen[bytes]) -> None:
        def ended() -> bool:
            left = _session(leader.pid)
            for pid in left:
                _kill(pid)
            return not left and leader.poll() is not None

        until(ended, STOP_SECONDS, lambda: f"left of a component: {_session(leader.pid)}")

    def _healthy(self) -> bool:
        for name, leader in self._leaders.items():
            assert leader.poll() is None, f"{name} ended: {self._log(name).read_text()[-5000:]}"
        try:
            health = self.api.get("monitor/health")
        except Refused:
            return False
        return all(
            health[part]["status"] == "healthy" for part in ("scheduler", "triggerer", "dag_processor")
        )

    def _why_unhealthy(self) -> str:
        return "\n".join(f"{name}: {self._log(name).read_text()[-2000:]}" for name in self._leaders)

    def _knows(self, dag: str) -> bool:
        try:
            return not self.api.get(f"dags/{dag}")["is_paused"]
        except Refused:
            return False

    def resumed_too_early(self, run_id: str) -> bool:
        """Whether the scheduler failed a task of this run for its own order of events."""
        confused = "finished with state success, but the task instance's state attribute is queued"
        lines = self._log("scheduler").read_text().splitlines()
        return any(confused in line and f" {run_id} [queued]" in line for line in lines)

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"


def _environment(home: Path, port: int, connections: dict[str, dict[str, Any]], dags: Path) -> dict[str, str]:
    options = {
        "CORE__DAGS_FOLDER": dags,
        "CORE__PLUGINS_FOLDER": HERE / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 4,
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "CORE__FERNET_KEY": "",
        "API__HOST": "localhost",
        "API__PORT": port,
        "API__BASE_URL": f"http://localhost:{port}",
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        # A request to start a task that was given up and repeated finds it started, and fails it.
        "WORKERS__EXECUTION_API_TIMEOUT": 60,
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 600,
        "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": 2,
        "TRIGGERER__JOB_HEARTBEAT_SEC": 2,
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": UNHEALTHY_AFTER,
        "SPOTBATCH__DEPLOYMENT": DEPLOYMENT,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "NO_PROXY": "*",
        **{f"AIRFLOW__{name}": str(value) for name, value in options.items()},
        **{
            f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": "spotbatch", "extra": extra})
            for name, extra in connections.items()
        },
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def _session(leader: int) -> list[int]:
    """Processes of a session that run: none that is a zombie."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[3]) == leader and stat[0] != "Z":
            found.append(pid)
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
