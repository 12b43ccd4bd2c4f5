"""Which modules a machine has, which travel to it as source, and which by value.

The DAG file is imported by Airflow under a mangled name that exists nowhere else; it forms a
*travelling module* under one stable name. Nothing is executed to find out: modules that are not
loaded are looked for on the import path only.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from airflow_provider_spotbatch.job.codec import REFERENCE_MODULE
from airflow_provider_spotbatch.job.context import WORKER_MODULE

STDLIB = "stdlib"
INSTALLED = "installed"
SHIPPED = "shipped"
TRAVELLING = "travelling"
MISSING = "missing"

MANGLED = "unusual_prefix_"
"""What Airflow puts before the name of a DAG file's module, with a hash of the file's path."""

STABLE = "spotbatch_dag_"

_SCRIPTS = ("__main__", "__mp_main__")
_NEVER_SHIPPED = frozenset(
    {"airflow", "airflow_provider_spotbatch", "cloudpickle", REFERENCE_MODULE, WORKER_MODULE}
)
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})


class Modules:
    """Tells modules apart. ``bundle``: folder of the DAG bundle, from which source paths are told."""

    def __init__(self, bundle: str | None = None) -> None:
        self.bundle = os.path.realpath(bundle) if bundle else None
        self._kinds: dict[str, str] = {}
        self._stable: dict[str, str] = {}

    def kind(self, name: str) -> str:
        """Of STDLIB, INSTALLED, SHIPPED (travels as source), TRAVELLING (by value) and MISSING."""
        if name not in self._kinds:
            self._kinds[name] = _kind(name)
        return self._kinds[name]

    def travels(self, name: Any) -> bool:
        """Whether the classes and functions of this module travel by value."""
        return isinstance(name, str) and self.kind(name) == TRAVELLING

    def stable(self, name: str) -> str:
        """The name of a travelling module that is the same in every process and on every machine."""
        if name not in self._stable:
            self._stable[name] = _stable_name(name, self.source(name))
        return self._stable[name]

    def source(self, name: str) -> str:
        """Path of a travelling module's file below the bundle; its bare name outside; "" without one."""
        file = getattr(sys.modules.get(name), "__file__", None)
        return self.below_bundle(file) if file else ""

    def below_bundle(self, file: str) -> str:
        """``file`` relative to the bundle, or its bare name if it lies elsewhere."""
        real = os.path.realpath(file)
        if self.bundle and real.startswith(self.bundle + os.sep):
            return os.path.relpath(real, self.bundle).replace(os.sep, "/")
        return os.path.basename(file)


class StableNames(Mapping[str, str]):
    """Real name → stable name of every travelling module, as the codec's pickler wants it.

    It answers for any module it is asked about; iteration gives those asked about so far.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._asked: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if not self._modules.travels(name):
            raise KeyError(name)
        return self._asked.setdefault(name, self._modules.stable(name))

    def __contains__(self, name: object) -> bool:
        return self._modules.travels(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)


def find_spec(name: str) -> ModuleSpec | None:
    """Where a fresh interpreter would find this module; executes nothing, not even parent packages."""
    top, *rest = name.split(".")
    spec = _find_top_level(top)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


def _find_top_level(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, None) if find is not None else None
        if spec is not None:
            return spec
    return None


def _kind(name: str) -> str:
    if name.startswith(MANGLED) or name in _SCRIPTS:
        return TRAVELLING
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return STDLIB
    if top in _NEVER_SHIPPED:
        return INSTALLED
    spec = _find_top_level(top)
    if spec is None:
        return TRAVELLING if name in sys.modules else MISSING
    loaded = _file_of_module(sys.modules.get(top))
    found = _file_of_spec(spec)
    if loaded and found and os.path.realpath(loaded) != os.path.realpath(found):
        return TRAVELLING  # loaded from elsewhere: a fresh interpreter would get another module
    return kind_of_file(_file_of_module(sys.modules.get(name)) or found)


def kind_of_file(file: str | None) -> str:
    """Of STDLIB, INSTALLED and SHIPPED, by where the file lies; None: a part without a file."""
    if file is None:
        return INSTALLED  # built into an installed extension
    folders = os.path.realpath(file).split(os.sep)
    if _INSTALLED_FOLDERS & set(folders):
        return INSTALLED
    for scheme in ("stdlib", "platstdlib"):
        if os.path.realpath(file).startswith(os.path.realpath(sysconfig.get_path(scheme)) + os.sep):
            return STDLIB
    return SHIPPED


def _file_of_module(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    return next(iter(getattr(module, "__path__", None) or ()), None)


def _file_of_spec(spec: ModuleSpec) -> str | None:
    if spec.has_location and spec.origin:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


def _stable_name(name: str, source: str) -> str:
    stem = os.path.splitext(os.path.basename(source))[0] if source else name.strip("_")
    if source == f"{stem}.py" and stem.isidentifier():
        return STABLE + stem
    digest = hashlib.sha256((source or name).encode()).hexdigest()[:8]
    return f"{STABLE}{re.sub(r'[^0-9a-zA-Z_]', '_', stem)}_{digest}"
