"""How often EC2 is asked for all machines: where it refuses ever less often, not in step with others."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.instances import REST_SECONDS_MOST, Instances
from airflow_provider_spotbatch.job.errors import Throttled
from tests.unit.backends.aws.sdk import Sdk

TWO_MINUTES = 120.0


class Story:
    """A process that looks every second while EC2 refuses it for two minutes, and for a while after."""

    def __init__(self, code: str, seed: int) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.refused_looks = 0
        refused_until = self.now + TWO_MINUTES

        def describe(**_: object) -> dict[str, object]:
            self.asked.append(self.now - 1000.0)
            if self.now < refused_until:
                sdk.answer("Refusing", {})
            return {"Reservations": []}

        sdk = Sdk(DescribeInstances=describe, Refusing=code)
        chance = random.Random(seed).random
        self._instances = Instances(sdk.clients(), "s3://b/p", clock=lambda: self.now, chance=chance)

    async def look(self) -> None:
        try:
            await self._instances.all()
        except Throttled:
            self.refused_looks += 1

    def told(self, seconds: int) -> Story:
        async def main() -> None:
            for _ in range(seconds):
                self._instances.forget()
                await self.look()
                self.now += 1.0

        asyncio.run(main())
        return self


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_describe_refused_for_two_minutes_is_asked_ever_less_often(code: str) -> None:
    story = Story(code, seed=1).told(int(TWO_MINUTES))
    assert story.refused_looks == TWO_MINUTES
    pauses = [later - earlier for earlier, later in zip(story.asked, story.asked[1:], strict=False)]
    assert 5 <= len(story.asked) <= 15
    assert max(pauses[:2]) < 8 < max(pauses) <= 1.5 * REST_SECONDS_MOST + 1


def test_processes_that_were_refused_together_do_not_ask_together_again() -> None:
    mine, theirs = (Story("RequestLimitExceeded", seed).told(int(TWO_MINUTES)) for seed in (1, 2))
    assert len(set(mine.asked) & set(theirs.asked)) < len(mine.asked) / 2


def test_once_it_is_answered_it_is_asked_as_often_as_before() -> None:
    story = Story("RequestLimitExceeded", seed=1).told(int(TWO_MINUTES + REST_SECONDS_MOST * 1.5 + 60))
    assert story.asked[-20:] == [story.asked[-1] - second for second in range(19, -1, -1)]


@pytest.mark.parametrize(("look_takes", "serves"), [(0.05, 1.0), (0.6, 3.0), (4.0, 5.0)])
def test_the_longer_a_look_takes_the_longer_it_serves_others(look_takes: float, serves: float) -> None:
    now = 0.0

    def describe(**_: Any) -> dict[str, Any]:
        nonlocal now
        now += look_takes
        return {"Reservations": []}

    async def main() -> None:
        nonlocal now
        sdk = Sdk(DescribeInstances=describe)
        machines = Instances(sdk.clients(), "s3://bucket", clock=lambda: now)
        await machines.all()
        now = serves - 0.01
        await machines.all()
        assert len(sdk.asked("DescribeInstances")) == 1
        now = serves + 0.01
        await machines.all()
        assert len(sdk.asked("DescribeInstances")) == 2
        machines.forget()
        await machines.all()
        assert len(sdk.asked("DescribeInstances")) == 3

    asyncio.run(main())
