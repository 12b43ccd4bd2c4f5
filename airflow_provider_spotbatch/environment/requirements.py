"""``Environment.packages`` as requirement lines, wherever they are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput

_INCLUDES = ("-r", "--requirement")
_OPTIONS = ("--index-url", "--extra-index-url", "--find-links", "--no-binary", "--only-binary", "--pre", "-i")
"""Options of a requirements file that mean the same on any machine."""


def requirement_lines(packages: Sequence[str] | str, locate: Callable[[str], str]) -> tuple[str, ...]:
    """Requirement lines of a list, a requirements file or a ``pyproject.toml``.

    ``locate`` makes a path absolute. Raises InvalidInput for files that are not there or not of these
    kinds, and for lines that mean something on this machine only.
    """
    if not isinstance(packages, str):
        return tuple(line for text in packages for line in [_checked(text.strip(), "packages")] if line)
    path = locate(packages)
    if path.endswith(".toml"):
        return _of_pyproject(path)
    return tuple(_of_file(path, ()))


def _of_file(path: str, outer: tuple[str, ...]) -> Iterator[str]:
    if path in outer:
        raise InvalidInput(f"environment: the requirements file {path} includes itself")
    with open(path, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    for raw in text.splitlines():
        line = raw.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        option, _, value = line.replace("=", " ", 1).partition(" ")
        if option in _INCLUDES:
            inner = os.path.join(os.path.dirname(path), value.strip())
            if not os.path.isfile(inner):
                raise InvalidInput(f"environment: {path} includes {value.strip()!r}, which is not there")
            yield from _of_file(inner, (*outer, path))
        else:
            yield _checked(line, path)


def _checked(line: str, where: str) -> str:
    if line.startswith("-") and line.split("=")[0].split(" ")[0] not in _OPTIONS:
        raise InvalidInput(
            f"environment: {line!r} in {where} is not a requirement that a machine could install; "
            "for source of your own use code=[…]"
        )
    if line.startswith((".", "/")):
        raise InvalidInput(f"environment: {line!r} in {where} is a path of this machine; use code=[…] for it")
    return line


def _of_pyproject(path: str) -> tuple[str, ...]:
    project = _read_toml(path).get("project", {})
    if "dependencies" in project.get("dynamic", ()):
        raise InvalidInput(f"environment: the dependencies in {path} are dynamic; list them in packages=[…]")
    return tuple(_checked(line, path) for line in project.get("dependencies", ()))


def _read_toml(path: str) -> dict[str, Any]:
    from importlib import import_module

    for reader in ("tomllib", "tomli"):  # the first from Python 3.11 on
        try:
            module = import_module(reader)
        except ModuleNotFoundError:
            continue
        with open(path, "rb") as file:
            try:
                return dict(module.load(file))
            except module.TOMLDecodeError as error:
                raise InvalidInput(f"environment: {path} is not valid TOML: {error}") from error
    raise InvalidInput("environment: to read a pyproject.toml on Python 3.10, install the package tomli")
