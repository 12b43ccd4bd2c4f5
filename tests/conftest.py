"""What all tests share: a home for Airflow that is this run's alone, and no deadline per example."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# pytest's own limit on a test is enough; a busy machine is no reason to fail an example.
settings.register_profile("spotbatch", deadline=None)
settings.load_profile("spotbatch")

_HOME = tempfile.mkdtemp(prefix="spotbatch-tests-")

# Set before anything imports Airflow, which reads its home once, at import.
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_HOME, ignore_errors=True)
