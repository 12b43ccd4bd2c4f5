"""A local backend for scenarios, and a check that none leaves a process behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import Site, site_in


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = site_in(tmp_path / "root", monkeypatch)
    yield site
    left = site.processes
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "processes of machines outlived their job"
