"""What an earlier run finished: its index, taken into the ledger of the next."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.control.ledger import Ledger
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.index import BLOCK_BYTES, BLOCK_RECORDS, RECORD, open_block, place_at
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.outcome import OK

_SUCCEEDED = 0
"""The state byte of a success in an index record: the code of ``ok``."""


async def carry_index(site: Site, earlier: Run, ledger: Ledger) -> None:
    """Mark as done every item that the earlier run's index says has a success."""
    data = await site.store.read(earlier.index)
    if data is None and ledger.count:
        raise SpotBatchError(f"the index of run {earlier.tag} is missing: it cannot be resumed")
    await asyncio.to_thread(_carry, site, earlier, data or b"", ledger)


def _carry(site: Site, earlier: Run, data: bytes, ledger: Ledger) -> None:
    signer = site.signer(earlier.generation)
    for number in range(len(data) // BLOCK_BYTES):
        block = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        records = open_block(signer, earlier.number, number, block)
        for position in range(BLOCK_RECORDS):
            if records[position * RECORD.size] != _SUCCEEDED:
                continue
            place = place_at(records, position)
            item = number * BLOCK_RECORDS + position
            if place.cause == OK and item < ledger.count:
                ledger.carry(item, place)
