from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.job import chunks
from airflow_provider_spotbatch.job.chunks import Batch, Chunk, from_message, ranges_of, to_message
from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import ChunkId

CHUNK = Chunk(ChunkId(1, 2, 3), ((0, 4), (7, 8)), attempt=2, memory_class=1)


def test_a_chunk_counts_and_lists_its_items() -> None:
    assert CHUNK.count == 5
    assert list(CHUNK.items()) == [0, 1, 2, 3, 7]


@given(st.sets(st.integers(0, 200)))
def test_ranges_cover_exactly_the_items_and_never_touch(items: set[int]) -> None:
    ranges = ranges_of(sorted(items))

    assert list(Chunk(ChunkId(1, 1, 1), ranges).items()) == sorted(items)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def test_a_message_reads_back() -> None:
    assert from_message(to_message(CHUNK)) == CHUNK


def test_a_message_stays_small_however_many_items_it_names() -> None:
    assert len(to_message(Chunk(ChunkId(1, 2, 3), ((0, 1_000_000),)))) < 200


@pytest.mark.parametrize("kind", [chunks.FRESH, chunks.RETRY, chunks.RESEND])
def test_a_batch_reads_back(kind: str) -> None:
    batch = Batch(4, kind, (CHUNK, Chunk(ChunkId(1, 4, 0), ((9, 10),))))

    assert Batch.from_bytes(batch.to_bytes()) == batch


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_format_is_refused(version: int | None) -> None:
    with pytest.raises(FormatMismatch, match="reads 1"):
        from_message(json.dumps({**json.loads(to_message(CHUNK)), "format": version}))
    with pytest.raises(FormatMismatch, match="reads 1"):
        Batch.from_bytes(
            json.dumps({**json.loads(Batch(1, "fresh", ()).to_bytes()), "format": version}).encode()
        )
