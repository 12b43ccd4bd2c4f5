"""Modules that travel as source: which files, and their zip with the same bytes every time."""

from __future__ import annotations

import ast
import io
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence

from airflow_provider_spotbatch.environment.modules import SHIPPED, Modules, find_spec
from airflow_provider_spotbatch.job.errors import InvalidInput

MAX_BYTES = 10 * 1024 * 1024
"""Source and small data only: every machine of the fleet reads it before its first item."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
_SKIPPED_ENDINGS = (".pyc", ".pyo")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can tell."""


def shipped_files(modules: Modules, needed: Iterable[str]) -> dict[str, str]:
    """Name in the zip → path, of the top-level modules of ``needed`` that travel as source and of
    those that they import in turn."""
    files: dict[str, str] = {}
    waiting = sorted({name.partition(".")[0] for name in needed if modules.kind(name) == SHIPPED})
    done: set[str] = set()
    while waiting:
        top = waiting.pop(0)
        if top in done:
            continue
        done.add(top)
        found = dict(_files_of_top_level(top))
        files.update(found)
        imported = {name for path in found.values() for name in _imported(path)}
        waiting.extend(sorted(name for name in imported - done if modules.kind(name) == SHIPPED))
    return files


def added_files(paths: Sequence[str]) -> dict[str, str]:
    """Name in the zip → path, of files and folders that the user named.

    A package (a folder with ``__init__.py``) and a file keep their name; the contents of any other
    folder go to the top, as if it stood on the import path.
    """
    files: dict[str, str] = {}
    for path in paths:
        name = os.path.basename(os.path.normpath(path))
        if os.path.isfile(path):
            files[name] = path
        elif os.path.isfile(os.path.join(path, "__init__.py")):
            files.update(_files_below(path, name))
        else:
            files.update(_files_below(path, ""))
    return files


def zipped(files: dict[str, str]) -> bytes:
    """A zip of these files. Raises InvalidInput where they take more than MAX_BYTES together."""
    sizes = {name: os.path.getsize(path) for name, path in files.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InvalidInput(
            f"the modules and files that travel with the function take {total / 2**20:.1f} MB (largest: "
            f"{largest}), more than {MAX_BYTES // 2**20} MB. Keep large data in storage and read it from "
            "there, or make the code an installed package"
        )
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            with open(files[name], "rb") as file:
                archive.writestr(info, file.read())
    return target.getvalue()


def _imported(path: str) -> set[str]:
    """Top-level modules that a source file imports anywhere in it."""
    if not path.endswith(".py"):
        return set()
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _files_of_top_level(top: str) -> Iterator[tuple[str, str]]:
    spec = find_spec(top)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None:
            yield os.path.basename(spec.origin), spec.origin
        return
    for folder in spec.submodule_search_locations:
        yield from _files_below(folder, top)


def _files_below(folder: str, name: str) -> Iterator[tuple[str, str]]:
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("."))
        place = os.path.relpath(path, folder)
        for file in sorted(files):
            if not file.endswith(_SKIPPED_ENDINGS) and not file.startswith("."):
                inner = os.path.normpath(os.path.join(name, place, file))
                yield inner.replace(os.sep, "/"), os.path.join(path, file)
