"""What is packed here runs in a fresh interpreter, and what it gives back means the same here."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.environment.travelling import resolver
from airflow_provider_spotbatch.job import codec
from tests.unit.environment.packs import Elsewhere, LoadDag, fingerprint, packed_with, packing

SHOP = """
    import functools
    import logging
    import math as mathematics
    from abc import ABC, abstractmethod
    from collections.abc import Callable as Callable_
    from dataclasses import dataclass
    from enum import Enum
    from typing import Generic, NamedTuple, NewType, ParamSpec, TypedDict, TypeVar

    log = logging.getLogger(__name__)
    RATE = 3
    T = TypeVar("T")
    P = ParamSpec("P")
    Price = NewType("Price", int)

    class Colour(Enum):
        RED = "red"
        BLUE = "blue"

    @dataclass(frozen=True)
    class Scan:
        uri: str
        size: int = 1

        def grown(self):
            return Scan(self.uri, self.size * RATE)

    class Pair(NamedTuple):
        left: int
        right: int

    class NeedsTwo(Exception):
        def __init__(self, code, text):
            super().__init__(f"{code}: {text}")
            self.code = code

    def helper(x):
        return even(x) * RATE

    def even(x):
        return x if x % 2 == 0 else odd(x + 1)

    def odd(x):
        return even(x)

    @functools.lru_cache(maxsize=10)
    def cached(x):
        return Price(helper(x))

    def triple(x):
        log.info("triple %s", x)
        return helper(x) + int(mathematics.floor(0.5))

    def use_cached(x):
        return cached(x)

    def grow(scan):
        assert isinstance(scan, Scan), type(scan)
        return scan.grown()

    def colour(x):
        return Colour.BLUE if x == Colour.RED else Colour.RED

    def pair(x):
        return Pair(x, helper(x))

    def itself(x):
        return x

    def fail_as_value(x):
        return NeedsTwo(x, "boom")

    def takes_failure(x):
        assert isinstance(x, NeedsTwo)
        return x.code

    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    def make(base):
        def inner(x):
            return x + base + RATE
        return inner

    def wrapped(function):
        @functools.wraps(function)
        def call(x):
            return function(x) + 1
        return call

    @wrapped
    def decorated(x):
        return helper(x)

    class Callable:
        def __init__(self, step):
            self.step = step

        def __call__(self, x):
            return x + self.step

        def method(self, x):
            return x * self.step

    def with_class(x):
        class Local:
            rate = RATE
        return Local.rate + x

    doubler = lambda x: x * 2 * RATE

    class Row(TypedDict):
        x: int

    class Lazy(ABC, Generic[T]):
        def __init__(self, x):
            self.x = x

        @functools.cached_property
        def tripled(self):
            return self.x * RATE

        @property
        @abstractmethod
        def doubled(self): ...

        @classmethod
        def of(cls, x): return cls(x)

    class Eager(Lazy[int]):
        __slots__ = ("shift",)

        @property
        def doubled(self):
            return self.x * 2 + super().tripled

    def typed(function: Callable_[P, T]) -> Callable_[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return function(*args, **kwargs)
        return call

    @typed
    def with_types(x: Row) -> Price:
        return Price(Eager.of(x["x"]).doubled)

    partly = functools.update_wrapper(functools.partial(helper), helper)
"""


def round_trip(packer: Packing, items: list[Any], elsewhere: Elsewhere) -> list[Any]:
    packed, encoded = packed_with(packer, items)
    resolve = resolver(packed.work, lambda: packed.blobs[packed.work.blob])
    return [codec.decode(kind, data, resolve) for kind, data in elsewhere.run(packed, encoded)]


@pytest.fixture
def shop(dag: LoadDag) -> ModuleType:
    return dag(SHOP)


@pytest.fixture
def mapped(shop: ModuleType, bundle: Path, elsewhere: Elsewhere) -> Callable[..., list[Any]]:
    def run(function: Any, items: list[Any], **kwargs: Any) -> list[Any]:
        return round_trip(packing(function, bundle=bundle, kwargs=kwargs), items, elsewhere)

    return run


def test_a_function_brings_helpers_constants_and_imports_of_its_file(shop: Any, mapped: Any) -> None:
    assert mapped(shop.triple, [1, 2]) == [6, 6]


def test_an_instance_of_a_class_of_the_file_goes_and_comes_back(shop: Any, mapped: Any) -> None:
    results = mapped(shop.grow, [shop.Scan("a", 2), shop.Scan("b")])
    assert results == [shop.Scan("a", 6), shop.Scan("b", 3)]
    assert all(isinstance(result, shop.Scan) for result in results)


def test_an_enum_of_the_file_is_the_same_member_on_both_sides(shop: Any, mapped: Any) -> None:
    assert mapped(shop.colour, [shop.Colour.RED])[0] is shop.Colour.BLUE


def test_a_class_that_only_the_result_uses_travels_too(shop: Any, mapped: Any) -> None:
    (result,) = mapped(shop.pair, [4])
    assert type(result) is shop.Pair
    assert result == (4, 12)


def test_a_class_that_only_an_item_uses_travels_too(shop: Any, mapped: Any) -> None:
    (result,) = mapped(shop.itself, [{"scan": shop.Scan("a")}])
    assert type(result["scan"]) is shop.Scan


def test_an_exception_whose_init_takes_other_arguments_goes_and_comes_back(shop: Any, mapped: Any) -> None:
    (result,) = mapped(shop.fail_as_value, [7])
    assert type(result) is shop.NeedsTwo
    assert (str(result), result.code) == ("7: boom", 7)
    assert mapped(shop.takes_failure, [shop.NeedsTwo(8, "again")]) == [8]


@pytest.mark.parametrize(
    ("name", "item", "expected"),
    [
        ("use_cached", 2, 6),
        ("factorial", 5, 120),
        ("decorated", 2, 7),
        ("doubler", 2, 12),
        ("with_class", 1, 4),
        ("with_types", {"x": 2}, 10),
        ("partly", 2, 6),
        ("itself", None, None),
        ("itself", "{{ ds }}", "{{ ds }}"),
    ],
)
def test_kinds_of_functions(shop: Any, mapped: Any, name: str, item: Any, expected: Any) -> None:
    assert mapped(getattr(shop, name), [item]) == [expected]
    fingerprint(packing(getattr(shop, name)))


def test_closures_partials_methods_and_callable_objects_run(shop: Any, mapped: Any) -> None:
    import functools

    assert mapped(shop.make(10), [1]) == [14]
    assert mapped(functools.partial(shop.make(1)), [1]) == [5]
    assert mapped(shop.Callable(5).method, [2]) == [10]
    assert mapped(shop.Callable(5), [2]) == [7]


def test_shared_arguments_are_of_the_same_classes_as_the_function_knows(
    dag: LoadDag, bundle: Path, elsewhere: Elsewhere
) -> None:
    module = dag(
        """
        class Config:
            def __init__(self, rate): self.rate = rate

        def apply(x, *, config):
            assert isinstance(config, Config)
            return x * config.rate
        """
    )
    packer = packing(module.apply, bundle=bundle, kwargs={"config": module.Config(3)})
    assert round_trip(packer, [2], elsewhere) == [6]


def test_values_come_back_as_they_went(shop: Any, mapped: Any) -> None:
    moment = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)
    values: list[Any] = [(1, 2), {3, 4}, {5: "five"}, math.nan, moment, b"\xff", 10**400, [(1,)], -0.0]
    values.append(numpy.arange(6).reshape(2, 3))
    results = mapped(shop.itself, values)
    assert [type(result) for result in results] == [type(value) for value in values]
    assert math.isnan(results[3])
    assert (results[-1] == values[-1]).all()
    assert results[:3] + results[4:-1] == values[:3] + values[4:-1]
    assert math.copysign(1, results[8]) == -1


def test_a_module_of_the_bundle_travels_as_source_with_what_it_imports(
    dag: LoadDag, bundle: Path, elsewhere: Elsewhere
) -> None:
    (bundle / "pricing").mkdir()
    (bundle / "pricing" / "__init__.py").write_text("")
    (bundle / "pricing" / "rates.py").write_text("from common import BASE\nRATE = BASE + 1\n")
    (bundle / "common.py").write_text("BASE = 4\n")
    (bundle / "unrelated.py").write_text("raise RuntimeError\n")
    (bundle / "late.py").write_text("SHIFT = 100\n")
    module = dag(
        """
        from pricing import rates

        def price(x):
            from late import SHIFT
            return x * rates.RATE + SHIFT
        """
    )
    packer = packing(module.price, bundle=bundle)
    packed = packer.finish()
    assert packed.notes == ("travels as source: common, late, pricing (4 files)",)
    assert round_trip(packer, [2], elsewhere) == [110]


def test_a_function_of_a_bundle_module_is_imported_there(bundle: Path, elsewhere: Elsewhere) -> None:
    (bundle / "catalogue.py").write_text("def look_up(x, *, shift=0): return x + shift + 1\n")
    by_path = packing(dotted="catalogue.look_up", kwargs={"shift": 10}, bundle=bundle)
    assert round_trip(by_path, [1], elsewhere) == [12]
    import catalogue  # type: ignore[import-not-found]

    assert round_trip(packing(catalogue.look_up, bundle=bundle), [1], elsewhere) == [2]


def test_a_task_of_the_same_name_as_the_function_is_the_function(
    dag: LoadDag, bundle: Path, elsewhere: Elsewhere
) -> None:
    module = dag(
        """
        from airflow.sdk import task

        @task
        def helper(x):
            return x + 1

        @task
        def count_down(n):
            return 0 if n == 0 else helper(count_down(n - 1))
        """
    )
    packer = packing(module.count_down.function, bundle=bundle)
    assert round_trip(packer, [3], elsewhere) == [3]


def test_a_function_nested_in_a_dag_function_runs(dag: LoadDag, bundle: Path, elsewhere: Elsewhere) -> None:
    module = dag(
        """
        from airflow.sdk import dag, task

        FUNCTIONS = []

        @dag(schedule=None)
        def pipeline():
            shift = 5

            class Box:
                def __init__(self, x): self.x = x

            @task
            def work(x):
                return Box(x + shift).x

            FUNCTIONS.append(work.function)
            work(1)

        pipeline()
        """
    )
    assert round_trip(packing(module.FUNCTIONS[0], bundle=bundle), [1], elsewhere) == [6]


def test_tracebacks_name_the_dag_file(shop: Any, bundle: Path) -> None:
    packed = packing(shop.triple, bundle=bundle).finish()
    assert b"shop.py" in packed.blobs[packed.work.blob]
    assert packed.work.travelling == {"spotbatch_dag_shop": "shop.py"}


def test_a_dag_file_that_was_loaded_twice_agrees_with_its_function(
    dag: LoadDag, bundle: Path, elsewhere: Elsewhere
) -> None:
    source = """
        class Box:
            x = 1

        def open_box(box):
            assert isinstance(box, Box)
            return box.x
        """
    first, second = dag(source), dag(source)
    assert first.Box is not second.Box
    assert round_trip(packing(first.open_box, bundle=bundle), [second.Box()], elsewhere) == [1]
