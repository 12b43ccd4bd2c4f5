"""Values to bytes and back: JSON where it is exact, else pickle.

Standard library only and self-contained: the worker loads this very file by its path in the
user's environment, where the package itself may not be installed.

Classes and functions of a *travelling module* (the DAG file: its real module name exists nowhere
else) are written as references ``(stable module name, qualified name)``; each side resolves them in
its own copy of the module, so that ``isinstance`` holds wherever a value is read.
"""

from __future__ import annotations

import copyreg
import io
import json
import math
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

JSON = "json"
PICKLE = "pickle"

REFERENCE_MODULE = "_spotbatch_codec"
"""The module name under which :func:`reference` is pickled; this file answers to it everywhere."""

PRIVATE_CLOUDPICKLE = "_spotbatch_cloudpickle"
"""The name of a worker's own cloudpickle, and so of its parts in the pickles that a worker writes."""

_MAX_DEPTH = 100

_to_json = json.JSONEncoder(separators=(",", ":")).encode

Resolver = Callable[[str, str], Any]


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON gives back exactly this value."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        # Python refuses to print or parse longer integers (sys.set_int_max_str_digits).
        return bool(value.bit_length() < 10_000)
    if kind is float:
        return math.isfinite(value)
    if depth > _MAX_DEPTH:
        return False
    if kind is list:
        return all(_is_plain(part, depth + 1) for part in value)
    if kind is dict:
        return all(type(key) is str and _is_plain(part, depth + 1) for key, part in value.items())
    return False


def reference(module: str, qualname: str) -> Any:
    """Stand for a class or function of a travelling module; replaced by the reader's resolver."""
    raise pickle.UnpicklingError(f"{qualname} of the DAG file {module} cannot be resolved here")


reference.__module__ = REFERENCE_MODULE
sys.modules.setdefault(REFERENCE_MODULE, sys.modules[__name__])


def referring_pickler(base: type[Any]) -> type[Any]:
    """A pickler class over ``base`` (cloudpickle's or pickle's) that writes references.

    Its instances take ``travelling``: real module name → stable module name.
    """

    class ReferringPickler(base):  # type: ignore[misc]
        def __init__(self, file: Any, travelling: Mapping[str, str], protocol: int = 5) -> None:
            super().__init__(file, protocol)
            self._travelling = travelling
            self.referred: set[tuple[str, str]] = set()

        def reducer_override(self, obj: Any) -> Any:
            module = getattr(obj, "__module__", None)
            if (
                isinstance(module, str)
                and module in self._travelling
                and (isinstance(obj, type) or type(obj).__name__ == "function")
            ):
                qualname = obj.__qualname__
                if "<" not in qualname:  # <locals> and <lambda> have no name to be found by
                    stable = self._travelling[module]
                    self.referred.add((stable, qualname))
                    return reference, (stable, qualname)
            if isinstance(obj, BaseException) and type(obj).__reduce__ is BaseException.__reduce__:
                # By __new__, not by __init__, whose arguments may not be those in ``args``.
                return copyreg.__newobj__, (type(obj), *obj.args), obj.__dict__ or None  # type: ignore[attr-defined]
            above = getattr(super(), "reducer_override", None)
            return above(obj) if above is not None else NotImplemented

    return ReferringPickler


class ReferringUnpickler(pickle.Unpickler):
    """Reads what a referring pickler wrote.

    ``resolve(stable module, qualified name)`` finds a travelling class or function;
    ``modules`` maps module names in the pickle to modules to use instead (a private cloudpickle).
    """

    def __init__(self, file: Any, resolve: Resolver, modules: Mapping[str, Any] | None = None) -> None:
        super().__init__(file)
        self._resolve = resolve
        self._modules = modules or {}

    def find_class(self, module: str, name: str) -> Any:
        if module == REFERENCE_MODULE and name == "reference":
            return self._resolve
        if module == PRIVATE_CLOUDPICKLE and module not in self._modules:
            module = "cloudpickle.cloudpickle"
        if module in self._modules:
            found = self._modules[module]
            for part in name.split("."):
                found = getattr(found, part)
            return found
        return super().find_class(module, name)


def encode(value: Any, pickled: Callable[[Any], bytes]) -> tuple[str, bytes]:
    """``(kind, bytes)`` of a value: JSON if it is exactly JSON, else ``pickled(value)``."""
    if _is_plain(value):
        return JSON, _to_json(value).encode()
    return PICKLE, pickled(value)


def decode(kind: str, data: bytes, resolve: Resolver, modules: Mapping[str, Any] | None = None) -> Any:
    """The value that :func:`encode` wrote. Call it only on bytes whose signature holds."""
    if kind == JSON:
        return json.loads(data)
    return ReferringUnpickler(io.BytesIO(data), resolve, modules).load()


def preview(value: Any, limit: int = 120) -> str:
    """A short text of a value, safe for lists and tables: ``repr`` cut to ``limit`` characters."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
