"""``item_context``: what a function may ask about the item it is running."""

from __future__ import annotations

import sys
from typing import Any, Protocol

WORKER_MODULE = "_spotbatch_worker"
"""The module name that the worker answers to on a machine."""


class Interrupted(Protocol):
    """Set once the machine has received its interruption notice."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until set or until ``timeout`` seconds have passed; whether it is set."""
        ...


class Checkpoint(Protocol):
    """Bytes of one item that outlive its machine."""

    def save(self, data: bytes) -> None:
        """Store ``data`` durably before returning; replaces what was saved before."""
        ...

    def load(self) -> bytes | None:
        """What the latest attempt saved, or None."""
        ...


class ItemContext:
    """The running item: ``index``, ``attempt`` (from 1), ``scratch`` (a folder emptied after the
    item), ``cache_dir`` (a folder kept on the machine between items), ``interrupted``, ``checkpoint``.

    Raises RuntimeError outside an item.
    """

    index: int
    attempt: int
    scratch: str
    cache_dir: str
    interrupted: Interrupted
    checkpoint: Checkpoint

    def __reduce__(self) -> str:
        """By its name: a function that uses it travels with the name, not with a copy."""
        return "item_context"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        worker = sys.modules.get(WORKER_MODULE)
        current = getattr(worker, "current", None)
        if current is None:
            raise RuntimeError(
                f"item_context.{name} was read outside an item: it exists only while a function "
                "runs on one, inside the function"
            )
        return getattr(current, name)


item_context = ItemContext()
