"""What the user gave, as a :class:`Work` and its blobs; every mistake that can be seen is told here,
before anything is launched.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from airflow_provider_spotbatch.environment.archive import added_files, shipped_files, zipped
from airflow_provider_spotbatch.environment.dotted import check_dotted
from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.fingerprint import Digester, Unstable
from airflow_provider_spotbatch.environment.imports import imports_of
from airflow_provider_spotbatch.environment.modules import (
    INSTALLED,
    MISSING,
    SHIPPED,
    TRAVELLING,
    Modules,
    StableNames,
    find_spec,
    kind_of_file,
)
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.environment.pickling import Seen, by_value_pickler, undecorated
from airflow_provider_spotbatch.environment.reached import reached_modules
from airflow_provider_spotbatch.environment.requirements import requirement_lines
from airflow_provider_spotbatch.environment.unpicklable import explain
from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.spec import CALL_ITEM, COMMAND, DOTTED, FUNCTION, Work, WorkerEnvironment

_SHOWN_UNSTABLE = 3


@dataclass(frozen=True)
class Packed:
    """All that must be stored for the work. ``blobs``: sha256 → bytes.

    ``fingerprint``: of work, shared arguments and environment, but not of the items; None where
    something in ``unstable`` has none. ``notes``: lines for the task's log. ``installed``: the full
    names of modules of installed distributions that the work imports; some may be names in a module.
    """

    work: Work
    environment: WorkerEnvironment
    blobs: dict[str, bytes]
    fingerprint: str | None
    unstable: tuple[str, ...]
    notes: tuple[str, ...]
    installed: tuple[str, ...] = ()


class Packing:
    """Packs one work: construct it, encode every item, then :meth:`finish`.

    Exactly one of ``function``, ``dotted`` (``package.module.function``) and ``command`` is given.
    ``kwargs`` are shared by all items; ``call`` is how an item is passed (job.spec); ``bundle`` the
    folder of the DAG bundle; ``name`` the work's name for people. Raises InvalidInput.
    """

    def __init__(
        self,
        *,
        function: Callable[..., Any] | None,
        dotted: str | None,
        command: Sequence[str] | None,
        kwargs: Mapping[str, Any],
        call: str,
        environment: Environment,
        bundle: str | None,
        name: str,
    ) -> None:
        given = [value for value in (function, dotted, command) if value is not None]
        if len(given) != 1:
            raise InvalidInput(
                f"give exactly one of a callable, a dotted path and a command, not {len(given)}"
            )
        self._function = function if function is None else undecorated(function) or function
        self._dotted = None if dotted is None else dotted.replace(":", ".")
        self._command = command
        self._kwargs = dict(kwargs)
        self._call = call
        self._given = environment
        self._bundle = bundle
        self._name = name
        self._notes: list[str] = []
        self._unstable: list[str] = []
        self._modules = Modules(bundle)
        self._digester = Digester(self._modules)
        self._seen = Seen()
        self._checked_codes: set[CodeType] = set()
        self._stable_names = StableNames(self._modules)
        self._referred: set[tuple[str, str]] = set()
        self._by_value = by_value_pickler(self._modules, self._seen)
        self._referring = codec.referring_pickler(self._by_value)
        self._packages = requirement_lines(environment.packages or (), self._locate)
        self._added = added_files([self._locate(path) for path in environment.code or ()])
        self._files = {name: self._locate(path) for name, path in (environment.files or {}).items()}
        self._check()

    def encode_item(self, index: int, value: Any) -> tuple[str, bytes]:
        """``(codec.JSON | codec.PICKLE, bytes)`` of an item; InvalidInput names the part at fault."""
        try:
            return codec.encode(value, self._pickled_item)
        except Exception as error:
            reason = explain(value, f"items[{index}]", self._pickled_item) or f"items[{index}]: {error}"
            raise InvalidInput(
                f"item {index}, of type {type(value).__qualname__}, cannot be sent to a machine: {reason}"
            ) from error

    def fingerprint_item(self, kind: str, data: bytes, value: Any) -> bytes | None:
        """A digest of an item that :meth:`encode_item` made ``(kind, data)`` of; None if it has no
        stable one: then the job cannot be resumed, and ``Packed.unstable`` names the item."""
        if kind == codec.JSON:
            return hashlib.blake2b(data, digest_size=16).digest()
        try:
            return self._digester.value(value, f"an item of type {type(value).__qualname__}")
        except Unstable as reason:
            if len(self._unstable) < _SHOWN_UNSTABLE:
                self._unstable.append(str(reason))
            return None

    def finish(self) -> Packed:
        """The work and its blobs, once every item was encoded: items may need classes of their own."""
        blobs: dict[str, bytes] = {}

        def keep(data: bytes) -> str:
            name = hashlib.sha256(data).hexdigest()
            blobs[name] = data
            return name

        blob = keep(self._work_blob())
        environment = self._environment(keep)
        return Packed(
            work=Work(self._kind, self._dotted or self._name, blob, self._call, self._travelling()),
            environment=environment,
            blobs=blobs,
            fingerprint=self._fingerprint(environment),
            unstable=tuple(self._unstable),
            notes=tuple(self._notes),
            installed=tuple(sorted(self._installed_modules())),
        )

    @property
    def _kind(self) -> str:
        if self._function is not None:
            return FUNCTION
        return DOTTED if self._dotted is not None else COMMAND

    # What can be seen to be wrong before launch

    def _check(self) -> None:
        for key in self._kwargs:
            if not isinstance(key, str):
                raise InvalidInput(f"the shared arguments must have names, not {key!r}")
        if self._function is not None:
            _check_callable(self._function, self._name)
            if self._call == CALL_ITEM:
                _check_signature(self._function, self._name, self._kwargs)
        elif self._dotted is not None:
            self._check_dotted()
        else:
            self._check_command()
        self._look_at(self._function, f"function {self._name}")
        for key, value in self._kwargs.items():
            self._look_at(value, f"argument {key}")
        self._check_imports()
        self._check_python()

    def _check_dotted(self) -> None:
        assert self._dotted is not None
        module = check_dotted(self._dotted, may_be_missing=bool(self._packages) or bool(self._added))
        self._seen.modules.add(module)

    def _check_command(self) -> None:
        command = self._command
        if isinstance(command, (str, bytes)) or not isinstance(command, Sequence) or not command:
            raise InvalidInput(
                "command must be a list of strings such as ['convert', '{item}', 'out.png'], "
                f"not {command!r}"
            )
        for part in command:
            if not isinstance(part, str):
                raise InvalidInput(f"command must be a list of strings, but holds {part!r}")
        if not any("{item}" in part for part in command):
            self._notes.append("the command has no {item}: it runs the same for every item")
        kind, _ = codec.encode(self._kwargs, lambda value: b"")
        if kind != codec.JSON:
            raise InvalidInput("the shared arguments of a command must be plain JSON values")

    def _check_imports(self) -> None:
        """What travelling code imports while it runs must be there on the machine, or travel too."""
        for code in [code for code in self._seen.codes if code not in self._checked_codes]:
            self._checked_codes.add(code)
            for module, certain in imports_of(code):
                if not self._is_missing(module):
                    self._seen.modules.add(module)
                elif kind_of_file(code.co_filename) == SHIPPED:
                    self._report_missing(module, code, certain)

    def _is_missing(self, module: str) -> bool:
        top = module.partition(".")[0]
        if any(name.partition("/")[0] in (top, f"{top}.py") for name in self._added):
            return False
        kind = self._modules.kind(module)
        if kind == SHIPPED:
            return module not in sys.modules and find_spec(module) is None
        return kind in (MISSING, TRAVELLING)

    def _report_missing(self, module: str, code: CodeType, certain: bool) -> None:
        if self._packages or self._given.setup or not certain:
            self._notes.append(f"{code.co_name} imports {module}, which is not installed here")
            return
        raise InvalidInput(
            f"{code.co_name} imports {module!r} (line {code.co_firstlineno} ff. of "
            f"{self._modules.below_bundle(code.co_filename)}), which is neither installed here nor in the "
            "DAG bundle, so every item would fail. Name its distribution in "
            "environment=Environment(packages=[…]), or its source in code=[…]"
        )

    def _check_python(self) -> None:
        wanted = self._given.python
        if wanted is not None and wanted != CURRENT_PYTHON and self._seen.codes:
            raise InvalidInput(
                f"environment.python={wanted!r}, but {self._name} travels as the bytecode of Python "
                f"{CURRENT_PYTHON}. Move it to a module of the DAG bundle and name it by its dotted path, or "
                "leave python out"
            )

    def _locate(self, path: str) -> str:
        """An absolute path: as it is, below the bundle, or below the working folder."""
        path = os.path.expanduser(path)
        places = [self._bundle, os.getcwd()] if self._bundle else [os.getcwd()]
        for place in places:
            found = os.path.join(place, path)
            if os.path.exists(found):
                return found
        raise InvalidInput(f"environment: {path!r} is not there (looked in {' and '.join(places)})")

    # Pickling

    def _look_at(self, value: Any, path: str) -> None:
        """The first pass: note what travels, or tell what cannot."""
        try:
            self._pickled(value)
        except Exception as error:
            reason = explain(value, path, self._pickled) or f"{path}: {error}"
            raise InvalidInput(f"{self._name} cannot be sent to a machine: {reason}") from error

    def _pickled(self, value: Any) -> bytes:
        target = io.BytesIO()
        self._by_value(target, protocol=5).dump(value)
        return target.getvalue()

    def _pickled_item(self, value: Any) -> bytes:
        target = io.BytesIO()
        pickler = self._referring(target, self._stable_names)
        pickler.dump(value)
        self._referred |= pickler.referred
        return target.getvalue()

    def _work_blob(self) -> bytes:
        if self._command is not None:
            return json.dumps({"command": list(self._command), "kwargs": self._kwargs}).encode()
        body: dict[str, Any] = {"kwargs": self._kwargs, "modules": self._definitions()}
        if self._function is not None:
            body["function"] = self._function
        return self._pickled(body)

    def _definitions(self) -> dict[str, dict[str, Any]]:
        """The named classes and functions of travelling modules that work or items need."""
        real = {stable: name for name, stable in self._stable_names.items()}
        for stable, qualname in sorted(self._referred):
            self._look_at(self._member(real[stable], qualname), qualname)
        self._check_imports()
        modules: dict[str, dict[str, Any]] = {}
        for (module, qualname), met in sorted(self._seen.definitions.items(), key=lambda pair: pair[0]):
            if not isinstance(met, type):  # a decorator may have put another function in its place
                met = _find(module, qualname) or met
            modules.setdefault(self._modules.stable(module), {})[qualname] = met
        return modules

    def _member(self, module: str, qualname: str) -> Any:
        found = _find(module, qualname)
        if found is None:
            raise InvalidInput(
                f"an item is a {qualname}, but {self._modules.source(module) or module} holds nothing of "
                "that name at its top level, so no machine could find it"
            )
        return found

    # The rest of the specification

    def _travelling(self) -> dict[str, str]:
        names = {name for name in self._seen.modules if self._modules.kind(name) == TRAVELLING}
        names |= {module for module, _ in self._seen.definitions}
        return {self._modules.stable(name): self._modules.source(name) for name in sorted(names)}

    def _environment(self, keep: Callable[[bytes], str]) -> WorkerEnvironment:
        files = {**shipped_files(self._modules, self._seen.modules), **self._added}
        if files:
            tops = sorted({name.partition("/")[0].removesuffix(".py") for name in files})
            self._notes.append(f"travels as source: {', '.join(tops)} ({len(files)} files)")
        return WorkerEnvironment(
            python=self._given.python or CURRENT_PYTHON,
            code=(keep(zipped(files)),) if files else (),
            files={name: keep(_read(path)) for name, path in self._files.items()},
            env=dict(self._given.env or {}),
            secrets=dict(self._given.secrets or {}),
            packages=self._packages,
            setup=self._given.setup,
        )

    def _installed_modules(self) -> set[str]:
        """Those that travelling code imports, and the source beside it in turn."""
        reached = reached_modules(self._modules, self._seen.modules)
        return {name for name in reached if self._modules.kind(name) == INSTALLED}

    def _installed(self) -> list[str]:
        """Top-level installed modules that the work needs: another version is another work."""
        tops = {name.partition(".")[0] for name in self._seen.modules}
        return sorted(top for top in tops if self._modules.kind(top) == INSTALLED)

    def _fingerprint(self, environment: WorkerEnvironment) -> str | None:
        try:
            parts = [
                json.dumps([self._kind, self._call, self._dotted, self._command]).encode(),
                json.dumps(environment.to_json(), sort_keys=True).encode(),
                self._digester.value(self._function, f"function {self._name}"),
                *(
                    part
                    for key in sorted(self._kwargs)
                    for part in (key.encode(), self._digester.value(self._kwargs[key], f"argument {key}"))
                ),
                *(self._digester.module(name) for name in self._installed()),
                self._digester.definitions(),
            ]
        except Unstable as reason:
            self._unstable.append(str(reason))
            return None
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()


def _find(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return undecorated(found) or found


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise InvalidInput(f"{name} must be a function, not {function!r}")
    called = function if inspect.isroutine(function) or hasattr(function, "func") else type(function).__call__
    for candidate in (function, called):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise InvalidInput(
                f"{name} is an async function; an item runs alone in its process, so write it without "
                "async, or call asyncio.run(…) inside it"
            )
        if inspect.isgeneratorfunction(candidate):
            raise InvalidInput(
                f"{name} is a generator function (it uses yield); a generator cannot be sent back as a "
                "result: return a list"
            )


def _check_signature(function: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions may tell none
        return
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        shared = "".join(f", {key}=…" for key in kwargs)
        raise InvalidInput(f"{name}{signature} cannot be called as {name}(item{shared}): {error}") from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
