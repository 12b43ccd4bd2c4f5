"""One box for all tests of a session: moto takes seconds to start. Tests leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow.dag_runs import dag_bag, days, run_dag
from tests.cloud.cloudbox.box import Cloudbox

__all__ = ["dag_bag", "days", "run_dag"]


@pytest.fixture
def box(running_box: Cloudbox) -> Iterator[Cloudbox]:
    """The box, without refusals; machines that the test started end with it."""
    yield running_box
    running_box.relent()
    running_box.end_machines()
