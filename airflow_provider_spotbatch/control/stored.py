"""What is read from the store and cannot be understood becomes one clear error, with the object's name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_spotbatch.job.errors import FormatMismatch, SpotBatchError

_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, struct.error)
"""What the readers of stored forms raise for bytes that are none of theirs."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Read the stored object ``name``. Raises FormatMismatch where it is cut off, foreign, or in a form that
    this release does not know."""
    try:
        yield
    except SpotBatchError:
        raise
    except _NONSENSE as wrong:
        raise FormatMismatch(
            f"the stored object {name} cannot be read ({type(wrong).__name__}: {wrong}): it is damaged, or a "
            "newer release wrote it"
        ) from wrong
