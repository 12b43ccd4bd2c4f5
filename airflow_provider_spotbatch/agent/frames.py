"""Frames between agent and worker, as the agent sees them: see ``worker.py`` for their layout."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from airflow_provider_spotbatch.agent.output import PacedProtocol

FRAME = struct.Struct("<IQ")


def pack_frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return FRAME.pack(len(text), len(body)) + text + body


class FrameReader(PacedProtocol):
    """Gives each whole frame that arrives to ``on_frame``."""

    def __init__(self, on_frame: Callable[[dict[str, Any], bytes], None]) -> None:
        super().__init__()
        self._on_frame = on_frame
        self._buffer = bytearray()

    def take(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= FRAME.size:
            header_size, body_size = FRAME.unpack_from(buffer, at)
            body_at = at + FRAME.size + header_size
            if len(buffer) < body_at + body_size:
                break
            header = json.loads(buffer[at + FRAME.size : body_at])
            with memoryview(buffer) as view:  # bodies are large: not copied twice
                body = bytes(view[body_at : body_at + body_size])
            at = body_at + body_size
            self._on_frame(header, body)
        del buffer[:at]
