"""What a function imports while it runs, read off its code without running it."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

_CATCHES_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})

_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
"""LOAD_NAME and the last stand in the bodies of classes that a function defines."""


def imports_of(code: CodeType) -> Iterator[tuple[str, bool]]:
    """``(module name, certain)`` of each absolute import in ``code`` itself, not in nested code.

    ``certain`` is False where the import may be skipped or its failure is caught.
    """
    steps = list(dis.get_instructions(code))
    for position, step in enumerate(steps):
        if step.opname == "IMPORT_NAME" and _level(steps, position) == 0:
            yield step.argval, not _may_fail(code, step.offset)


def globals_of(code: CodeType) -> list[str]:
    """Names that ``code`` and the code nested in it look up among globals, each once, in order."""
    names: dict[str, None] = {}
    for step in dis.get_instructions(code):
        if step.opname in _GLOBAL_LOADS:
            names[step.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(dict.fromkeys(globals_of(constant)))
    return list(names)


def _level(steps: list[dis.Instruction], position: int) -> object:
    """The level of a relative import: the constant loaded before the list of names."""
    loads = [step for step in steps[max(0, position - 4) : position] if step.opname == "LOAD_CONST"]
    return loads[-2].argval if len(loads) > 1 else 0


def _may_fail(code: CodeType, offset: int) -> bool:
    line = next((line for start, stop, line in code.co_lines() if start <= offset < stop), None)
    lines = _uncertain_lines(code.co_filename)
    if lines is None:  # no source to read: believe a handler that is named
        return bool(_CATCHES_IMPORT & set(code.co_names))
    return line in lines


@lru_cache(maxsize=64)
def _uncertain_lines(file: str) -> frozenset[int] | None:
    """Lines of the imports in a file that may be skipped or are allowed to fail."""
    source = "".join(linecache.getlines(file))
    if not source:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    lines: set[int] = set()
    _collect(tree, False, lines)
    return frozenset(lines)


def _collect(node: ast.AST, uncertain: bool, lines: set[int]) -> None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        if uncertain:
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        uncertain = False
    uncertain = uncertain or isinstance(node, (ast.If, ast.ExceptHandler)) or _suppresses(node)
    caught = isinstance(node, ast.Try) and any(_catches(handler.type) for handler in node.handlers)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                _collect(child, uncertain or (caught and name == "body"), lines)


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    return any(isinstance(node, ast.Name) and node.id in _CATCHES_IMPORT for node in ast.walk(kind))


def _suppresses(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call) and any(map(_catches, item.context_expr.args))
        for item in node.items
    )
