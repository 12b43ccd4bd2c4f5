"""Whether a dotted path names a function, found out without running its module."""

from __future__ import annotations

import ast
import sys

from airflow_provider_spotbatch.environment.modules import find_spec
from airflow_provider_spotbatch.job.errors import InvalidInput


def check_dotted(dotted: str, *, may_be_missing: bool) -> str:
    """The module part of ``package.module.function``.

    ``may_be_missing``: the machine gets packages or code of its own, which this side cannot look into.
    Raises InvalidInput.
    """
    module, _, name = dotted.rpartition(".")
    if not module or not all(part.isidentifier() for part in dotted.split(".")):
        raise InvalidInput(f"{dotted!r} is no dotted path of a function, such as 'package.module.function'")
    if module in sys.modules:
        loaded = sys.modules[module]
        if not hasattr(loaded, name):
            raise InvalidInput(f"the module {module} has no {name!r}")
        if not callable(getattr(loaded, name)):
            raise InvalidInput(f"{dotted} is no function but {getattr(loaded, name)!r}")
        return module
    spec = find_spec(module)
    if spec is None and not may_be_missing:
        raise InvalidInput(
            f"{dotted!r}: the module {module} is neither installed here nor in the DAG bundle. Name its "
            "distribution in environment=Environment(packages=[…]), or its source in code=[…]"
        )
    names = _names_of(spec.origin) if spec is not None and spec.has_location else None
    if names is not None and name not in names:
        raise InvalidInput(f"the module {module} ({spec.origin if spec else ''}) has no {name!r}")
    return module


def _names_of(file: str | None) -> set[str] | None:
    """Names that a source file binds anywhere outside functions; None where it cannot be known."""
    if file is None or not file.endswith(".py"):
        return None
    with open(file, "rb") as source:
        try:
            tree = ast.parse(source.read())
        except (SyntaxError, ValueError):
            return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return None if "*" in names or "__getattr__" in names else names
