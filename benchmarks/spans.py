"""When a job's items ran, from what its machines stored."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.job.keys import ChunkId, Generation
from airflow_provider_spotbatch.job.outcome import decode_head, head_size


class Span(NamedTuple):
    """Seconds since the epoch: the first item's start, and the writing of the last result."""

    first_start: float
    last_result: float

    @property
    def seconds(self) -> float:
        return self.last_result - self.first_start


def span_of(settings: Settings, generation: Generation) -> Span:
    """The span of a generation that is over."""
    return asyncio.run(_span_of(settings, generation))


async def _span_of(settings: Settings, generation: Generation) -> Span:
    site = open_site(settings)
    signer = site.signer(generation)
    entries = await site.store.list_objects(generation.results)
    starts: list[float] = []
    for entry in entries:
        chunk = ChunkId.parse(entry.name.rsplit("/", 1)[1])
        data = await site.store.read(entry.name)
        assert data is not None, entry.name
        starts += decode_head(signer, chunk, data[: head_size(data)]).details["start"]
    return Span(min(starts), max(entry.modified for entry in entries))
