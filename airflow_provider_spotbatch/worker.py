"""The control facade as a task's process uses it: synchronous, and able to end its run when killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_spotbatch.backends import open_backend
from airflow_provider_spotbatch.control.metrics import SILENT
from airflow_provider_spotbatch.job.errors import JobFailed, SpotBatchError

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.base import Backend
    from airflow_provider_spotbatch.backends.settings import Settings
    from airflow_provider_spotbatch.control.metrics import Metrics
    from airflow_provider_spotbatch.control.site import Site
    from airflow_provider_spotbatch.control.submit import JobRequest, Submitted
    from airflow_provider_spotbatch.job.keys import Run
    from airflow_provider_spotbatch.job.run_outcome import Outcome

KILL_SECONDS = 4.0
"""Airflow follows SIGTERM with SIGKILL after 5 s."""

END_SECONDS = 15 * 60.0
"""How long machines may take to be seen gone before the task fails and names the run."""

T = TypeVar("T")


class Worker:
    """One task process's hold on a run. ``say`` writes a line to the task's log."""

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None],
        run: Run | None = None,
        metrics: Metrics = SILENT,
    ) -> None:
        self._settings = settings
        self._say = say
        self._metrics = metrics
        self.run = run
        self._killed = False
        self._stop: Callable[[], Any] | None = None

    def submit(self, request: JobRequest) -> Submitted:
        """Write the job's specification and its run; what is already finished comes back as outcome."""
        from airflow_provider_spotbatch.control.submit import submit

        submitted = self._in_loop(lambda site: submit(site, request, self._say, self._metrics))
        self.run = submitted.run
        return submitted

    def first_tick(self) -> bool:
        """Ask for machines at once, before anything else drives the run; whether it is over already."""
        from airflow_provider_spotbatch.control.controller import Controller

        run = self._own_run

        async def tick(site: Site) -> bool:
            controller = Controller(site, run, self._say, self._metrics)
            turn = await controller.tick()
            controller.leave()
            return turn.over

        return self._in_loop(tick)

    def drive(self) -> None:
        """Drive the run to its end in this process."""
        from airflow_provider_spotbatch.control.controller import Controller
        from airflow_provider_spotbatch.control.drive import drive

        run = self._own_run
        self._in_loop(lambda site: drive(Controller(site, run, self._say, self._metrics), self._say))

    def finish(self) -> Outcome:
        """Write the run's index and outcome."""
        from airflow_provider_spotbatch.control.finish import finish

        run = self._own_run
        return self._in_loop(lambda site: finish(site, run, self._say, self._metrics))

    def end(self, reason: str) -> None:
        """End the run's machines, and say so if they were not seen gone."""
        if not self._cancel(reason, END_SECONDS):
            self._say(
                f"ERROR: machines of run {self._own_run.tag} were not seen gone and may cost money; "
                "they end by themselves at their own limits"
            )

    def kill(self) -> None:
        """From a signal handler: stop what runs here and end the run's machines, in the time there is.

        In a thread of its own: the handler may have interrupted the event loop of this one.
        """
        self._killed = True
        if self._stop is not None:
            self._stop()
        if self.run is not None:
            thread = threading.Thread(target=self._cancel_in_haste, daemon=True)
            thread.start()
            thread.join(KILL_SECONDS)

    @property
    def store_uri(self) -> str:
        return self._backend.store_uri

    def continues_elsewhere(self) -> str | None:
        """What identifies this machine, where the run can be driven from it alone."""
        return self._backend.continues_elsewhere()

    @property
    def _backend(self) -> Backend:
        return open_backend(self._settings)

    @property
    def _own_run(self) -> Run:
        assert self.run is not None, "submit() first"
        return self.run

    def _cancel_in_haste(self) -> None:
        try:
            self._cancel("the task was killed", KILL_SECONDS)
        except SpotBatchError as error:
            self._say(f"ERROR: run {self._own_run.tag} was not cancelled: {error}")

    def _cancel(self, reason: str, seconds: float) -> bool:
        from airflow_provider_spotbatch.control.cancel import cancel

        run = self._own_run

        async def body() -> bool:
            return await cancel(await self._open_site(), run, reason, self._say, deadline=seconds)

        return asyncio.run(body())

    def _in_loop(self, work: Callable[[Site], Coroutine[Any, Any, T]]) -> T:
        async def body() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            return await work(await self._open_site())

        if self._killed:
            raise JobFailed("the task was killed")
        try:
            return asyncio.run(body())
        except asyncio.CancelledError:
            if not self._killed:
                raise
            raise JobFailed("the task was killed; the machines of its run were told to end") from None
        finally:
            self._stop = None
            self._metrics.flush()  # Airflow ends the process by itself, after which nothing is sent

    async def _open_site(self) -> Site:
        from airflow_provider_spotbatch.control.site import open_site

        return await asyncio.to_thread(open_site, self._settings)
