from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from airflow_provider_spotbatch import triggers
from airflow_provider_spotbatch.triggers import SpotMapTrigger

PATIENCE = 10.0


@dataclass
class TaskInstance:
    id: str = "mine"
    dag_id: str = "d"
    task_id: str = "t"
    run_id: str = "r"
    map_index: int = -1


@dataclass
class Airflow:
    """What Airflow answers to a trigger, and what the trigger then does."""

    state: str = "deferred"
    owner: str | None = "mine"
    silent: int = 0
    killed: int = 0
    asked: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Told(SpotMapTrigger):
    """A trigger whose questions Airflow's stand-in answers."""

    airflow: Airflow

    async def _is_deferred(self) -> bool:
        self.airflow.asked += 1
        if self.airflow.silent >= self.airflow.asked:
            raise RuntimeError("the API server is away")
        return self.airflow.state == "deferred"

    async def _owner(self) -> str | None:
        return self.airflow.owner

    async def _kill(self) -> None:
        await asyncio.sleep(0)
        self.airflow.killed += 1
        self.airflow.done.set()


def told(airflow: Airflow) -> Told:
    trigger = Told("conn", "job", 1, 1)
    trigger.airflow = airflow
    trigger.task_instance = TaskInstance()  # type: ignore[assignment]
    return trigger


def run_of(trigger: SpotMapTrigger) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collect(), PATIENCE))


@pytest.fixture(autouse=True)
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"conn_type": "spotbatch", "password": "secret", "extra": {"path": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_CONN", json.dumps(stored))


def test_it_can_be_made_again_from_what_is_stored_in_clear() -> None:
    trigger = SpotMapTrigger("conn", "job", 3, 2, elsewhere="boot 1")
    path, kwargs = trigger.serialize()
    assert resolve_name(path) is SpotMapTrigger
    again = resolve_name(path)(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == trigger.serialize()
    assert "secret" not in json.dumps(kwargs)


def test_on_another_machine_it_leaves_the_run_to_the_worker() -> None:
    events = run_of(SpotMapTrigger("conn", "job", 1, 1, elsewhere="another machine"))
    assert events == [{"state": "elsewhere", "job": "job", "generation": 1, "run": 1}]


def test_a_job_elsewhere_is_not_looked_for_on_the_local_backend_where_its_connection_is_gone() -> None:
    (event,) = run_of(SpotMapTrigger("spotbatch_default", "job", 1, 1, elsewhere=None))
    assert "'spotbatch_default'" in event["message"]
    assert "cannot be read any more" in event["message"]
    assert event["retryable"]


def test_an_error_is_one_event_with_its_message() -> None:
    (event,) = run_of(SpotMapTrigger("nowhere", "job", 1, 1))
    assert event["state"] == "error"
    assert "'nowhere'" in event["message"]
    assert "cannot be read any more" in event["message"]


def test_a_run_that_is_not_in_the_store_is_an_error_at_once() -> None:
    (event,) = run_of(SpotMapTrigger("conn", "job", 1, 1))
    assert event["state"] == "error"
    assert "is not in the store" in event["message"]


@pytest.mark.parametrize(
    ("airflow", "killed"),
    [
        (Airflow(state="failed"), True),
        (Airflow(state="success"), True),
        (Airflow(state="deferred", owner="mine"), False),
        (Airflow(state="deferred", owner="a later try"), True),
        (Airflow(state="failed", silent=1), True),
        (Airflow(state="deferred", silent=1), False),
    ],
    ids=[
        "failed",
        "success",
        "reassigned",
        "cleared and deferred again",
        "failed, asked twice",
        "reassigned",
    ],
)
def test_a_kill_ends_the_run_unless_the_task_still_waits_for_this_trigger(
    airflow: Airflow, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "CHECK_PAUSE", 0.0)
    asyncio.run(asyncio.wait_for(told(airflow).on_kill(), PATIENCE))
    assert airflow.killed == killed


def test_a_kill_after_the_event_does_nothing() -> None:
    airflow = Airflow(state="failed")
    trigger = told(airflow)
    trigger._fired = True
    asyncio.run(trigger.on_kill())
    assert (airflow.killed, airflow.asked) == (0, 0)


def test_a_kill_outlives_the_cancellation_of_on_kill() -> None:
    airflow = Airflow(state="failed")

    async def main() -> None:
        kill = asyncio.ensure_future(told(airflow).on_kill())
        await asyncio.sleep(0)
        kill.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kill
        await asyncio.wait_for(airflow.done.wait(), PATIENCE)

    asyncio.run(main())
    assert airflow.killed == 1


@pytest.mark.parametrize(("state", "killed"), [("failed", 1), ("deferred", 0)])
def test_where_airflow_tells_of_no_kill_a_cancelled_trigger_looks_itself(
    state: str, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "KNOWS_KILLS", False)
    airflow = Airflow(state=state)

    class Waiting(Told):
        async def _watch(self) -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async def main() -> None:
        trigger = Waiting("conn", "job", 1, 1)
        trigger.airflow = airflow
        trigger.task_instance = TaskInstance()  # type: ignore[assignment]
        running = asyncio.ensure_future(trigger.run().__anext__())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(asyncio.gather(*triggers._detached), PATIENCE)

    asyncio.run(main())
    assert airflow.killed == killed


def test_an_answer_without_the_task_is_no_state() -> None:
    assert triggers._state_of({"r": {"t_3": "failed"}}, "r") == "failed"
    for unknown in ({}, {"r": {}}, {"other": {"t": "failed"}}):
        with pytest.raises(LookupError):
            triggers._state_of(unknown, "r")
