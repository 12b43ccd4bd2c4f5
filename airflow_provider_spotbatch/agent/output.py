"""What a worker prints, taken apart: which text belongs to which item, bounded for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
"""Of a longer output the first and the last bytes are kept: where it began, and what went wrong."""

LINE_BYTES = 16 * 1024
"""A line that is longer is cut into pieces, so that it can be shown before it ends."""

FAILURE_LINES = 20
FAILURE_BYTES = 4096
"""What a failure shows of its item's output."""

PAUSE_SECONDS = 0.002
"""Pause between two reads of a busy pipe: one wake-up then serves many short items."""

_BUSY_BYTES = 32 * 1024


class LineSink(Protocol):
    def __call__(self, item: int | None, attempt: int, text: str) -> None: ...


class PacedProtocol(asyncio.Protocol):
    """Reads a pipe, with a short pause after small pieces that come one after another."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.ReadTransport | None = None
        self._woken = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.ReadTransport):
            raise TypeError(f"a pipe to read from was expected, not {transport!r}")
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.take(data)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if len(data) < _BUSY_BYTES and now - self._woken < 2 * PAUSE_SECONDS and self._transport is not None:
            self._transport.pause_reading()
            loop.call_later(PAUSE_SECONDS, self._resume)
        self._woken = now

    def take(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class ItemOutput:
    """The output of one item: whole lines go to ``emit`` as they come, the middle of a flood is left out."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._head_left = HEAD_BYTES
        self._line = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self._recent = bytearray()

    def feed(self, data: bytes) -> None:
        self._recent += data[-FAILURE_BYTES:]
        del self._recent[:-FAILURE_BYTES]
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        if head:
            self._take_lines(head)
        if rest:
            self._tail += rest[-TAIL_BYTES:]
            self._left_out += max(0, len(rest) - TAIL_BYTES)
            if len(self._tail) > 2 * TAIL_BYTES:
                self._trim()

    def close(self) -> None:
        """The item has ended: what is still kept goes out."""
        self._trim()
        if self._left_out:
            self._flush_line()
            self._emit(f"… {self._left_out:,} bytes of output were left out …")
        self._take_lines(bytes(self._tail))
        self._flush_line()

    @property
    def last_lines(self) -> str:
        text = bytes(self._recent).decode("utf-8", "backslashreplace")
        return "\n".join(text.splitlines()[-FAILURE_LINES:])

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - TAIL_BYTES)
        self._left_out += surplus
        del self._tail[:surplus]

    def _take_lines(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for line in ended:
            self._line += line
            self._emit_line()
        self._line += rest
        if len(self._line) > LINE_BYTES:
            self._emit_line()

    def _flush_line(self) -> None:
        if self._line:
            self._emit_line()

    def _emit_line(self) -> None:
        line = bytes(self._line).removesuffix(b"\r")
        self._line.clear()
        for start in range(0, len(line) or 1, LINE_BYTES):
            self._emit(line[start : start + LINE_BYTES].decode("utf-8", "backslashreplace"))


class WorkerOutput(PacedProtocol):
    """Reads a worker's standard output and error: one pipe, with a mark after the output of each item."""

    def __init__(self, nonce: str, sink: LineSink) -> None:
        super().__init__()
        self._sink = sink
        self._mark = b"\x1e" + nonce.encode() + b":"
        self._unread = b""
        self._items: list[int] = []
        self._attempt = 0
        self._at = 0
        self._output: ItemOutput | None = None
        self._tails: dict[int, str] = {}
        self._all_ended: asyncio.Future[None] | None = None

    def begin(self, items: list[int], attempt: int) -> None:
        """What is printed from now on belongs to these items, in this order, one mark after each."""
        self._close_item()
        self._items, self._attempt, self._at = items, attempt, 0
        self._tails = {}
        self._all_ended = asyncio.get_running_loop().create_future()

    async def caught_up(self, timeout: float) -> None:
        """Return once the last item's mark was read, or the pipe is closed, or time is over."""
        if self._all_ended is not None:
            await asyncio.wait({self._all_ended, self.closed}, timeout=timeout, return_when="FIRST_COMPLETED")

    def tail(self, item: int | None) -> str:
        """The last lines of a failed item, or of what was printed since the last mark."""
        if item in self._tails:
            return self._tails[item]
        return self._output.last_lines if self._output is not None else ""

    def finish(self) -> None:
        """The worker is gone: its unfinished output goes out."""
        self._feed(self._unread)
        self._unread = b""
        self._close_item()

    def take(self, data: bytes) -> None:
        data = self._unread + data
        while True:
            start = data.find(self._mark)
            end = data.find(b"\x1f", start) if start >= 0 else -1
            if end < 0:
                break
            self._feed(data[:start])
            self._end_item(data[start + len(self._mark) : end])
            data = data[end + 1 :]
        keep = len(data) - start if start >= 0 else self._started_mark(data)
        self._feed(data[: len(data) - keep])
        self._unread = data[len(data) - keep :]

    def _started_mark(self, data: bytes) -> int:
        """How many bytes at the end of ``data`` may be the start of a mark."""
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark)))
        return len(data) - at if at >= 0 and self._mark.startswith(data[at:]) else 0

    def _feed(self, data: bytes) -> None:
        if not data:
            return
        if self._output is None:
            item = self._items[self._at] if self._at < len(self._items) else None
            attempt = self._attempt
            self._output = ItemOutput(lambda text: self._sink(item, attempt, text))
        self._output.feed(data)

    def _end_item(self, mark: bytes) -> None:
        index, failed = (int(number) for number in mark.split(b":"))
        if failed and self._output is not None:
            self._tails[index] = self._output.last_lines
        elif failed:
            self._tails[index] = ""
        self._close_item()
        self._at += 1
        if self._at == len(self._items) and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _close_item(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None
