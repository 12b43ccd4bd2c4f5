"""Imports go one way, and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "airflow_provider_spotbatch"
ROOT = Path(__file__).parents[2] / PACKAGE
AIRFLOW_LAYER = "Airflow layer"
COMMAND_LINE = "cli"

PARTS = {
    "job": ("job",),
    "backends": ("backends", "job"),
    "agent": ("agent", "backends", "job"),
    "environment": ("environment", "job"),
    "items": ("environment", "job"),
    "control": (
        "control",
        "environment",
        "items",
        "job",
        "backends",
        "backends.base",
        "backends.settings",
        "backends.store",
    ),
}
"""Which parts of the package each part may import; ``backends`` alone stands for its ``__init__`` where
modules of it are listed. The command line, and the Airflow layer (all other files), may import every part
but the agent; the command line may have it replay an item."""

WHOLE = {"job", "agent", "environment", "items", "control"}
"""Parts that are open to whoever may import them at all."""

THIRD_PARTY = {
    "job": set(),
    "backends": {"boto3", "botocore", "obstore"},
    "agent": set(),
    "environment": {"cloudpickle", "uv"},
    "items": {"obstore"},
    "control": set(),
    COMMAND_LINE: {"rich"},
    AIRFLOW_LAYER: {
        "airflow",
        "asgiref",
        "cloudpickle",
        "obstore",
        "flask_appbuilder",
        "flask_babel",
        "jinja2",
        "wtforms",
    },
}
"""Distributions' modules that each part may import at all."""

LOADED_AT_IMPORT = {
    AIRFLOW_LAYER: {"airflow"},
    COMMAND_LINE: {"rich"},
    "environment": {"cloudpickle"},
}
"""Those of them that may be imported at module level; all others are imported inside functions."""


@dataclass(frozen=True)
class Import:
    module: Path
    line: int
    name: str
    at_module_level: bool

    @property
    def part(self) -> str:
        first = self.module.relative_to(ROOT).parts[0].removesuffix(".py")
        return first if first in PARTS or first == COMMAND_LINE else AIRFLOW_LAYER

    def __str__(self) -> str:
        return f"{self.module.relative_to(ROOT.parent)}:{self.line} imports {self.name}"


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def names(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    """Absolute dotted names of what a statement imports, each name it takes from a package included."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = package[: len(package) - node.level + 1] if node.level else []
    source = ".".join([*base, *([node.module] if node.module else [])])
    return [f"{source}.{alias.name}" for alias in node.names]


def walk(module: Path, node: ast.AST, at_module_level: bool) -> Iterator[Import]:
    package = list(module.relative_to(ROOT.parent).parent.parts)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for name in names(child, package):
                yield Import(module, child.lineno, name, at_module_level)
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(module, child, at_module_level and not deferred and not only_for_types(child))


IMPORTS = [
    found
    for module in sorted(ROOT.rglob("*.py"))
    for found in walk(module, ast.parse(module.read_text()), at_module_level=True)
]


def part_of(name: str) -> str:
    """``airflow_provider_spotbatch.backends.store.Store`` → ``backends.store``."""
    parts = name.split(".")[1:]
    while parts and not (ROOT.joinpath(*parts).with_suffix(".py").exists() or ROOT.joinpath(*parts).is_dir()):
        parts.pop()
    return ".".join(parts)


def allowed(part: str, name: str) -> bool:
    target = part_of(name)
    if part == COMMAND_LINE and target == "agent.replay":
        return True
    if part in (AIRFLOW_LAYER, COMMAND_LINE):
        return target.split(".")[0] != "agent"
    if not target:  # the package itself: the version
        return True
    first = target.split(".")[0]
    if first in WHOLE or part in ("backends", "agent"):
        return first in PARTS[part]
    return target in PARTS[part]


def ours(found: Import) -> bool:
    return found.name.split(".")[0] == PACKAGE


def third_party(found: Import) -> bool:
    return not ours(found) and found.name.split(".")[0] not in sys.stdlib_module_names


def test_the_package_was_found() -> None:
    assert any(found.part == "job" and ours(found) for found in IMPORTS)


def test_imports_go_one_way() -> None:
    assert [str(found) for found in IMPORTS if ours(found) and not allowed(found.part, found.name)] == []


def test_each_part_uses_only_the_libraries_it_is_meant_to() -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if third_party(found) and found.name.split(".")[0] not in THIRD_PARTY[found.part]
    ]
    assert wrong == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if third_party(found)
        and found.at_module_level
        and found.name.split(".")[0] not in LOADED_AT_IMPORT.get(found.part, set())
    ]
    assert wrong == []


def test_amazons_sdk_is_imported_in_its_own_backend_only() -> None:
    of_amazon = [found for found in IMPORTS if found.name.split(".")[0] in {"boto3", "botocore"}]
    assert of_amazon
    assert {found.module.relative_to(ROOT).parts[:2] for found in of_amazon} == {("backends", "aws")}


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("job", "backends.base.Fleet"),
        ("backends", "control.site"),
        ("agent", "control.site"),
        ("agent", "environment.pickling"),
        ("environment", "backends.store"),
        ("control", "backends.local.LocalBackend"),
        ("control", "agent.agent"),
        ("control", "hooks"),
        ("control", "cli.output"),
        (COMMAND_LINE, "agent.agent"),
        (AIRFLOW_LAYER, "agent.agent"),
    ],
)
def test_the_table_refuses_a_wrong_way(part: str, name: str) -> None:
    assert not allowed(part, f"{PACKAGE}.{name}")


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``statement``."""
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert shown.returncode == 0, shown.stderr
    return set(shown.stdout.splitlines()[-1].split())


HEAVY = {
    "asyncio",
    "boto3",
    "botocore",
    "aiobotocore",
    "cloudpickle",
    "google.cloud",
    "numpy",
    "obstore",
    "sqlite3",
}


def test_importing_the_package_imports_nothing_else() -> None:
    loaded = loaded_by(f"import {PACKAGE}")

    assert {name for name in loaded if name.startswith(PACKAGE)} == {PACKAGE}
    assert not loaded & {*HEAVY, "airflow"}


def test_asking_for_the_provider_info_imports_no_airflow_and_nothing_heavy() -> None:
    loaded = loaded_by(f"import {PACKAGE}; {PACKAGE}.get_provider_info()")

    assert not loaded & {*HEAVY, "airflow"}


def test_the_plugin_loads_nothing_heavy_on_top_of_airflow() -> None:
    loaded = loaded_by(f"import {PACKAGE}.plugin") - loaded_by(
        "import airflow.plugins_manager, airflow.sdk.serde"
        if serde_is_there()
        else "import airflow.plugins_manager"
    )

    assert not loaded & HEAVY


def serde_is_there() -> bool:
    from importlib.util import find_spec

    return find_spec("airflow.sdk.serde") is not None


def test_what_runs_on_a_machine_loads_no_airflow() -> None:
    modules = [
        ".".join(module.relative_to(ROOT.parent).with_suffix("").parts)
        for part in ("job", "backends", "agent")
        for module in sorted((ROOT / part).glob("*.py"))
        if module.name != "__main__.py"
    ]

    assert "airflow" not in loaded_by(f"import {', '.join(modules)}")
