from __future__ import annotations

import collections
import datetime
import enum
import io
import pickle
import sys
import types
from typing import Any

import cloudpickle
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.codec import JSON, PICKLE, ReferringUnpickler, decode, encode, preview


class Text(str):
    pass


class Level(int, enum.Enum):
    LOW = 1


def nobody(module: str, qualname: str) -> Any:
    raise AssertionError(f"{module}:{qualname} was asked for")


def there_and_back(value: Any) -> tuple[str, Any]:
    kind, data = encode(value, pickle.dumps)
    return kind, decode(kind, data, nobody)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**64,
        10**2000,
        0.1,
        -0.0,
        5e-324,
        "",
        "naïve \N{SNOWMAN} \x00 \U0001f600",
        "lone \ud800 surrogate",
        [],
        {},
        {"": {"a": [1, 2.0, "3", None, True]}},
        nested(90),
    ],
)
def test_what_json_holds_exactly_is_json(value: Any) -> None:
    kind, found = there_and_back(value)

    assert kind == JSON
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        [(1, 2)],
        {1: "int key"},
        {None: "no key"},
        {True: "bool key"},
        {"a": {2: "deep int key"}},
        {1, 2},
        b"bytes",
        float("inf"),
        -float("inf"),
        [1.0, float("inf")],
        1 + 2j,
        10**5000,
        Text("a subclass of str"),
        {Text("a key of a subclass"): 1},
        collections.OrderedDict(a=1),
        Level.LOW,
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
        range(3),
        nested(150),
    ],
    ids=lambda value: preview(value, 30),
)
def test_everything_else_is_a_pickle_and_comes_back_as_it_went(value: Any) -> None:
    kind, found = there_and_back(value)

    assert kind == PICKLE
    assert found == value
    assert type(found) is type(value)


def test_nan_comes_back_as_nan() -> None:
    kind, found = there_and_back([float("nan")])

    assert kind == PICKLE
    assert found[0] != found[0]


def test_a_numpy_number_is_not_taken_for_a_float() -> None:
    kind, found = there_and_back(numpy.float64(0.5))

    assert kind == PICKLE
    assert type(found) is numpy.float64


def test_a_numpy_array_comes_back_as_it_went() -> None:
    kind, found = there_and_back(numpy.arange(6, dtype="int16").reshape(2, 3))

    assert kind == PICKLE
    assert found.dtype == numpy.int16
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_any_plain_value_survives_as_json(value: Any) -> None:
    kind, found = there_and_back(value)

    assert kind == JSON
    assert found == value
    assert repr(found) == repr(value)


def dag_file(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    source = (
        "class Scan:\n    class Inner: pass\n    def __init__(self, n): self.n = n\ndef helper(): return 1\n"
    )
    exec(source, module.__dict__)
    return module


def dumped(value: Any, travelling: dict[str, str], base: type[Any]) -> tuple[bytes, set[tuple[str, str]]]:
    out = io.BytesIO()
    pickler = codec.referring_pickler(base)(out, travelling)
    pickler.dump(value)
    return out.getvalue(), pickler.referred


@pytest.fixture
def dag_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = dag_file("unusual_prefix_f00_scans")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("base", [pickle.Pickler, cloudpickle.Pickler], ids=["pickle", "cloudpickle"])
def test_a_class_of_the_dag_file_is_resolved_in_the_readers_own_copy(
    dag_module: types.ModuleType, base: type[Any]
) -> None:
    data, referred = dumped([dag_module.Scan(7), dag_module.Scan.Inner], {dag_module.__name__: "scans"}, base)
    reader = dag_file("elsewhere")

    def resolve(module: str, qualname: str) -> Any:
        assert module == "scans"
        found: Any = reader
        for part in qualname.split("."):
            found = getattr(found, part)
        return found

    scan, inner = decode(PICKLE, data, resolve)

    assert isinstance(scan, reader.Scan)
    assert scan.n == 7
    assert inner is reader.Scan.Inner
    assert referred == {("scans", "Scan"), ("scans", "Scan.Inner")}
    assert dag_module.__name__.encode() not in data


def test_a_function_without_a_name_of_its_own_travels_by_value(dag_module: types.ModuleType) -> None:
    exec("def outer(n):\n    return lambda x: x + n\n", dag_module.__dict__)

    data, referred = dumped(dag_module.outer(2), {dag_module.__name__: "scans"}, cloudpickle.Pickler)

    assert referred == set()
    assert decode(PICKLE, data, nobody)(40) == 42


def test_a_class_of_another_module_is_not_a_reference() -> None:
    data, referred = dumped(collections.Counter("aab"), {"scans_file": "scans"}, pickle.Pickler)

    assert referred == set()
    assert decode(PICKLE, data, nobody) == collections.Counter("aab")


def test_a_reference_read_without_a_resolver_says_what_is_missing(dag_module: types.ModuleType) -> None:
    data, _ = dumped(dag_module.Scan, {dag_module.__name__: "scans"}, pickle.Pickler)

    with pytest.raises(pickle.UnpicklingError, match="Scan of the DAG file scans"):
        pickle.loads(data)


def test_a_module_can_be_replaced_by_a_private_copy() -> None:
    private = types.ModuleType("private")
    private.Counter = list  # type: ignore[attr-defined]
    data = pickle.dumps(collections.Counter)

    assert ReferringUnpickler(io.BytesIO(data), nobody, {"collections": private}).load() is list


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 200, "'" + "x" * 8 + "…"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_a_preview_is_a_cut_repr(value: Any, text: str) -> None:
    assert preview(value, 10) == text


def test_a_preview_survives_a_repr_that_fails() -> None:
    assert preview(Unprintable()) == "<Unprintable whose repr failed: ZeroDivisionError>"
