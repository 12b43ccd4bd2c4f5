"""What all tests share: a home for Airflow that is this run's alone, and no deadline per example."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.cloud.cloudbox.moto import Moto

# pytest's own limit on a test is enough; a busy machine is no reason to fail an example.
settings.register_profile("spotbatch", deadline=None)
settings.load_profile("spotbatch")

_HOME = tempfile.mkdtemp(prefix="spotbatch-tests-")

# Set before anything imports Airflow, which reads its home once, at import.
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    from tests.cloud.cloudbox.moto import Moto
    from tests.cloud.cloudbox.needs import MOTO_SERVER, moto_server
    from tests.conformance.place import missing

    if moto_server() is None:
        missing(f"moto_server (in .venv-cloud, or named by {MOTO_SERVER})")
    moto = Moto(tmp_path_factory.mktemp("moto"))
    yield moto
    moto.close()


@pytest.fixture
def moto(moto_server: Moto) -> Moto:
    """The session's moto server, emptied."""
    from tests.support.aws import emptied

    emptied(moto_server)
    return moto_server


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_HOME, ignore_errors=True)
