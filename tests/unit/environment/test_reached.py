from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_spotbatch.environment.modules import Modules
from airflow_provider_spotbatch.environment.reached import reached_modules

FILES = {
    "company/__init__.py": "",
    "company/work.py": "from . import shapes\nfrom company.deep.one import thing\nimport six\n",
    "company/shapes.py": "def area():\n    import numpy.linalg\n",
    "company/deep/__init__.py": "import yaml\n",
    "company/deep/one.py": "from ..other import x\nthing = 1\n",
    "company/other.py": "try:\n    import attrs\nexcept ImportError:\n    pass\nx = 1\n",
    "company/for_airflow.py": "import airflow\nimport pandas\n",
    "company/typed.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\nelse:\n    import json\n"
    ),
    "company/circle.py": "import company.circle\nimport toml\n",
    "company/broken.py": "import (\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Modules(str(tmp_path))


@pytest.mark.parametrize(
    ("needed", "reached"),
    [
        ("company.work", {"six", "numpy.linalg", "yaml", "attrs"}),
        ("company.typed", {"typing", "json"}),
        ("company.circle", {"toml"}),
        ("company.broken", set()),
        ("six", {"six"}),
    ],
)
def test_it_follows_imports_and_nothing_else(modules: Modules, needed: str, reached: set[str]) -> None:
    found = reached_modules(modules, [needed])
    assert {
        name for name in found if modules.kind(name) != "shipped" and "TYPE_CHECKING" not in name
    } == reached


def test_nothing_is_run(modules: Modules) -> None:
    reached_modules(modules, ["company.work"])
    assert not [name for name in sys.modules if name.split(".")[0] == "company"]
