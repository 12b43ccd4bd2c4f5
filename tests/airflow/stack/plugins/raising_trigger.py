"""A trigger that fails while its job runs, as one does whose triggerer has a broken installation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_spotbatch.triggers import SpotMapTrigger


class RaisingTrigger(SpotMapTrigger):
    """Drives its run until the file ``raise_at`` is there, then raises."""

    def __init__(self, raise_at: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.raise_at = raise_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = super().serialize()[1]
        return "raising_trigger.RaisingTrigger", {"raise_at": self.raise_at, **kwargs}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        driving = asyncio.ensure_future(super().run().__anext__())
        while not await asyncio.to_thread(os.path.exists, self.raise_at):  # noqa: ASYNC110 - a test makes it
            await asyncio.sleep(0.2)
        driving.cancel()
        raise RuntimeError("this trigger is broken")
        yield
