"""Reads of result objects: the head of one chunk's, and the failure of one item in it."""

from __future__ import annotations

from functools import partial

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.control.threads import parse
from airflow_provider_spotbatch.job.keys import ChunkId, Generation
from airflow_provider_spotbatch.job.outcome import FAILURE, Failure, ResultHead, decode_head, head_size
from airflow_provider_spotbatch.job.signing import Signer

FIRST_READ = 64 * 1024
"""Bytes of a result object read at first: the head of most, in one request."""


async def read_head(
    store: Store, signer: Signer, generation: Generation, chunk: ChunkId
) -> ResultHead | None:
    """:func:`fetch_head` for whoever only looks: what cannot be understood is a FormatMismatch."""
    with reading(generation.result(chunk)):
        return await fetch_head(store, signer, generation, chunk)


async def fetch_head(
    store: Store, signer: Signer, generation: Generation, chunk: ChunkId
) -> ResultHead | None:
    """The head of a chunk's result, or None if it has none (yet)."""
    name = generation.result(chunk)
    data = await store.read_range(name, 0, FIRST_READ)
    if data is None:
        return None
    size = head_size(data)
    if size > len(data):
        data += await store.read_range(name, len(data), size) or b""
    return await parse(partial(decode_head, signer, chunk), data)


async def read_failure(
    store: Store, generation: Generation, head: ResultHead, ordinal: int
) -> Failure | None:
    """What is known of the failure of the item at this place of a chunk; None if it is none."""
    if head.row(ordinal).kind != FAILURE:
        return None
    value = await store.read_range(generation.result(head.chunk), *head.span(ordinal))
    return None if value is None else Failure.from_bytes(head.check(ordinal, value))
