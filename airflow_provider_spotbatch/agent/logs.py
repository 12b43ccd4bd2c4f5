"""The output of items on its way to the store: JSON lines, many in one object."""

from __future__ import annotations

import json
import logging
import time

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import StoreUnavailable
from airflow_provider_spotbatch.job.keys import Generation

PENDING_BYTES = 16 * 1024 * 1024
"""Lines waiting for the store; what comes on top is counted and dropped: memory belongs to the items."""

log = logging.getLogger(__name__)


class Logs:
    """Collects lines; each flush writes those there are as one object."""

    def __init__(self, store: Store, generation: Generation, instance: str) -> None:
        self._store = store
        self._generation = generation
        self._instance = instance
        self._lines: list[str] = []
        self._size = 0
        self._dropped = 0
        self._number = 0

    def add(self, item: int | None, attempt: int, text: str) -> None:
        if self._size > PENDING_BYTES:
            self._dropped += 1
            return
        self._append({"item": item, "attempt": attempt, "time": round(time.time(), 3), "text": text})

    async def flush(self) -> None:
        """Write what there is. When the store does not answer, it stays for the next flush."""
        if self._dropped:
            text = f"… {self._dropped:,} lines were dropped: they came faster than they can be stored …"
            self._append({"item": None, "attempt": 0, "time": round(time.time(), 3), "text": text})
            self._dropped = 0
        if not self._lines:
            return
        lines, size = self._lines, self._size
        self._lines, self._size = [], 0
        name = self._generation.log(self._instance, self._number)
        try:
            await self._store.write(name, ("\n".join(lines) + "\n").encode())
            self._number += 1
            lines, size = [], 0
        except StoreUnavailable as error:
            log.warning("the output of items waits: %s", error)
        finally:  # also when cancelled: the next flush writes this object anew, with these lines
            self._lines[:0] = lines
            self._size += size

    def _append(self, line: dict[str, object]) -> None:
        text = json.dumps(line)
        self._lines.append(text)
        self._size += len(text)
