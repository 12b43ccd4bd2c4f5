from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_spotbatch.control.controller import Turn
from airflow_provider_spotbatch.control.drive import FAILED_TICKS, LONGEST_PAUSE, drive
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    InvalidInput,
    SignatureMismatch,
    StoreUnavailable,
    Throttled,
)

MORE = Turn(over=False, pause=3.0)
OVER = Turn(over=True, pause=0.0)


class Script:
    """Stands for a controller: each tick gives, or raises, what comes next."""

    def __init__(self, *turns: Turn | Exception) -> None:
        self._turns = list(turns)
        self.paused: list[float] = []
        self.said: list[str] = []
        self.left = False

    async def tick(self) -> Turn:
        turn = self._turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def leave(self) -> None:
        self.left = True

    async def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)

    def drive(self) -> None:
        controller: Any = self
        try:
            asyncio.run(drive(controller, self.said.append, sleep=self.sleep))
        finally:
            assert self.left, "nobody drives it here any more"
        assert self._turns == []


def test_it_ticks_until_the_run_is_over_with_the_pauses_asked_for() -> None:
    script = Script(MORE, MORE, OVER)
    script.drive()
    assert (script.paused, script.said) == ([3.0, 3.0], [])


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no answer"), Throttled("slow down"), OSError("reset"), RuntimeError("?")]
)
def test_what_may_pass_is_said_and_waited_for(error: Exception) -> None:
    script = Script(error, error, MORE, OVER)
    script.drive()
    assert len(script.said) == 2
    assert str(error) in script.said[0]
    assert 1 <= script.paused[0] <= 2 <= script.paused[1] <= 4


@pytest.mark.parametrize(
    "error", [SignatureMismatch("another key"), InvalidInput("no such"), AccessDenied("may not")]
)
def test_what_cannot_pass_is_raised_at_once(error: Exception) -> None:
    script = Script(error)
    with pytest.raises(type(error)):
        script.drive()
    assert script.paused == []


def test_patience_has_an_end_and_bounded_pauses() -> None:
    script = Script(*[StoreUnavailable("no answer")] * FAILED_TICKS)
    with pytest.raises(StoreUnavailable):
        script.drive()
    assert len(script.paused) == FAILED_TICKS - 1
    assert max(script.paused) <= LONGEST_PAUSE


def test_a_tick_that_works_renews_the_patience() -> None:
    away = [StoreUnavailable("no answer")] * (FAILED_TICKS - 1)
    Script(*away, MORE, *away, OVER).drive()
