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
    from tests.cloud.cloudbox.box import Cloudbox
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


@pytest.fixture(scope="session")
def running_box() -> Iterator[Cloudbox]:
    """The session's cloud on this machine. Tests leave it as they found it."""
    from tests.cloud.cloudbox.box import Cloudbox
    from tests.cloud.cloudbox.needs import missing_needs
    from tests.conformance.place import missing

    for need in missing_needs():
        missing(need)
    with Cloudbox() as box:
        yield box


def pytest_collection_finish(session: pytest.Session) -> None:
    """Roots of the box's machines are made before the first test's time is counted: minutes, once on each
    host."""
    from tests.cloud.cloudbox.needs import missing_needs
    from tests.cloud.cloudbox.roots import SUITES, root_of

    wanted = any(_needs_box(item) for item in session.items)
    if wanted and not missing_needs() and not session.config.option.collectonly:
        for suite in SUITES:
            root_of(suite)


def _needs_box(item: pytest.Item) -> bool:
    """The conformance suites ask for it by name, for one of their places."""
    places = getattr(item, "callspec", None)
    asked = places is not None and places.params.get("place") == "aws"
    return asked or "running_box" in getattr(item, "fixturenames", ())


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_HOME, ignore_errors=True)
