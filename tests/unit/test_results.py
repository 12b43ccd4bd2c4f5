"""MapResult over a store written by hand with the encoders of the agent and the controller."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore

from airflow_provider_spotbatch import result_reader
from airflow_provider_spotbatch.job.errors import SignatureMismatch, StoreUnavailable
from airflow_provider_spotbatch.job.index import Place, encode_index, pack_place
from airflow_provider_spotbatch.job.items import ItemTable, PartBuilder, pack
from airflow_provider_spotbatch.job.keys import ChunkId, Generation, Run
from airflow_provider_spotbatch.job.outcome import ERROR, FAILURE, OK, Failure, ItemOutcome, encode_result
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED, Outcome
from airflow_provider_spotbatch.job.signing import Signer, derive, key_id
from airflow_provider_spotbatch.job.spec import FUNCTION, Spec, Work, WorkerEnvironment
from airflow_provider_spotbatch.results import ItemFailure, MapResult

KEY = b"a key of sixteen"
GENERATION = Generation("dag-task-0123456789abcdef", 1)
RUN = Run(GENERATION, 1)


class Job:
    """A finished run in a store of files."""

    def __init__(self, root: Path, *, chunk_items: int = 10) -> None:
        (root / "store").mkdir(parents=True, exist_ok=True)
        self.store = LocalStore(root / "store")
        self.signer = Signer(derive(KEY, GENERATION), GENERATION)
        self.chunk_items = chunk_items

    def write(self, values: Sequence[Any], *, run: int = 1) -> MapResult:
        """A run in which item ``i`` gave ``values[i]``; exceptions are failures. Chunks interleave."""
        chunks: dict[int, list[int]] = {}
        number_of_chunks = -(-len(values) // self.chunk_items)
        for item in range(len(values)):
            chunks.setdefault(item % number_of_chunks, []).append(item)
        places: dict[int, Place] = {}
        for number, items in chunks.items():
            chunk = ChunkId(run, 1, number)
            outcomes = [self._outcome(item, values[item]) for item in items]
            self.put(GENERATION.result(chunk), encode_result(self.signer, chunk, outcomes, {}))
            for ordinal, outcome in enumerate(outcomes):
                places[outcome.item] = Place(outcome.cause, 2, chunk, ordinal)
        records = (pack_place(places[item]) for item in range(len(values)))
        self.put(Run(GENERATION, run).index, b"".join(encode_index(self.signer, run, records)))
        self._write_spec([f"input {item}" for item in range(len(values))])
        failed = sum(isinstance(value, Exception) for value in values)
        return MapResult.of(
            Outcome(
                state=SUCCEEDED,
                message="",
                retryable=True,
                job=GENERATION.job,
                generation=1,
                run=run,
                items=len(values),
                ok=len(values) - failed,
                failed=failed,
                causes={ERROR: failed} if failed else {},
                started=100.0,
                ended=112.5,
            ),
            "spotbatch_results",
            "file:///store",
        )

    def put(self, name: str, data: bytes) -> None:
        obstore.put(self.store, name, data)

    def _outcome(self, item: int, value: Any) -> ItemOutcome:
        if isinstance(value, Exception):
            failure = Failure(type(value).__name__, str(value), "Traceback: …").to_bytes()
            return ItemOutcome(item, 2, ERROR, FAILURE, failure, 1.0, 2.0)
        if isinstance(value, bytes):
            return ItemOutcome(item, 1, OK, "pickle", pickle.dumps(value), 1.0, 2.0)
        return ItemOutcome(item, 1, OK, "json", json.dumps(value).encode(), 1.0, 2.0)

    def _write_spec(self, items: Sequence[str]) -> None:
        builder = PartBuilder(first=0)
        for index, value in enumerate(items):
            builder.add(pack(self.signer, index, "json", json.dumps(value).encode()))
        self.put(GENERATION.item_part("s", 0), bytes(builder.data))
        self.put(GENERATION.item_offsets("s", 0), builder.packed_offsets)
        spec = Spec(
            generation=GENERATION,
            work=Work(FUNCTION, "f", "0" * 64),
            items=ItemTable("s", len(items), (builder.part,)),
            environment=WorkerEnvironment(python="3.11"),
            fingerprint=None,
            key_id=key_id(KEY),
            created="2026-01-01T00:00:00+00:00",
            identity={},
        )
        self.put(GENERATION.spec, spec.to_bytes(self.signer))


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_connection(password: str = KEY.decode(), **extra: Any) -> None:
        monkeypatch.setenv(
            "AIRFLOW_CONN_SPOTBATCH_RESULTS",
            json.dumps(
                {"conn_type": "spotbatch", "password": password, "extra": {"path": str(tmp_path), **extra}}
            ),
        )

    set_connection()
    return set_connection


@pytest.fixture
def job(tmp_path: Path, connect: Callable[..., None]) -> Job:
    return Job(tmp_path)


class Requests:
    """Ranged reads made, with the bytes each gave."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int]] = []

    def of_results(self) -> int:
        return sum("/results/" in name for name, _ in self.reads)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    seen = Requests()
    get_range = obstore.get_range

    def counted(store: Any, path: str, **span: Any) -> Any:
        data = get_range(store, path, **span)
        seen.reads.append((path, len(bytes(data))))
        return data

    monkeypatch.setattr(obstore, "get_range", counted)
    return seen


def test_values_come_in_item_order_whatever_chunk_they_lie_in(job: Job) -> None:
    result = job.write([f"value {item}" for item in range(95)])
    assert len(result) == 95
    assert list(result) == [f"value {item}" for item in range(95)]
    assert result.to_list() == list(result)


def test_indexes_count_from_both_ends(job: Job) -> None:
    result = job.write(list(range(20)))
    assert (result[0], result[19], result[-1], result[-20]) == (0, 19, 19, 0)
    for outside in (20, -21):
        with pytest.raises(IndexError, match="of 20"):
            result[outside]


def test_slices_are_lazy_views(job: Job, requests: Requests) -> None:
    result = job.write(list(range(30)))
    part = result[5:25:2]
    assert requests.reads == []
    assert len(part) == 10
    assert list(part) == list(range(5, 25, 2))
    assert part[-1] == 23
    assert list(part[::-3]) == list(range(5, 25, 2))[::-3]


def test_one_result_takes_one_or_two_reads_once_the_index_is_at_hand(job: Job, requests: Requests) -> None:
    job.chunk_items = 3
    result = job.write([bytes([item]) * 200_000 for item in range(9)])
    result[0]
    requests.reads.clear()
    assert result[8] == bytes([8]) * 200_000
    assert 1 <= len(requests.reads) <= 2
    assert requests.of_results() == len(requests.reads)


def test_iterating_reads_a_small_object_once_for_all_its_values(job: Job, requests: Requests) -> None:
    job.chunk_items = 10
    result = job.write([bytes([item]) * 100_000 for item in range(20)])
    assert [value[0] for value in result] == list(range(20))
    assert requests.of_results() == 4  # two objects: the head, then the rest


def test_iterating_large_objects_takes_memory_for_few_values(job: Job) -> None:
    size = 3 * 1024 * 1024
    job.chunk_items = 20
    result = job.write([bytes([item]) * size for item in range(40)])
    tracemalloc.start()
    try:
        for value in result:
            assert len(value) == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * size


def test_failed_items_stand_in_their_place(job: Job) -> None:
    result = job.write([1, ValueError("no such file"), 3])
    failure = ItemFailure(1, "input 1", ERROR, "ValueError: no such file", "Traceback: …", 2)
    assert list(result) == [1, failure, 3]
    assert result[1] == failure


def test_failures_can_be_iterated_again(job: Job) -> None:
    result = job.write([ValueError(str(item)) if item % 7 == 0 else item for item in range(50)])
    assert [failure.index for failure in result.failures] == list(range(0, 50, 7))
    assert [failure.item for failure in result.failures] == [f"input {item}" for item in range(0, 50, 7)]
    assert (result.ok, result.failed, result.causes) == (42, 8, {ERROR: 8})


def test_an_empty_result_has_no_values_and_no_failures(job: Job, requests: Requests) -> None:
    result = MapResult("spotbatch_results", GENERATION.job, 1, 1, "file:///s", 0, 0, 0, {}, 0.0, None)
    assert (list(result), list(result.failures), len(result)) == ([], [], 0)
    assert requests.reads == []


def test_a_result_spans_many_blocks_of_the_index(job: Job) -> None:
    job.chunk_items = 5000
    result = job.write(list(range(10_000)))
    assert list(result) == list(range(10_000))
    assert (result[4095], result[4096], result[9999]) == (4095, 4096, 9999)


def test_an_xcom_of_any_result_is_below_two_kilobytes_and_comes_back_equal(job: Job) -> None:
    try:
        from airflow.sdk.serde import deserialize, serialize
    except ImportError:  # before Airflow 3.2
        from airflow.serialization.serde import deserialize, serialize

    causes = dict.fromkeys(("error", "timeout", "memory", "crash", "interrupted", "lost"), 999_999)
    result = MapResult(
        "c" * 250, "j" * 63, 999_999, 9_999, "s3://" + "b" * 300, 10**6, 1, 2, causes, 1e7 / 3, 1e5 / 3
    )
    stored = serialize(result)
    assert len(json.dumps(stored)) < 2048
    back = deserialize(json.loads(json.dumps(stored)))
    assert isinstance(back, MapResult)
    assert back.serialize() == result.serialize()


def test_an_xcom_of_a_newer_release_is_refused(job: Job) -> None:
    result = job.write([1])
    with pytest.raises(TypeError, match="newer release"):
        MapResult.deserialize(result.serialize(), MapResult.__version__ + 1)


def test_facts_of_the_run_are_kept(job: Job) -> None:
    result = job.write([1, 2])
    assert (result.items, result.duration, result.cost_usd) == (2, 12.5, None)
    assert result.uri == f"file:///store/{GENERATION.out}"
    assert repr(result) == f"MapResult(2 items, {result.uri})"


def test_a_result_can_be_sent_to_another_process(job: Job) -> None:
    result = job.write([10, 20])
    assert result[1] == 20
    assert list(pickle.loads(pickle.dumps(result))) == [10, 20]


def test_a_changed_value_is_not_unpickled(job: Job) -> None:
    result = job.write([b"harmless"])
    name = GENERATION.result(ChunkId(1, 1, 0))
    data = bytes(obstore.get(job.store, name).bytes())
    job.put(name, data.replace(b"harmless", b"harmful!"))
    with pytest.raises(SignatureMismatch, match="changed after it was written"):
        result[0]


def test_a_result_that_stands_in_anothers_place_is_refused(job: Job) -> None:
    job.chunk_items = 1
    result = job.write([b"one", b"two"])
    other = bytes(obstore.get(job.store, GENERATION.result(ChunkId(1, 1, 1))).bytes())
    job.put(GENERATION.result(ChunkId(1, 1, 0)), other)
    with pytest.raises(SignatureMismatch):
        result[0]


def test_an_old_key_still_reads(job: Job, connect: Callable[..., None]) -> None:
    result = job.write([1, 2])
    connect("another key for all that is new", old_keys=[KEY.decode()])
    assert list(result) == [1, 2]


def test_another_key_is_an_error_that_names_the_cure(job: Job, connect: Callable[..., None]) -> None:
    result = job.write([1, 2])
    connect("another key for all that is new")
    with pytest.raises(SignatureMismatch, match="old_keys"):
        result[0]


def test_a_deleted_object_is_named(job: Job) -> None:
    result = job.write([1, 2])
    name = GENERATION.result(ChunkId(1, 1, 0))
    obstore.delete(job.store, name)
    with pytest.raises(StoreUnavailable, match=name):
        result[0]


def test_a_forked_child_of_a_reader_raises_at_once_and_names_spawn(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = job.write([1, 2])
    monkeypatch.setattr(result_reader, "_used_by", None)
    assert result[0] == 1
    monkeypatch.setattr(result_reader, "_used_by", 1)  # as a child finds what its parent left
    with pytest.raises(RuntimeError, match="spawn"):
        result[0]
    with pytest.raises(RuntimeError, match="spawn"):
        list(result.failures if result.failed else result)


def read_in_child(result: MapResult) -> list[Any]:
    return list(result)


def test_a_spawned_child_reads(job: Job) -> None:
    result = job.write([1, 2])
    assert result[0] == 1
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read_in_child, (result,)) == [1, 2]


def test_a_result_is_a_source_of_items(job: Job) -> None:
    from airflow_provider_spotbatch.items import iterate_items

    items: Iterator[Any] = iter(iterate_items(job.write(list(range(12)))))
    assert list(items) == list(range(12))
