"""Waits with a deadline."""

from __future__ import annotations

import asyncio
import gc

import pytest

from airflow_provider_spotbatch.backends.deadline import within


async def answer(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "answer"


def test_an_answer_or_an_error_in_time_is_handed_on() -> None:
    async def broken() -> None:
        raise OSError("gone")

    assert asyncio.run(within(5.0, answer(0.0))) == "answer"
    with pytest.raises(OSError, match="gone"):
        asyncio.run(within(5.0, broken()))


def test_what_takes_too_long_is_cancelled() -> None:
    async def scenario() -> None:
        work = asyncio.ensure_future(answer(60.0))
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, work)
        await asyncio.wait({work}, timeout=5.0)
        assert work.cancelled()

    asyncio.run(scenario())


def test_a_cancel_that_meets_the_answer_is_not_swallowed() -> None:
    async def scenario() -> None:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        caller = asyncio.ensure_future(within(5.0, work))
        await asyncio.sleep(0)
        work.set_result("answer")
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scenario())


def test_a_cancelled_caller_cancels_the_work() -> None:
    async def scenario() -> None:
        work = asyncio.ensure_future(answer(60.0))
        caller = asyncio.ensure_future(within(5.0, work))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({work}, timeout=5.0)
        assert work.cancelled()

    asyncio.run(scenario())


def test_an_error_that_a_cancel_meets_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        caller = asyncio.ensure_future(within(5.0, work))
        await asyncio.sleep(0)
        work.set_exception(OSError("gone"))
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.sleep(0)

    asyncio.run(scenario())
    gc.collect()
    assert caplog.records == []
