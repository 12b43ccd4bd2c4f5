"""What modules that travel as source import, one from another, without running any of them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator

from airflow_provider_spotbatch.environment.modules import SHIPPED, Modules, find_spec


def reached_modules(modules: Modules, needed: Iterable[str]) -> set[str]:
    """The full names of all modules that are imported, in the end, by those of ``needed`` that travel as
    source: themselves, their packages, and what is none of ours. Some may be no modules but names in one."""
    reached: set[str] = set()
    waiting = list(needed)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if modules.kind(name) == SHIPPED:
            waiting.extend(_imports(name))
    return reached


def _imports(name: str) -> Iterator[str]:
    """What one module imports anywhere in it, and the packages that it is in."""
    spec = find_spec(name)
    if spec is None:
        return
    if parent := name.rpartition(".")[0]:
        yield parent
    if spec.origin is None or not spec.origin.endswith(".py") or not os.path.exists(spec.origin):
        return
    with open(spec.origin, "rb") as file:
        try:
            tree = ast.parse(file.read())
        except (SyntaxError, ValueError):
            return
    package = name if spec.submodule_search_locations is not None else parent
    yield from _imported(tree, package.split(".") if package else [])


def _imported(node: ast.AST, package: list[str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            source = ".".join([*base, *([child.module] if child.module else [])])
            if source:
                yield source
                yield from (f"{source}.{alias.name}" for alias in child.names if alias.name != "*")
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imported(ast.Module(child.orelse, []), package)
        else:
            yield from _imported(child, package)
