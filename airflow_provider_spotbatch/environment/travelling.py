"""Readers on the Airflow side: the class that a stored value's reference means here."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from airflow_provider_spotbatch.environment.modules import MANGLED
from airflow_provider_spotbatch.environment.pickling import undecorated
from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.spec import COMMAND, Work


def resolver(
    work: Work, load_blob: Callable[[], bytes] | None, running: Mapping[str, Any] | None = None
) -> codec.Resolver:
    """Finds classes of travelling modules: in the DAG file as this process has loaded it, so that
    ``isinstance`` holds there, else by value in the work's blob.

    ``running``: globals of the function that runs now; a process may have loaded its file more than
    once, and ``isinstance`` holds for the classes of that copy.
    ``load_blob`` returns the blob ``work.blob``, once it is known to be the signed one; it is called
    at most once, and only if it is needed. The resolver raises SpotBatchError for what is in neither.
    """
    return _Definitions(work, load_blob, running or {}).resolve


class _Definitions:
    def __init__(self, work: Work, load_blob: Callable[[], bytes] | None, running: Mapping[str, Any]) -> None:
        self._work = work
        self._running = SimpleNamespace(**running)
        self._load_blob = load_blob
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Any] = {}
        self._of_blob: dict[str, dict[str, Any]] | None = None

    def resolve(self, module: str, qualname: str) -> Any:
        with self._lock:
            key = (module, qualname)
            if key not in self._found:
                self._found[key] = self._search(module, qualname)
            return self._found[key]

    def _search(self, module: str, qualname: str) -> Any:
        source = self._work.travelling.get(module, "")
        places: list[ModuleType | SimpleNamespace] = [*_loaded_from(source)]
        if _comes_from(self._running, source):
            places.insert(0, self._running)
        for loaded in places:
            found = _member(loaded, qualname)
            if found is not None:
                return found
        try:
            return self._blob_definitions()[module][qualname]
        except KeyError:
            raise SpotBatchError(
                f"a stored value is a {qualname} of the DAG file {source or module}, which is not loaded "
                "in this process and does not travel with the job: read the value in a task of that DAG "
                f"file, or move {qualname} to a module that is importable here"
            ) from None

    def _blob_definitions(self) -> dict[str, dict[str, Any]]:
        if self._of_blob is None:
            if self._load_blob is None or self._work.kind == COMMAND:
                self._of_blob = {}
            else:
                unpickler = codec.ReferringUnpickler(io.BytesIO(self._load_blob()), codec.reference)
                self._of_blob = unpickler.load()["modules"]
        return self._of_blob


def _loaded_from(source: str) -> Iterator[ModuleType]:
    """Modules of this process that come from ``source``, those that Airflow loaded as DAG files first."""
    matching = [
        (name, module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and _comes_from(module, source)
    ]
    matching.sort(key=lambda pair: not (pair[0].startswith(MANGLED) or pair[0] == "__main__"))
    yield from (module for _, module in matching)


def _comes_from(module: ModuleType | SimpleNamespace, source: str) -> bool:
    file = getattr(module, "__file__", None)
    if not source or not isinstance(file, str) or os.path.basename(file) != os.path.basename(source):
        return False
    return os.path.realpath(file).endswith(os.sep + source.replace("/", os.sep))


def _member(module: ModuleType | SimpleNamespace, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    task = undecorated(found)
    return found if task is None else task
