"""What is installed on the Airflow side: distributions and their versions, as requirement lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata

from airflow_provider_spotbatch.job.errors import InvalidInput

_OURS = "airflow-provider-spotbatch"


def requirements_of_modules(tops: Iterable[str]) -> tuple[str, ...]:
    """Requirement lines of the distributions that these top-level modules belong to, at the versions that
    are installed here; ours is none of them. Modules of no distribution are left out."""
    owners = metadata.packages_distributions()
    names = {_normal(name) for top in tops for name in owners.get(top, ())} - {_OURS}
    return tuple(installed_requirement(name) for name in sorted(names))


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
