"""A DAG bundle, DAG files in it, and a machine elsewhere."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.environment.packs import Elsewhere, LoadDag, load_dag_file


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A DAG bundle's folder, on the import path as Airflow puts it; its modules are forgotten after."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("unusual_prefix_") or str(folder) in str(
            getattr(sys.modules[name], "__file__", "")
        ):
            del sys.modules[name]


@pytest.fixture
def dag(bundle: Path) -> LoadDag:
    """``dag(source, name="shop.py")``: write a DAG file into the bundle and load it."""

    def write_and_load(source: str, name: str = "shop.py") -> ModuleType:
        path = bundle / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return load_dag_file(path)

    return write_and_load


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "machine")
