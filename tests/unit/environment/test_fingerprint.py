"""What changes a fingerprint, and what must not."""

from __future__ import annotations

import datetime
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.fingerprint import Unstable, stable_digest
from tests.unit.environment.packs import LoadDag, fingerprint, fingerprint_elsewhere, load_dag_file, packing

SOURCE = '''
import functools
import logging
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

log = logging.getLogger(__name__)
HERE = Path(__file__).parent
RATE = 3
UNUSED = 1
KNOWN = {"a", "b", "c", "d"}
NAMES = frozenset({"x", "y", "z"})


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Config:
    """Settings."""

    rate: int = 2
    colour: Colour = Colour.RED

    def scaled(self, x):
        return x * self.rate


def helper(x):
    if x in ("p", "q") or x in {"one", "two", "three"}:
        return RATE
    return even(x)


def even(x):
    return odd(x)


def odd(x):
    return even(x) if x else len(KNOWN)


def unrelated(x):
    return UNUSED


def make(base):
    class Local:
        rate = base

        def __init__(self):
            self.one, self.two, self.three = 1, 2, 3

    def inner(x, shift=7):
        return helper(x) + base + shift + Local.rate

    return inner


def work(x, *, scale=5):
    """What it does."""
    log.info("at %s", HERE)
    numbers = [helper(y) for y in range(x)]
    return Config(rate=scale).scaled(x), NAMES, numbers


closure = make(10)
'''


def changed(dag: LoadDag, bundle: Path, old: str, new: str, function: str = "work") -> tuple[str, str]:
    """Fingerprints before and after an edit of the file."""
    assert old in SOURCE
    before = fingerprint(packing(getattr(dag(SOURCE), function), bundle=bundle))
    after = fingerprint(packing(getattr(dag(SOURCE.replace(old, new)), function), bundle=bundle))
    return before, after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 3", "RATE = 4"),
        ('x in ("p", "q")', 'x in ("p", "r")'),
        ('{"a", "b", "c", "d"}', '{"a", "b", "c", "e"}'),
        ("return odd(x)", "return odd(x + 0)"),
        ("rate: int = 2", "rate: int = 3"),
        ("RED = 1", "RED = 3"),
        ("Colour = Colour.RED", "Colour = Colour.BLUE"),
        ("return x * self.rate", "return x + self.rate"),
        ("scale=5", "scale=6"),
        ("range(x)", "range(x, 2)"),
    ],
)
def test_an_edit_that_matters_changes_it(dag: LoadDag, bundle: Path, old: str, new: str) -> None:
    before, after = changed(dag, bundle, old, new)
    assert before != after


@pytest.mark.parametrize(("old", "new"), [("make(10)", "make(11)"), ("shift=7", "shift=8")])
def test_a_closure_counts_by_its_values_and_defaults(dag: LoadDag, bundle: Path, old: str, new: str) -> None:
    before, after = changed(dag, bundle, old, new, "closure")
    assert before != after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 1", "UNUSED = 2"),
        ("return UNUSED", "return UNUSED + 1"),
        ("def helper", "# a comment\n\n\ndef helper"),
        ("import functools\n", "\n\n\n"),
        ('"""What it does."""', '"""Said better."""'),
        ('"""Settings."""', '"""All settings."""'),
        ("def even(x):", "def even(x: int) -> int:"),
    ],
)
@pytest.mark.parametrize("function", ["work", "closure"])
def test_an_edit_that_does_not_matter_leaves_it(
    dag: LoadDag, bundle: Path, old: str, new: str, function: str
) -> None:
    before, after = changed(dag, bundle, old, new, function)
    assert before == after


@pytest.mark.parametrize("function", ["work", "closure"])
def test_it_is_equal_in_other_processes_and_places(
    dag: LoadDag, bundle: Path, tmp_path: Path, function: str
) -> None:
    here = fingerprint(packing(getattr(dag(SOURCE), function), bundle=bundle))
    other = tmp_path / "elsewhere" / "shop.py"
    other.parent.mkdir()
    other.write_text(SOURCE)
    assert fingerprint_elsewhere(bundle / "shop.py", 1, function) == here
    assert fingerprint_elsewhere(other, 99, function) == here
    assert fingerprint(packing(getattr(load_dag_file(other), function), bundle=other.parent)) == here


def test_shared_arguments_and_the_environment_count(dag: LoadDag, bundle: Path) -> None:
    (bundle / "data.txt").write_text("a")
    function = dag(SOURCE).work
    variants = [
        packing(function, bundle=bundle),
        packing(function, bundle=bundle, kwargs={"scale": 8}),
        packing(function, bundle=bundle, kwargs={"scale": 9}),
        packing(function, bundle=bundle, environment=Environment(env={"A": "1"})),
        packing(function, bundle=bundle, environment=Environment(packages=["x"])),
        packing(function, bundle=bundle, environment=Environment(files={"data.txt": "data.txt"})),
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)
    (bundle / "data.txt").write_text("b")
    assert fingerprint(variants[-1]) != fingerprint(variants[0])


def test_the_source_of_a_bundle_module_counts(dag: LoadDag, bundle: Path) -> None:
    (bundle / "rates.py").write_text("def rate(): return 1\n")
    source = "def work(x):\n    from rates import rate\n    return rate()\n"
    before = fingerprint(packing(dag(source).work, bundle=bundle))
    (bundle / "rates.py").write_text("def rate(): return 2\n")
    assert fingerprint(packing(dag(source).work, bundle=bundle)) != before


def test_a_class_that_items_use_counts(dag: LoadDag, bundle: Path) -> None:
    source = "class Box:\n    rate = 1\n    def __init__(self, x): self.x = x\ndef work(x):\n    return 1\n"

    def taken(module: ModuleType) -> tuple[str | None, bytes | None]:
        packer = packing(module.work, bundle=bundle)
        value = module.Box(1)
        item = packer.fingerprint_item(*packer.encode_item(0, value), value)
        return packer.finish().fingerprint, item

    before = taken(dag(source))
    assert taken(dag(source)) == before
    after = taken(dag(source.replace("rate = 1", "rate = 2")))
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_value_without_a_stable_fingerprint_is_named(dag: LoadDag, bundle: Path) -> None:
    module = dag("class Odd:\n    pass\ntext = repr(Odd())\ndef work(x):\n    return text\n")
    packed = packing(module.work, bundle=bundle).finish()
    assert packed.fingerprint is None
    assert packed.unstable == ("work, global 'text': a text with the memory address of an object",)


def cyclic() -> list[Any]:
    value: list[Any] = [1]
    value.append({"self": value})
    return value


class Tree:
    def __init__(self, *children: Tree) -> None:
        self.parent: Tree | None = None
        self.children = children
        for child in children:
            child.parent = self


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1,
        lambda: True,
        lambda: 1.0,
        lambda: 0.0,
        lambda: -0.0,
        lambda: "1",
        lambda: b"1",
        lambda: None,
        lambda: [1, 2],
        lambda: [2, 1],
        lambda: (1, 2),
        lambda: {1, 2},
        lambda: frozenset({1, 2}),
        lambda: {"a": 1, "b": 2},
        lambda: {"a": 1, "b": 3},
        lambda: [[1], 2],
        lambda: datetime.datetime(2024, 1, 1),
        lambda: datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
        lambda: datetime.date(2024, 1, 1),
        lambda: Decimal("1.0"),
        lambda: Decimal("1.00"),
        lambda: uuid.UUID(int=1),
        lambda: Path("/a"),
        lambda: numpy.arange(4),
        lambda: numpy.arange(4).reshape(2, 2),
        lambda: numpy.arange(4.0),
        lambda: numpy.array(["a", None], dtype=object),
        lambda: numpy.float64(1.0),
        lambda: range(3),
        cyclic,
        lambda: Tree(Tree(), Tree(Tree())),
        lambda: Tree(Tree(), Tree()),
        lambda: Exception("a"),
        lambda: len,
        lambda: datetime.datetime,
        lambda: 10**300,
        lambda: -(10**300),
    ],
)
def test_values_of_all_kinds_have_digests_of_their_own(make: Any) -> None:
    digest = stable_digest(make())
    assert stable_digest(make()) == digest
    DIGESTS.setdefault(digest, make)
    assert DIGESTS[digest] is make


DIGESTS: dict[bytes, Any] = {}
"""Seen by the cases above: two of them must never meet."""


def test_a_lock_has_no_digest_and_is_named() -> None:
    with pytest.raises(Unstable, match=r"dict\['a'\]\[1\]: an object of type lock"):
        stable_digest({"a": [1, threading.Lock()]})


def test_a_value_nested_beyond_reason_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(Unstable, match="nested too deeply"):
        stable_digest(value)
