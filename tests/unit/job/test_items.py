from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.job import items
from airflow_provider_spotbatch.job.codec import JSON, PICKLE
from airflow_provider_spotbatch.job.errors import SignatureMismatch
from airflow_provider_spotbatch.job.items import ItemTable, Part, PartBuilder, pack, unpack
from airflow_provider_spotbatch.job.signing import Signer

TABLE = ItemTable("s", 25, (Part(0, 10, 100), Part(10, 10, 100), Part(20, 5, 50)))


@pytest.mark.parametrize("kind", [JSON, PICKLE])
@pytest.mark.parametrize("payload", [b"", b'"text"', bytes(range(256))])
def test_a_record_reads_back(signer: Signer, kind: str, payload: bytes) -> None:
    assert unpack(signer, 5, pack(signer, 5, kind, payload)) == (kind, payload)


def test_a_record_is_refused_at_another_index(signer: Signer) -> None:
    with pytest.raises(SignatureMismatch, match="'6'"):
        unpack(signer, 6, pack(signer, 5, JSON, b"1"))


@pytest.mark.parametrize("position", [0, 1, 16, 17, -1])
def test_a_record_changed_anywhere_is_refused(signer: Signer, position: int) -> None:
    record = bytearray(pack(signer, 5, JSON, b"[1,2]"))
    record[position] ^= 1

    with pytest.raises(SignatureMismatch):
        unpack(signer, 5, bytes(record))


def test_a_json_record_cannot_be_made_a_pickle(signer: Signer) -> None:
    record = pack(signer, 5, JSON, b"1")

    with pytest.raises(SignatureMismatch):
        unpack(signer, 5, b"P" + record[1:])


@pytest.mark.parametrize(("item", "part"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (24, 2)])
def test_an_item_is_found_in_its_part(item: int, part: int) -> None:
    assert TABLE.part_of(item) == part


@pytest.mark.parametrize("item", [-1, 25])
def test_an_item_that_is_not_there_is_refused(item: int) -> None:
    with pytest.raises(IndexError, match="of 25"):
        TABLE.part_of(item)


@pytest.mark.parametrize(
    ("start", "stop", "pieces"),
    [
        (0, 10, [(0, 0, 10)]),
        (9, 11, [(0, 9, 10), (1, 10, 11)]),
        (5, 25, [(0, 5, 10), (1, 10, 20), (2, 20, 25)]),
        (7, 7, []),
    ],
)
def test_a_range_is_split_at_the_parts(start: int, stop: int, pieces: list[tuple[int, int, int]]) -> None:
    assert list(TABLE.split(start, stop)) == pieces


@given(st.lists(st.binary(max_size=50), max_size=50))
def test_offsets_cut_a_part_back_into_its_records(records: list[bytes]) -> None:
    builder = PartBuilder(100)
    for record in records:
        builder.add(record)

    offsets = items.offsets_from_bytes(builder.packed_offsets)

    assert [bytes(builder.data[start:stop]) for start, stop in pairwise(offsets)] == records
    assert builder.part == Part(100, len(records), sum(map(len, records)))


def test_offsets_are_little_endian_and_one_more_than_the_records() -> None:
    assert items.offsets_to_bytes(array("Q", [0, 258])) == bytes(8) + b"\x02\x01" + bytes(6)


def test_a_part_is_full_at_its_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PART_ITEMS", 2)
    builder = PartBuilder(0)

    builder.add(b"a")
    assert not builder.full
    builder.add(b"b")
    assert builder.full


def test_a_part_is_full_at_its_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PART_BYTES", 10)
    builder = PartBuilder(0)

    builder.add(b"123456789")
    assert not builder.full
    builder.add(b"0")
    assert builder.full
