"""The items of a chunk, read from their parts with as few requests as sense allows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.chunks import Chunk
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.items import offsets_from_bytes, unpack
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spec import Spec

KEPT_OFFSETS = 8
"""Offset tables at hand, 512 KB each at most: chunks come roughly in item order."""

GAP_BYTES = 256 * 1024
"""Ranges of one part that are nearer than this are read at once: a request costs more than the gap."""

READS_AT_ONCE = 8


@dataclass(frozen=True)
class ItemInput:
    """One item as it is sent to a worker: encoded, its MAC checked."""

    index: int
    kind: str
    payload: bytes = field(repr=False)


class ChunkInputs:
    """Reads chunks of one generation."""

    def __init__(self, store: Store, signer: Signer, spec: Spec) -> None:
        self._store = store
        self._signer = signer
        self._generation: Generation = spec.generation
        self._table = spec.items
        self._offsets: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    async def read(self, chunk: Chunk) -> list[ItemInput]:
        """The chunk's items, in order. Raises StoreUnavailable, and SignatureMismatch for forged ones."""
        pieces: list[tuple[int, int, int]] = []
        for start, stop in chunk.ranges:
            pieces += self._table.split(start, stop)
        for part in dict.fromkeys(part for part, _, _ in pieces):
            await self._load_offsets(part)
        read = await asyncio.gather(*(self._read(group) for group in self._grouped(pieces)))
        return [item for items in read for item in items]

    async def _load_offsets(self, part: int) -> None:
        if part in self._offsets:
            self._offsets.move_to_end(part)
            return
        name = self._generation.item_offsets(self._table.submission, part)
        stored = await self._store.read(name)
        if stored is None:
            raise SpotBatchError(f"{name} is missing in {self._store.uri}: was the store cleaned?")
        self._offsets[part] = offsets_from_bytes(stored)
        while len(self._offsets) > KEPT_OFFSETS:
            self._offsets.popitem(last=False)

    def _grouped(self, pieces: list[tuple[int, int, int]]) -> list[tuple[int, Sequence[int], list[range]]]:
        """Pieces ``(part, start, stop)`` that one request reads together: part, its offsets, item ranges."""
        groups: list[tuple[int, Sequence[int], list[range]]] = []
        for part, start, stop in pieces:
            first = self._table.parts[part].first
            if groups and groups[-1][0] == part:
                offsets, ranges = groups[-1][1:]
                if offsets[start - first] - offsets[ranges[-1].stop - first] <= GAP_BYTES:
                    ranges.append(range(start, stop))
                    continue
            groups.append((part, self._offsets[part], [range(start, stop)]))
        return groups

    async def _read(self, group: tuple[int, Sequence[int], list[range]]) -> list[ItemInput]:
        part, offsets, ranges = group
        first = self._table.parts[part].first
        begin, end = offsets[ranges[0].start - first], offsets[ranges[-1].stop - first]
        name = self._generation.item_part(self._table.submission, part)
        async with self._reading:
            data = await self._store.read_range(name, begin, end)
        if data is None:
            raise SpotBatchError(f"{name} is missing in {self._store.uri}: was the store cleaned?")
        return await asyncio.to_thread(self._unpacked, data, offsets, first, ranges)

    def _unpacked(
        self, data: bytes, offsets: Sequence[int], first: int, ranges: list[range]
    ) -> list[ItemInput]:
        begin = offsets[ranges[0].start - first]
        items = []
        for index in (index for indexes in ranges for index in indexes):
            at, stop = offsets[index - first] - begin, offsets[index - first + 1] - begin
            items.append(ItemInput(index, *unpack(self._signer, index, data[at:stop])))
        return items
