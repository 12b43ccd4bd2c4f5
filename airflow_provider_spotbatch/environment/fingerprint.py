"""A digest of what code does and what values hold: equal in every process, whatever the hash seed,
the line numbers, the path of the file and the order in which the process met things.

Not taken from pickle bytes, which differ from process to process. Left out: line and file names,
docstrings and annotations.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import functools
import hashlib
import re
import struct
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from itertools import pairwise
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

from airflow_provider_spotbatch.environment.imports import globals_of
from airflow_provider_spotbatch.environment.modules import (
    INSTALLED,
    MANGLED,
    SHIPPED,
    STABLE,
    STDLIB,
    Modules,
)
from airflow_provider_spotbatch.environment.pickling import is_named, undecorated

DIGEST_BYTES = 16

_MAX_REVISITS = 10_000
"""Parts of cyclic values that are walked again: more would take longer than running the items."""

_MANGLED_NAME = re.compile(MANGLED + r"[0-9a-f]+_")

_CLASS_NOISE = frozenset(
    {
        "__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__annotations__",
        "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__",
        "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__match_args__",
    }
)  # fmt: skip
"""Members of a class that say where it stands, or that follow from the others."""

_LINE_NOISE = frozenset({"__firstlineno__", "__static_attributes__"})
"""What the body of a class stores from Python 3.13 on: its line, and names in the order of a set."""

_DESCRIPTORS = (WrapperDescriptorType, MethodDescriptorType, GetSetDescriptorType, MemberDescriptorType)


class Unstable(Exception):
    """A value has no digest that another process would find equal; the text is the path to it."""


def stable_digest(value: Any, modules: Modules | None = None) -> bytes:
    """16 bytes that are equal wherever ``value`` is equal. Raises :class:`Unstable`."""
    digester = Digester(modules or Modules())
    return _hash(b"all", digester.value(value, type(value).__name__), digester.definitions())


class Digester:
    """Digests values. Classes and functions of travelling modules count by name in a value; what they
    do is told once, by :meth:`definitions`, so that it costs nothing per value."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._met: dict[tuple[str, str], Any] = {}
        self._versions: dict[str, bytes] = {}

    def value(self, value: Any, path: str) -> bytes:
        """Digest of a value; raises :class:`Unstable` with the path to the part at fault."""
        try:
            return _Walk(self).digest(value, path)
        except RecursionError as error:
            raise Unstable(f"{path}: nested too deeply") from error

    def definitions(self) -> bytes:
        """Digest of the travelling classes and functions met so far, and of all they use in turn."""
        done: dict[tuple[str, str], bytes] = {}
        while len(done) < len(self._met):
            for key in [key for key in self._met if key not in done]:
                walk = _Walk(self)
                done[key] = walk.definition(self._met[key], f"{key[1]}")
        return _hash(
            b"definitions", *(part for key in sorted(done) for part in (*map(_text, key), done[key]))
        )

    def meet(self, definition: Any) -> bytes | None:
        """Name of a travelling class or function, noted for :meth:`definitions`; None if it has none."""
        module = definition.__module__
        if not self._modules.travels(module) or not is_named(definition):
            return None
        found: Any = sys.modules.get(module)
        for part in definition.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not definition and undecorated(found) is not definition:
            return None
        key = (self._modules.stable(module), definition.__qualname__)
        if self._met.setdefault(key, definition) is not definition:
            return None  # the module was loaded twice: told apart by what they do
        return _hash(b"named", *map(_text, key))

    def by_reference(self, definition: Any) -> bool:
        """Whether the other side imports this class or function by its name."""
        module = definition.__module__
        by_name = (STDLIB, INSTALLED, SHIPPED)
        return isinstance(module, str) and is_named(definition) and self._modules.kind(module) in by_name

    def module(self, name: str) -> bytes:
        """A module counts by its name, an installed one by its version as well where that is cheap
        to know; the source of shipped ones is a blob with a digest of its own."""
        if self._modules.travels(name):
            return _text(self._modules.stable(name))
        top = name.partition(".")[0]
        if top not in self._versions:
            self._versions[top] = _version(top) if self._modules.kind(top) == INSTALLED else b""
        return _text(name) + self._versions[top]

    def text(self, value: str) -> str:
        """``value`` without what differs only because the file lies elsewhere."""
        if MANGLED in value:
            value = _MANGLED_NAME.sub(STABLE, value)
        if self._modules.bundle and self._modules.bundle in value:
            value = value.replace(self._modules.bundle, "<bundle>")
        return value


def _version(top: str) -> bytes:
    try:
        return _text(metadata.version(top))
    except metadata.PackageNotFoundError:
        return b""


class _Walk:
    """One walk over a value. A part that is being walked already counts by how far above it stands."""

    def __init__(self, digester: Digester) -> None:
        self._digester = digester
        self._depths: dict[int, int] = {}
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._lowest = sys.maxsize
        self._revisited: set[int] = set()
        self._revisits = 0

    def digest(self, value: Any, path: str) -> bytes:
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
        if type(value) is str:
            return self._text(value, path)
        return self._once(value, path, self._of)

    def definition(self, definition: Any, path: str) -> bytes:
        """What a named class or function does."""
        return self._once(definition, path, self._body)

    def _once(self, value: Any, path: str, of: Callable[[Any, str], bytes]) -> bytes:
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        depth = len(self._depths)
        if key in self._depths:
            self._lowest = min(self._lowest, self._depths[key])
            return _hash(b"above", str(depth - self._depths[key]).encode())
        if key in self._revisited:
            self._revisits += 1
            if self._revisits > _MAX_REVISITS:
                raise Unstable(f"{path}: a value with too many cycles")
        outer, self._lowest = self._lowest, sys.maxsize
        self._depths[key] = depth
        try:
            digest = of(value, path)
        finally:
            del self._depths[key]
        if self._lowest >= depth:  # refers to nothing above itself: the same wherever it stands
            self._known[key] = (value, digest)
        else:
            self._revisited.add(key)
        self._lowest = min(outer, self._lowest if self._lowest < depth else sys.maxsize)
        return digest

    def _text(self, value: str, path: str) -> bytes:
        if " at 0x" in value:
            raise Unstable(f"{path}: a text with the memory address of an object")
        return _text(self._digester.text(value))

    def _all(self, tag: bytes, values: Iterable[Any], path: str) -> bytes:
        return _hash(tag, *(self.digest(value, f"{path}[{i}]") for i, value in enumerate(values)))

    def _mapping(self, tag: bytes, value: Any, path: str) -> bytes:
        return _hash(
            tag,
            *(
                part
                for key, element in value.items()
                for part in (self.digest(key, f"{path} key"), self.digest(element, f"{path}[{key!r}]"))
            ),
        )

    def _of(self, value: Any, path: str) -> bytes:
        kind = type(value)
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, value, path)
        if isinstance(value, type):
            return self._global_or(value, path)
        if isinstance(value, ModuleType):
            return _hash(b"module", self._digester.module(value.__name__))
        if isinstance(value, _DESCRIPTORS):
            return _hash(b"descriptor", _text(value.__name__))
        if isinstance(value, dataclasses.Field):
            return self._field(value, path)
        if isinstance(value, PurePath):
            return _hash(b"path", _text(type(value).__name__), self._text(str(value), path))
        function = undecorated(value)
        if function is not None:
            return self.digest(function, path)
        if isinstance(value, functools._lru_cache_wrapper):
            return _hash(b"cached", self.digest(value.__wrapped__, path))
        if isinstance(value, functools.cached_property):
            return _hash(b"cached property", self.digest(value.func, path))
        if all(hasattr(kind, name) for name in ("dtype", "shape", "tobytes")):
            return self._array(value, path)
        return self._object(value, path)

    def _array(self, value: Any, path: str) -> bytes:
        head = _text(repr(value.dtype)) + _text(repr(value.shape))
        if value.dtype.hasobject:
            return _hash(b"array", head, self.digest(value.tolist(), path))
        return _hash(b"array", head, value.tobytes())

    def _object(self, value: Any, path: str) -> bytes:
        """Anything else: by how copy and pickle would take it apart."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:  # a user's __reduce__ may raise anything
            raise Unstable(f"{path}: an object of type {type(value).__qualname__} ({error})") from error
        if isinstance(reduced, str):
            module = getattr(value, "__module__", None) or type(value).__module__
            return _hash(b"global", self._digester.module(module), _text(reduced))
        make, arguments, state, elements, entries = (*reduced, None, None, None)[:5]
        parts = [self.digest(make, path), self.digest(arguments, path)]
        if type(state) is dict:
            parts.append(_hash(b"state", *self._named(state, path)))
        else:
            parts.append(self.digest(state, path))
        parts.append(self._all(b"elements", elements or (), path))
        parts.append(self._mapping(b"entries", dict(entries or ()), path))
        return _hash(b"object", *parts)

    def _named(self, values: dict[Any, Any], path: str) -> list[bytes]:
        return [
            part
            for name, value in values.items()
            for part in (self.digest(name, path), self.digest(value, f"{path}.{name}"))
        ]

    def _set(self, value: Any, path: str) -> bytes:
        # Each by a walk of its own: what was met before must not depend on the order of a set.
        parts = sorted(_Walk(self._digester).digest(element, f"{path} element") for element in value)
        return _hash(type(value).__name__.encode(), *parts)

    def _global_or(self, definition: Any, path: str) -> bytes:
        """A class or function: by name where the other side has it, else by what it does."""
        name = self._digester.meet(definition)
        if name is not None:
            return name
        if self._digester.by_reference(definition):
            module = self._digester.module(definition.__module__)
            return _hash(b"global", module, _text(definition.__qualname__))
        return self._body(definition, path)

    def _body(self, definition: Any, path: str) -> bytes:
        if isinstance(definition, type):
            return self._class(definition, path)
        return self._function(definition, path)

    def _class(self, cls: type, path: str) -> bytes:
        slots = cls.__dict__.get("__slots__", ())
        left_out = _CLASS_NOISE | set([slots] if isinstance(slots, str) else slots)
        members = {name: cls.__dict__[name] for name in sorted(cls.__dict__) if name not in left_out}
        return _hash(
            b"class",
            _text(cls.__name__),
            self.digest(type(cls), path),
            self._all(b"bases", cls.__bases__, f"{path} base"),
            *self._named(members, path),
        )

    def _field(self, value: Any, path: str) -> bytes:
        """A dataclass's field, without its annotation."""
        names = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
        return _hash(b"field", *(self.digest(getattr(value, name), f"{path}.{name}") for name in names))

    def _function(self, function: FunctionType, path: str) -> bytes:
        code = function.__code__
        used = {name: function.__globals__[name] for name in globals_of(code) if name in function.__globals__}
        documented = function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,)
        return _hash(
            b"function",
            self._code(code, path, documented=documented),
            self.digest(function.__defaults__, f"{path} default"),
            self.digest(function.__kwdefaults__, f"{path} default"),
            *(
                self.digest(cell, f"{path}, closure variable {name!r}")
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            ),
            *(
                part
                for name in sorted(used)
                for part in (_text(name), self.digest(used[name], f"{path}, global {name!r}"))
            ),
            *self._named(vars(function), path),
        )

    def _code(self, code: CodeType, path: str, *, documented: bool = False) -> bytes:
        noise = _noise(code) | ({0} if documented else set())
        constants = [None if index in noise else value for index, value in enumerate(code.co_consts)]
        shape = (
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
            code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name,
            code.co_code, getattr(code, "co_exceptiontable", b""),
        )  # fmt: skip
        return _hash(b"code", self.digest(shape, path), self._all(b"constants", constants, path))

    def _cell(self, cell: CellType, path: str) -> bytes:
        try:
            content = cell.cell_contents
        except ValueError:  # not yet bound
            return _hash(b"empty cell")
        return _hash(b"cell", self.digest(content, path))

    def _method(self, method: MethodType, path: str) -> bytes:
        return _hash(
            b"method", self.digest(method.__func__, path), self.digest(method.__self__, f"{path}.__self__")
        )

    def _builtin(self, function: BuiltinFunctionType, path: str) -> bytes:
        owner = function.__self__
        if owner is None or isinstance(owner, ModuleType):
            return _hash(b"builtin", _text(function.__module__ or ""), _text(function.__qualname__))
        return _hash(b"bound", _text(function.__name__), self.digest(owner, path))


def _noise(code: CodeType) -> set[int]:
    """Positions of constants that the body of a class stores only to say where it stands."""
    if not _LINE_NOISE & set(code.co_names):
        return set()
    steps = list(dis.get_instructions(code))
    return {
        cast(int, load.arg)
        for load, store in pairwise(steps)
        if store.opname == "STORE_NAME" and store.argval in _LINE_NOISE and load.opname == "LOAD_CONST"
    }


def _hash(tag: bytes, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(tag, digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _text(value: str) -> bytes:
    return _hash(b"str", value.encode("utf-8", "surrogatepass"))


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"none",
    type(...): lambda value: b"ellipsis",
    type(NotImplemented): lambda value: b"not implemented",
    bool: lambda value: b"true" if value else b"false",
    int: lambda value: b"int" + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
    float: lambda value: b"float" + struct.pack("<d", value),
    complex: lambda value: b"complex" + struct.pack("<dd", value.real, value.imag),
    bytes: lambda value: _hash(b"bytes", value),
}

_SPECIAL: dict[type, Callable[[_Walk, Any, str], bytes]] = {
    tuple: lambda walk, value, path: walk._all(b"tuple", value, path),
    list: lambda walk, value, path: walk._all(b"list", value, path),
    dict: lambda walk, value, path: walk._mapping(b"dict", value, path),
    MappingProxyType: lambda walk, value, path: walk._mapping(b"dict", value, path),
    set: _Walk._set,
    frozenset: _Walk._set,
    FunctionType: _Walk._global_or,
    CodeType: _Walk._code,
    CellType: _Walk._cell,
    MethodType: _Walk._method,
    BuiltinFunctionType: _Walk._builtin,
    classmethod: lambda walk, value, path: _hash(b"classmethod", walk.digest(value.__func__, path)),
    staticmethod: lambda walk, value, path: _hash(b"staticmethod", walk.digest(value.__func__, path)),
    property: lambda walk, value, path: walk._all(b"property", (value.fget, value.fset, value.fdel), path),
    memoryview: lambda walk, value, path: _hash(b"bytes", value.tobytes()),
}
