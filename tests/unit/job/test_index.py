from __future__ import annotations

import pytest

from airflow_provider_spotbatch.job.errors import SignatureMismatch
from airflow_provider_spotbatch.job.index import (
    BLOCK_BYTES,
    BLOCK_RECORDS,
    RECORD,
    Place,
    block_span,
    encode_index,
    open_block,
    pack_place,
    place_at,
)
from airflow_provider_spotbatch.job.keys import ChunkId
from airflow_provider_spotbatch.job.outcome import CAUSES
from airflow_provider_spotbatch.job.signing import Signer

NOWHERE = Place(None, 0, None, 0)


def placed(item: int) -> Place:
    return Place(CAUSES[item % len(CAUSES)], item % 7, ChunkId(2, item // 100, item // 10), item % 10)


@pytest.mark.parametrize("items", [0, 1, BLOCK_RECORDS - 1, BLOCK_RECORDS, BLOCK_RECORDS + 1, 10_000])
def test_every_item_is_found_in_its_block(signer: Signer, items: int) -> None:
    data = b"".join(encode_index(signer, 2, (pack_place(placed(item)) for item in range(items))))

    assert len(data) == -(-items // BLOCK_RECORDS) * BLOCK_BYTES
    for item in {0, 1, items // 2, items - 2, items - 1} & set(range(items)):
        number, start, stop = block_span(item)
        records = open_block(signer, 2, number, data[start:stop])
        assert place_at(records, item % BLOCK_RECORDS) == placed(item)


def test_the_last_block_is_padded_with_items_that_have_no_outcome(signer: Signer) -> None:
    data = b"".join(encode_index(signer, 2, [pack_place(placed(0))]))

    records = open_block(signer, 2, 0, data)

    assert place_at(records, 0) == placed(0)
    assert place_at(records, 1) == NOWHERE
    assert place_at(records, BLOCK_RECORDS - 1) == NOWHERE


@pytest.mark.parametrize(
    ("place", "read"),
    [
        (NOWHERE, NOWHERE),
        (Place(None, 3, None, 0), Place(None, 3, None, 0)),
        (Place("error", 300, ChunkId(1, 2, 3), 4), Place("error", 255, ChunkId(1, 2, 3), 4)),
        (
            Place("lost", 1, ChunkId(9999, 9_999_999, 99_999), 10**9),
            Place("lost", 1, ChunkId(9999, 9_999_999, 99_999), 10**9),
        ),
    ],
)
def test_a_record_reads_back(place: Place, read: Place) -> None:
    assert len(pack_place(place)) == RECORD.size == 16
    assert place_at(pack_place(place), 0) == read


def test_a_block_is_refused_in_another_place_or_run(signer: Signer) -> None:
    block = b"".join(encode_index(signer, 2, [pack_place(placed(0))]))

    with pytest.raises(SignatureMismatch):
        open_block(signer, 2, 1, block)
    with pytest.raises(SignatureMismatch):
        open_block(signer, 3, 0, block)


def test_a_changed_or_cut_block_is_refused(signer: Signer) -> None:
    block = b"".join(encode_index(signer, 2, [pack_place(placed(0))]))

    with pytest.raises(SignatureMismatch):
        open_block(signer, 2, 0, b"\x01" + block[1:])
    with pytest.raises(SignatureMismatch):
        open_block(signer, 2, 0, block[:-1])
