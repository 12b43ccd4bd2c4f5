"""References in stored values are resolved in the DAG's own module, or else in the work's blob."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_spotbatch.environment.travelling import resolver
from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.errors import SpotBatchError
from tests.unit.environment.packs import LoadDag, load_dag_file, packed_with, packing

SOURCE = """
    class Box:
        def __init__(self, x): self.x = x
        class Lid:
            pass

    def work(x):
        return Box(x), Box.Lid()
"""


def never() -> bytes:
    raise AssertionError("the blob was read")


def test_the_loaded_dag_file_comes_first(dag: LoadDag, bundle: Path) -> None:
    module = dag(SOURCE)
    packed, encoded = packed_with(packing(module.work, bundle=bundle), [module.Box(1), module.Box.Lid()])
    box, lid = (codec.decode(*item, resolver(packed.work, never)) for item in encoded)
    assert type(box) is module.Box
    assert type(lid) is module.Box.Lid


def test_a_later_copy_of_the_dag_file_is_found(dag: LoadDag, bundle: Path, tmp_path: Path) -> None:
    module = dag(SOURCE, "team/shop.py")
    packed, (item,) = packed_with(packing(module.work, bundle=bundle), [module.Box(1)])
    del sys.modules[module.__name__]
    copy = tmp_path / "version-2" / "team" / "shop.py"
    copy.parent.mkdir(parents=True)
    copy.write_text((bundle / "team" / "shop.py").read_text())
    later = load_dag_file(copy)
    assert type(codec.decode(*item, resolver(packed.work, never))) is later.Box


def test_without_the_dag_file_the_blob_is_read_once(dag: LoadDag, bundle: Path) -> None:
    module = dag(SOURCE)
    packed, encoded = packed_with(packing(module.work, bundle=bundle), [module.Box(1), module.Box(2)])
    del sys.modules[module.__name__]
    reads = []

    def load() -> bytes:
        reads.append(1)
        return packed.blobs[packed.work.blob]

    resolve = resolver(packed.work, load)
    one, two = (codec.decode(*item, resolve) for item in encoded)
    assert type(one) is type(two) is not module.Box
    assert (one.x, two.x, type(one).__module__) == (1, 2, "spotbatch_dag_shop")
    assert reads == [1]
    assert module.Box.__module__ == module.__name__


def test_a_class_that_is_nowhere_is_named_with_its_dag_file(dag: LoadDag, bundle: Path) -> None:
    module = dag(SOURCE)
    packed = packing(module.work, bundle=bundle).finish()
    with pytest.raises(SpotBatchError, match=r"a Crate of the DAG file shop\.py, which is not loaded"):
        resolver(packed.work, None)("spotbatch_dag_shop", "Crate")
