"""Which part of a value cannot be pickled, told as a path that a person can follow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

from airflow_provider_spotbatch.environment.imports import globals_of
from airflow_provider_spotbatch.environment.pickling import belongs_to_dag, undecorated

_MAX_DEPTH = 50

_NAMES = {
    "_thread.lock": "a thread lock",
    "_thread.RLock": "a thread lock",
    "builtins.generator": "a generator",
    "builtins.coroutine": "a coroutine",
    "_io.TextIOWrapper": "an open file",
    "_io.BufferedReader": "an open file",
    "_io.BufferedWriter": "an open file",
    "_io.FileIO": "an open file",
    "socket.socket": "a socket",
    "sqlite3.Connection": "a database connection",
}


def explain(value: Any, path: str, pickled: Callable[[Any], object]) -> str:
    """``path to the part: what it is and why it cannot be pickled``; "" if ``value`` can be.

    ``pickled`` pickles a value or raises.
    """
    error = _failure(value, pickled)
    if error is None:
        return ""
    seen = {id(value)}
    for _ in range(_MAX_DEPTH):
        for step, child in _parts(value):
            failed = None if id(child) in seen else _failure(child, pickled)
            if failed is not None:
                seen.add(id(child))
                path, value, error = path + step, child, failed
                break
        else:
            break
    return f"{path}: {_describe(value, error)}"


def _failure(value: Any, pickled: Callable[[Any], object]) -> Exception | None:
    try:
        pickled(value)
    except Exception as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return error
    return None


def _describe(value: Any, error: Exception) -> str:
    kind = type(value)
    named = _NAMES.get(f"{kind.__module__}.{kind.__qualname__}")
    if named is not None:
        return f"{named} cannot be pickled"
    return f"an object of type {kind.__qualname__} cannot be pickled ({error})"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    task = undecorated(value)
    if task is not None:
        yield "", task
    elif belongs_to_dag(type(value)):
        return  # refused whole
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
            yield f" key {key!r}", key
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield " element", part
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, (classmethod, staticmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        yield "", value.fget
        yield " setter", value.fset
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield " arguments", value.args
        yield " keywords", value.keywords
    else:
        yield from _attributes(value)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield f", closure variable {name!r}", cell.cell_contents
        except ValueError:  # not yet bound
            continue
    for name in globals_of(function.__code__):
        if name in function.__globals__:
            yield f", global {name!r}", function.__globals__[name]
    yield " defaults", function.__defaults__
    yield " defaults", function.__kwdefaults__
    for name, value in vars(function).items():
        yield f".{name}", value


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, part in getattr(value, "__dict__", {}).items():
        yield f".{name}", part
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
    if not isinstance(value, type):
        yield f", its class {type(value).__qualname__}", type(value)
