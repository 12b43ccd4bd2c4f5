"""The deferred half of a task: drives the control loop in the triggerer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_spotbatch.job.errors import is_final
from airflow_provider_spotbatch.job.keys import Generation, Run

T = TypeVar("T")

OVER = "over"
ELSEWHERE = "elsewhere"
ERROR = "error"

OWNER_KEY = "spotbatch_run"
"""XCom of a deferred task: who drives which run (``owner``: the task instance's id)."""

CANCEL_SECONDS = 120.0
"""How long a kill looks after the machines of its run until all are gone."""

CHECK_SECONDS = 20.0
"""One look at the task's state, before Airflow 3.3: a triggerer that shuts down never answers, and a
fresh one takes about 10 s for the first."""

CHECKS = 4

CHECK_PAUSE = 1.0
"""Seconds before the second look; doubled from look to look."""

KNOWS_KILLS = hasattr(BaseTrigger, "on_kill")
"""From Airflow 3.3 a trigger is told that the user ended the task; before, it must find out."""

_detached: set[asyncio.Task[None]] = set()
"""Kills under way. Airflow cancels ``on_kill`` after about a second; these outlive it."""


class SpotMapTrigger(BaseTrigger):
    """Drives one run until it is over; then one event, of ids alone.

    ``elsewhere``: what identifies the machine the run must be driven from; where it is not this one,
    the event says so and the worker goes on.
    """

    def __init__(
        self,
        conn_id: str,
        job: str,
        generation: int,
        run: int,
        elsewhere: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.job = job
        self.generation = generation
        self.run_number = run
        self.elsewhere = elsewhere
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "conn_id": self.conn_id,
                "job": self.job,
                "generation": self.generation,
                "run": self.run_number,
                "elsewhere": self.elsewhere,
            },
        )

    @property
    def of_run(self) -> Run:
        return Run(Generation(self.job, self.generation), self.run_number)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._watch()
        except asyncio.CancelledError:
            if not KNOWS_KILLS and self.task_instance is not None:
                _detach(self._kill_unless_deferred())
            raise
        self._fired = True
        ids = {"job": self.job, "generation": self.generation, "run": self.run_number}
        yield TriggerEvent({**ids, **event})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """The user ended the task (or a stalled triggerer lost it to another: then nothing is done)."""
        if not self._fired:
            await asyncio.shield(_detach(self._kill_unless_owned()))

    async def _watch(self) -> dict[str, Any]:
        """Drive the run until it is over, or cannot be driven from here."""
        try:
            await asyncio.to_thread(_import_control)
            from airflow_provider_spotbatch.control.controller import Controller
            from airflow_provider_spotbatch.control.drive import drive
            from airflow_provider_spotbatch.metrics import airflow_metrics

            site = await _to_its_end(self._open_site())
            if self.elsewhere is not None:
                here = await asyncio.to_thread(site.backend.continues_elsewhere)
                if here != self.elsewhere:
                    return {"state": ELSEWHERE}
            await drive(Controller(site, self.of_run, self._say, airflow_metrics()), self._say)
        except Exception as error:  # noqa: BLE001 - whatever it was, the worker must end the run
            told = f"{type(error).__name__}: {error}"
            return {"state": ERROR, "message": told, "retryable": not is_final(error)}
        return {"state": OVER}

    async def _open_site(self) -> Any:
        from airflow_provider_spotbatch.control.site import open_site
        from airflow_provider_spotbatch.hooks import SpotBatchHook

        hook = SpotBatchHook(self.conn_id)
        settings = await hook.aget_settings(may_be_missing=self.elsewhere is not None)
        return await asyncio.to_thread(open_site, settings)

    async def _kill_unless_owned(self) -> None:
        """End the run unless the task is still deferred, and deferred to this very trigger."""
        for attempt in range(CHECKS):
            try:
                if await self._is_deferred() and await self._owner() == str(self._ti.id):
                    self._say("the task is still deferred: its run goes on under another triggerer")
                    return
                break
            except Exception as error:  # noqa: BLE001 - the API server may be away for a moment
                self._say(f"cannot see the state of the task: {type(error).__name__}: {error}")
                await asyncio.sleep(CHECK_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
        await self._kill()

    async def _kill_unless_deferred(self) -> None:
        """Before Airflow 3.3: end the run only if the task is surely no longer deferred."""
        try:
            deferred = await asyncio.wait_for(_to_its_end(self._is_deferred()), CHECK_SECONDS)
        except Exception:  # noqa: BLE001 - not to know is no reason to end a run
            return
        if not deferred:
            await self._kill()

    async def _kill(self) -> None:
        from airflow_provider_spotbatch.control.cancel import cancel

        gone = await cancel(
            await self._open_site(),
            self.of_run,
            "the task was ended in Airflow",
            self._say,
            deadline=CANCEL_SECONDS,
        )
        if not gone:
            self._say(f"ERROR: machines of run {self.of_run.tag} were not seen gone; they end by themselves")

    @property
    def _ti(self) -> Any:
        return self.task_instance

    async def _is_deferred(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti = self._ti
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
        return _state_of(states, ti.run_id) == "deferred"

    async def _owner(self) -> str | None:
        """The id of the task instance that drives now."""
        from asgiref.sync import sync_to_async

        ti = self._ti
        get = XCom.aget_one if hasattr(XCom, "aget_one") else sync_to_async(XCom.get_one)
        value = await get(
            key=OWNER_KEY, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
        )
        return value["owner"] if isinstance(value, dict) else None

    def _say(self, line: str) -> None:
        self.log.info("%s", line)


def _import_control() -> None:
    """What takes long to import, for a thread: the triggerer's loop serves every trigger."""
    import asgiref.sync  # noqa: F401
    import obstore  # noqa: F401

    import airflow_provider_spotbatch.control.cancel
    import airflow_provider_spotbatch.control.controller
    import airflow_provider_spotbatch.control.drive
    import airflow_provider_spotbatch.control.site
    import airflow_provider_spotbatch.hooks
    import airflow_provider_spotbatch.metrics  # noqa: F401


def _detach(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that asks Airflow's supervisor, and leave it running where that is cancelled.

    Before Airflow 3.3 an answer that nobody takes any more ends the whole triggerer.
    """
    return await asyncio.shield(asyncio.ensure_future(work))


def _state_of(states: dict[str, Any], run_id: str) -> str:
    """The one state in an answer of the form run → (task, or task with map index) → state."""
    found = list(states.get(run_id, {}).values())
    if len(found) != 1:
        raise LookupError(f"Airflow knows {len(found)} states of the task")
    return str(found[0])
