"""The store's time, by which the ages of what others wrote are reckoned: no two machines' clocks are
compared."""

from __future__ import annotations

import json
import uuid

from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.keys import Run


async def store_ahead(site: Site, run: Run) -> float:
    """What the site's clock shows less the store's time, in seconds."""
    name = run.driver(uuid.uuid4().hex[:12])
    await site.store.write(name, json.dumps({"format": 1, "at": site.wall_clock()}).encode())
    now = site.clock()
    entries = await site.store.list_objects(run.drivers)
    return now - next((entry.modified for entry in entries if entry.name == name), now)
