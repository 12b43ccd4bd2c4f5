"""One box for all tests here: moto takes seconds to start. Tests leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.needs import missing_needs
from tests.cloud.cloudbox.roots import SUITES, root_of
from tests.conformance.place import missing


def pytest_collection_finish(session: pytest.Session) -> None:
    """Roots are made before the first test's time is counted: minutes, once on each host."""
    wanted = any("running_box" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not missing_needs() and not session.config.option.collectonly:
        for suite in SUITES:
            root_of(suite)


@pytest.fixture(scope="session")
def running_box() -> Iterator[Cloudbox]:
    for need in missing_needs():
        missing(need)
    with Cloudbox() as box:
        yield box


@pytest.fixture
def box(running_box: Cloudbox) -> Iterator[Cloudbox]:
    """The box, without refusals; machines that the test started end with it."""
    yield running_box
    running_box.relent()
    running_box.end_machines()
