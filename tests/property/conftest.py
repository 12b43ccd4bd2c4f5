"""How many stories each property is told: few and always the same, or as many as the environment says."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = "SPOTBATCH_EXAMPLES"

settings.register_profile(
    "simulation",
    settings.get_profile("spotbatch"),
    max_examples=int(os.environ.get(_EXAMPLES, "30")),
    derandomize=_EXAMPLES not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
"""``SPOTBATCH_EXAMPLES=2000 pytest tests/property`` searches on, with other seeds each time."""

settings.load_profile("simulation")


@pytest.fixture(autouse=True, scope="session")
def quiet_agents() -> Iterator[None]:
    """Agents warn of each fault that is put before them: thousands of lines."""
    log = logging.getLogger("airflow_provider_spotbatch.agent")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(level)
