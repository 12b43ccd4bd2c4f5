"""``Environment``: what the user says must reach the machines beside the function itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput

_PYTHON = re.compile(r"3\.\d{1,2}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Environment:
    """What items run in. Everything in it is part of the job's fingerprint.

    ``python``: minor version such as ``"3.12"`` (the Airflow side's, unless all that runs is
    importable or a command). ``packages``: requirement lines, or the path of a requirements file or
    of a ``pyproject.toml``; empty means the interpreter's own packages on the local backend.
    ``code``: files and folders to put on the import path. ``files``: name in the item's working
    folder → path of the file. ``env``: environment variables, **stored in clear**. ``secrets``:
    variable → reference (``arn:…``, ``projects/…``) that the machine resolves and nobody stores.
    ``setup``: a shell script, run as root once per machine.

    Relative paths are looked for in the DAG bundle, then in the working folder. All fields are
    templated. Raises InvalidInput where a value cannot be meant.
    """

    python: str | None = None
    packages: Sequence[str] | str | None = None
    code: Sequence[str] | None = None
    files: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    secrets: Mapping[str, str] | None = None
    setup: str | None = None

    def __post_init__(self) -> None:
        _check_python(self.python)
        _check_setup(self.setup)
        if not isinstance(self.packages, str):
            object.__setattr__(self, "packages", _texts("packages", self.packages))
        object.__setattr__(self, "code", _texts("code", self.code))
        for name in ("files", "env", "secrets"):
            object.__setattr__(self, name, _mapping(name, getattr(self, name)))
        for name in self.files or ():
            _check_file_name(name)
        for name in (*(self.env or ()), *(self.secrets or ())):
            if not _VARIABLE.fullmatch(name) and not _templated(name):
                raise InvalidInput(f"environment: {name!r} is no name of an environment variable")
        both = sorted(set(self.env or ()) & set(self.secrets or ()))
        if both:
            raise InvalidInput(f"environment: {both[0]!r} is given in env and in secrets")

    def render(self, render_value: Callable[[Any], Any]) -> Environment:
        """A copy with each field passed through ``render_value``; tuples come back as lists."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Environment(
            **{
                name: render_value(list(value) if isinstance(value, tuple) else value)
                for name, value in values.items()
            }
        )


def _templated(text: str) -> bool:
    return "{{" in text or "{%" in text


def _check_python(python: Any) -> None:
    if python is None or (isinstance(python, str) and (_templated(python) or _PYTHON.fullmatch(python))):
        return
    raise InvalidInput(
        f"environment: python must be a minor version in quotes such as '3.12', not {python!r}"
    )


def _check_setup(setup: Any) -> None:
    if setup is not None and not (isinstance(setup, str) and setup.strip()):
        raise InvalidInput(f"environment: setup must be the text of a shell script, not {setup!r}")


def _check_file_name(name: str) -> None:
    parts = name.replace(os.sep, "/").split("/")
    if os.path.isabs(name) or ".." in parts or "" in parts:
        raise InvalidInput(
            f"environment: files maps names in the item's working folder to paths; {name!r} leaves it"
        )


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise InvalidInput(f"environment: {name} must be a list of strings, not {value!r}")
    for element in value:
        if not isinstance(element, (str, os.PathLike)):
            raise InvalidInput(f"environment: {name} must be a list of strings, but holds {element!r}")
    return tuple(os.fspath(element) for element in value)


def _mapping(name: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"environment: {name} must be a dictionary of strings, not {value!r}")
    for key, element in value.items():
        if not isinstance(key, str) or not isinstance(element, (str, os.PathLike)):
            raise InvalidInput(f"environment: {name} must map strings to strings, not {key!r} to {element!r}")
    return {key: os.fspath(element) for key, element in value.items()}
