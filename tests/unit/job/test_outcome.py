from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.job.codec import JSON, PICKLE
from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.keys import ChunkId, Generation
from airflow_provider_spotbatch.job.outcome import (
    CAUSES,
    ERROR,
    FAILURE,
    INTERRUPTED,
    LOST,
    OK,
    SPENDS_RETRIES,
    Failure,
    ItemOutcome,
    decode_head,
    encode_result,
    head_size,
)
from airflow_provider_spotbatch.job.signing import Signer, derive

CHUNK = ChunkId(1, 2, 3)
MACHINE = {"instance": "i-1", "type": "c7g.large"}
FAILED = Failure("ValueError", "no such page", "Traceback …", "last line\n")

OUTCOMES = [
    ItemOutcome(7, 1, OK, JSON, b'{"a":1}', 10.0, 11.5, 64.5, 1.25, "'seven'", "{'a': 1}"),
    ItemOutcome(8, 2, ERROR, FAILURE, FAILED.to_bytes(), 11.5, 12.0),
    ItemOutcome(10**9, 3, OK, PICKLE, b"", 12.0, 12.0),
]


def test_a_result_reads_back(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES, MACHINE)

    head = decode_head(signer, CHUNK, data)

    assert [(row.item, row.attempt, row.cause, row.kind) for row in head.rows] == [
        (7, 1, OK, JSON),
        (8, 2, ERROR, FAILURE),
        (10**9, 3, OK, PICKLE),
    ]
    values = [head.check(k, data[slice(*head.span(k))]) for k in range(3)]
    assert values == [outcome.value for outcome in OUTCOMES]
    assert Failure.from_bytes(values[1]) == FAILED
    assert head.details == {
        "machine": MACHINE,
        "start": [10.0, 11.5, 12.0],
        "end": [11.5, 12.0, 12.0],
        "peak_mb": [64.5, None, None],
        "cpu_seconds": [1.25, None, None],
        "preview_in": ["'seven'", "", ""],
        "preview_out": ["{'a': 1}", "", ""],
    }


@given(st.lists(st.tuples(st.sampled_from(CAUSES), st.binary(max_size=40)), max_size=20))
def test_every_value_is_found_by_its_span(pairs: list[tuple[str, bytes]]) -> None:
    generation = Generation("job", 1)
    signer = Signer(derive(b"key", generation), generation)
    outcomes = [ItemOutcome(k, 1, cause, PICKLE, value, 0.0, 0.0) for k, (cause, value) in enumerate(pairs)]

    data = encode_result(signer, CHUNK, outcomes, {})
    head = decode_head(signer, CHUNK, data)

    assert [(row.cause, data[slice(*head.span(k))]) for k, row in enumerate(head.rows)] == pairs
    assert len(data) == head.values_at + sum(len(value) for _, value in pairs)


def test_the_head_alone_is_enough_to_read_it(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES, MACHINE)

    size = head_size(data[:20])

    assert decode_head(signer, CHUNK, data[:size]) == decode_head(signer, CHUNK, data)
    assert data[size:] == b"".join(outcome.value for outcome in OUTCOMES)


def test_a_result_is_refused_under_another_chunks_name(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES, MACHINE)

    with pytest.raises(SignatureMismatch):
        decode_head(signer, ChunkId(1, 2, 4), data)


def test_a_head_changed_in_any_byte_is_refused(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES[:1], MACHINE)
    for position in range(20, head_size(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(SignatureMismatch):
            decode_head(signer, CHUNK, bytes(changed))


def test_a_changed_value_is_refused_with_its_item_named(signer: Signer) -> None:
    head = decode_head(signer, CHUNK, encode_result(signer, CHUNK, OUTCOMES, MACHINE))

    with pytest.raises(SignatureMismatch, match=r"item 7 .* 0001-0000002-00003"):
        head.check(0, b'{"a":2}')


def test_values_cannot_change_places(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES, MACHINE)
    head = decode_head(signer, CHUNK, data)

    with pytest.raises(SignatureMismatch):
        head.check(0, data[slice(*head.span(1))])


def test_an_unknown_format_is_refused(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, OUTCOMES, MACHINE)

    with pytest.raises(FormatMismatch, match="SBR2"):
        decode_head(signer, CHUNK, b"SBR2" + data[4:])


def test_an_attempt_beyond_the_field_is_kept_at_its_highest(signer: Signer) -> None:
    data = encode_result(signer, CHUNK, [ItemOutcome(1, 70_000, OK, JSON, b"1", 0, 0)], {})

    assert decode_head(signer, CHUNK, data).rows[0].attempt == 65_535


def test_only_an_items_own_failures_spend_its_retries() -> None:
    assert set(CAUSES) - SPENDS_RETRIES == {OK, INTERRUPTED, LOST}


def test_the_stored_codes_of_causes_stay() -> None:
    assert CAUSES == ("ok", "error", "timeout", "memory", "crash", "interrupted", "lost")
