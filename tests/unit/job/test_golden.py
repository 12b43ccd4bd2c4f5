"""What earlier releases stored stays readable, and is not written differently unnoticed."""

from __future__ import annotations

import pytest

from tests.unit.job.stored import EARLIER, GOLDEN, STORED, Stored


@pytest.mark.parametrize("stored", [*STORED, *EARLIER], ids=lambda stored: stored.name)
def test_what_was_stored_reads_as_it_did(stored: Stored) -> None:
    assert stored.read(stored.golden()) == stored.value


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.name)
def test_it_is_written_as_it_was(stored: Stored) -> None:
    assert stored.write(stored.value) == stored.golden()


def test_every_golden_file_is_read_by_a_test() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {stored.name for stored in (*STORED, *EARLIER)}
