"""The failures of a run, grouped by cause and error, in bounded memory however many items failed."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.heads import read_failure, read_head
from airflow_provider_spotbatch.control.run_summary import RunDocuments
from airflow_provider_spotbatch.control.stored import reading
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.index import BLOCK_BYTES, BLOCK_RECORDS, RECORD, open_block, place_at
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.outcome import CAUSES, FAILURE, INTERRUPTED, OK, Failure, ResultHead
from airflow_provider_spotbatch.job.report import EndedChunk, Report, seal_from_bytes

MOST_GROUPS = 10_000
"""Errors that are told apart; of the others (each message may name its item) only the causes are counted."""

AT_ONCE = 4
"""Result heads read at the same time: one of 10,000 items takes some ten megabytes while it is read."""

KEPT_ROWS = 100_000
"""Failed rows of result heads kept at hand: the items of a chunk need not follow each other."""

_NO_FAILURES = bytes((CAUSES.index(OK), 255))
"""State bytes of index records that are no failure."""


@dataclass
class FailureGroup:
    """Failures with the same cause and error. ``items``: the first few; ``example``: where the first
    one's traceback lies; ``preview``: the first one's input, ``attempts``: how often that was run."""

    cause: str
    label: str
    example: tuple[ChunkId, int]
    preview: str
    attempts: int
    count: int = 0
    items: list[int] = field(default_factory=list)


@dataclass
class FailureGroups:
    """``groups``: most frequent first. ``final``: each item counts once, as it ended; before the run's
    end every failed attempt counts, and some will be repeated. ``others``: failures by cause beyond
    the groups that are kept apart."""

    final: bool
    groups: list[FailureGroup]
    others: dict[str, int]

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups) + sum(self.others.values())


@dataclass(frozen=True)
class _Failed:
    item: int
    attempts: int
    cause: str
    label: str
    preview: str
    at: tuple[ChunkId, int]


async def group_failures(store: Store, documents: RunDocuments, *, items_shown: int = 5) -> FailureGroups:
    """The failures of a run, from its index, or as far as its machines have reported them."""
    final = await store.exists(documents.run.index)
    failures = _by_index(store, documents) if final else _by_reports(store, documents)
    groups: dict[tuple[str, str], FailureGroup] = {}
    others: Counter[str] = Counter()
    async for failed in failures:
        group = groups.get((failed.cause, failed.label))
        if group is None:
            if len(groups) == MOST_GROUPS:
                others[failed.cause] += 1
                continue
            group = FailureGroup(failed.cause, failed.label, failed.at, failed.preview, failed.attempts)
            groups[failed.cause, failed.label] = group
        group.count += 1
        if len(group.items) < items_shown:
            group.items.append(failed.item)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.items[:1]))
    return FailureGroups(final, ordered, dict(others))


async def read_example(store: Store, documents: RunDocuments, group: FailureGroup) -> Failure | None:
    """The failure of a group's first item, with its traceback; None where its result is gone."""
    chunk, ordinal = group.example
    head = await read_head(store, documents.signer, documents.run.generation, chunk)
    if head is None:
        return None
    return await read_failure(store, documents.run.generation, head, ordinal)


# --- a run that is over: its index names the failures -----------------------------------------------


async def _by_index(store: Store, documents: RunDocuments) -> AsyncIterator[_Failed]:
    heads = _FailedRows(store, documents)
    for number in itertools.count():
        start = number * BLOCK_BYTES
        if number * BLOCK_RECORDS >= documents.spec.items.count:
            return
        data = await store.read_range(documents.run.index, start, start + BLOCK_BYTES)
        if data is None:
            raise SpotBatchError(f"the index of run {documents.run.tag} was removed while it was read")
        records = open_block(documents.signer, documents.run.number, number, data)
        states = records[:: RECORD.size]
        failed = [position for position, state in enumerate(states) if state not in _NO_FAILURES]
        places = [(position, place_at(records, position)) for position in failed]
        await heads.fetch({place.chunk for _, place in places if place.chunk is not None})
        for position, place in places:
            assert place.chunk is not None
            label, preview = await heads.of(place.chunk, place.ordinal)
            item, cause = number * BLOCK_RECORDS + position, place.cause or ""
            yield _Failed(item, place.attempts, cause, label, preview, (place.chunk, place.ordinal))


class _FailedRows:
    """Labels and previews of failed items by chunk, those read last."""

    def __init__(self, store: Store, documents: RunDocuments) -> None:
        self._store = store
        self._documents = documents
        self._rows: OrderedDict[ChunkId, dict[int, tuple[str, str]]] = OrderedDict()
        self._held = 0

    async def fetch(self, chunks: set[ChunkId]) -> None:
        """Have these at hand, as far as there is room for them."""
        missing = sorted(chunks - self._rows.keys())
        for start in range(0, len(missing), AT_ONCE):
            await asyncio.gather(*(self._read(chunk) for chunk in missing[start : start + AT_ONCE]))

    async def of(self, chunk: ChunkId, ordinal: int) -> tuple[str, str]:
        """Label and preview of the input."""
        if chunk not in self._rows:
            await self._read(chunk)
        self._rows.move_to_end(chunk)
        return self._rows[chunk].get(ordinal, ("the result is gone", ""))

    async def _read(self, chunk: ChunkId) -> None:
        documents = self._documents
        head = await read_head(self._store, documents.signer, documents.run.generation, chunk)
        rows = {} if head is None else await asyncio.to_thread(_failed_rows, head)
        self._rows[chunk] = {ordinal: (label, preview) for ordinal, label, preview in rows}
        self._held += len(rows)
        while self._held > KEPT_ROWS and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._held -= len(dropped)


def _failed_rows(head: ResultHead) -> list[tuple[int, str, str]]:
    """Ordinal, label and input preview of each failed item of a chunk."""
    labels, previews = head.details["preview_out"], head.details["preview_in"]
    return [
        (ordinal, str(labels[ordinal]) or row.cause, str(previews[ordinal]))
        for ordinal, row in enumerate(head.rows)
        if row.kind == FAILURE and row.cause != INTERRUPTED
    ]


# --- a run that still runs: its machines tell which chunks hold failures ---------------------------------


async def _by_reports(store: Store, documents: RunDocuments) -> AsyncIterator[_Failed]:
    seen: set[str] = set()
    async for ended in _ended_chunks(store, documents):
        wanted = [chunk for chunk in ended if (chunk.failed or chunk.found) and chunk.chunk not in seen]
        seen.update(chunk.chunk for chunk in wanted)
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            for head in await asyncio.gather(*(_head(store, documents, chunk) for chunk in some)):
                if head is None:
                    continue
                for ordinal, label, preview in await asyncio.to_thread(_failed_rows, head):
                    row = head.row(ordinal)
                    at = (head.chunk, ordinal)
                    yield _Failed(row.item, row.attempt, row.cause, label, preview, at)


async def _head(store: Store, documents: RunDocuments, chunk: EndedChunk) -> ResultHead | None:
    return await read_head(store, documents.signer, documents.run.generation, ChunkId.parse(chunk.chunk))


async def _ended_chunks(store: Store, documents: RunDocuments) -> AsyncIterator[tuple[EndedChunk, ...]]:
    """The chunks that each of the run's machines tells as ended."""
    run = documents.run
    for entry in await store.list_objects(run.agents):
        data = await store.read(entry.name)
        if data is None:
            continue
        with reading(entry.name):
            ended = Report.from_bytes(data).ended if entry.name.endswith(".json") else seal_from_bytes(data)
        yield ended
