"""Functions that jobs of the tests run; machines import this file, so it needs the standard library alone."""

from __future__ import annotations

from typing import Any


def same(item: Any) -> Any:
    return item


def quarter_megabyte(index: int) -> bytes:
    return bytes([index]) * (256 * 1024)


def hold_megabytes(item: int) -> int:
    return len(bytearray(item * 1024 * 1024))
