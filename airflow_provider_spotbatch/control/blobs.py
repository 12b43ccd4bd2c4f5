"""Blobs: what is named by its content is written once, and anew before a store might drop it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.keys import blob

REWRITE_SECONDS = 15 * 24 * 3600.0
"""Older ones are written anew: a job of the longest kind (30 days) then needs none older than 45 days,
and buckets made by ``setup`` keep them for a year."""


async def keep_blob(site: Site, sha256: str, write: Callable[[], Awaitable[None]]) -> None:
    """See to it that a blob is there, and will be for long. ``write`` writes it."""
    found = await site.store.find(blob(sha256))
    if found is None or site.wall_clock() - found.modified > REWRITE_SECONDS:
        await write()
