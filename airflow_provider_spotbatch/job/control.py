"""``control.json``: what the controller tells all agents of a run. Rewritten by controllers alone.

Its being rewritten is itself the sign of life that agents wait for (``orphan_after``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch

FORMAT = 1


@dataclass(frozen=True)
class Control:
    """``beat`` grows with each write; ``spend_for``: seconds until the budget is gone at the present
    burn, None without a budget; ``report_every``: seconds between reports; ``drain``: lease nothing more.
    """

    beat: int
    report_every: float = 1.0
    spend_for: float | None = None
    drain: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **self.__dict__}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Control:
        stored: dict[str, Any] = json.loads(data)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("control.json has a format that this release does not read")
        return cls(**stored)
