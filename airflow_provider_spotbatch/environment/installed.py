"""What is installed on the Airflow side: distributions and their versions, as requirement lines."""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata

from airflow_provider_spotbatch.job.errors import InvalidInput

_OURS = "airflow-provider-spotbatch"
_AIRFLOW = "airflow"


def requirements_of_modules(modules: Iterable[str]) -> tuple[str, ...]:
    """Requirement lines of the distributions that these modules belong to, at the versions that are installed
    here. Ours and Airflow are none of them: on machines there is no Airflow."""
    owners = _owners_of_packages()
    names = {_normal(name) for module in modules for name in _owners(module, owners)}
    return tuple(installed_requirement(name) for name in sorted(names - {_OURS}))


def _owners_of_packages() -> dict[str, list[str]]:
    """Top-level package → distributions. The library's own function for that knows, on Python 3.10, only
    distributions that declare their packages, and most do not."""
    owners = defaultdict(list)
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for package in set(declared or _packages_of(distribution.files or ())):
            owners[package].append(distribution.metadata["Name"])
    return dict(owners)


def _packages_of(files: Iterable[metadata.PackagePath]) -> Iterator[str]:
    """Top-level packages and modules among a distribution's files."""
    for file in files:
        module = inspect.getmodulename(file.name)
        if module is not None:
            yield file.parts[0] if len(file.parts) > 1 else module


def _owners(module: str, owners: Mapping[str, list[str]]) -> list[str]:
    """The distributions of a module. Those that share a namespace (``google``) are told apart by its path."""
    top = module.partition(".")[0]
    found = sorted(set(owners.get(top, ()))) if top != _AIRFLOW else []
    if len(found) < 2:
        return found
    place = module.replace(".", "/")
    return [name for name in found if _holds(name, place)]


@lru_cache(maxsize=4096)
def _holds(distribution: str, place: str) -> bool:
    """Whether a module's file, or its package, is a distribution's."""
    paths = (str(path) for path in metadata.files(distribution) or ())
    return any(path.startswith((f"{place}/", f"{place}.")) for path in paths)


def installed_requirement(name: str) -> str:
    """``name==version``, or ``name @ file://…`` where it was installed from a folder or file here."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise InvalidInput(
            f"the distribution {name} is needed on machines and is not installed here: pip install {name}"
        ) from None
    origin = distribution.read_text("direct_url.json")
    if origin is not None and (url := json.loads(origin).get("url", "")).startswith("file:"):
        return f"{_normal(name)} @ {url}"
    return f"{_normal(name)}=={distribution.version}"


@lru_cache(maxsize=1)
def installed_versions() -> tuple[str, ...]:
    """``name==version`` of everything installed here: constraints, so that what comes along with a
    distribution has the version that it has here."""
    found = {_normal(each.metadata["Name"]): each.version for each in metadata.distributions()}
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()) if name != _OURS)


def _normal(name: str) -> str:
    """As PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()
