from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import Generation, Run

BOOT = Boot(
    backend="local",
    store="file:///store",
    job="job",
    generation=2,
    run=3,
    key="c0ffee" * 8,
    memory_mb=1024.0,
    python="/usr/bin/python3",
    backend_options={"queue": "q.sqlite"},
)


def test_it_reads_back() -> None:
    assert Boot.from_text(BOOT.to_text()) == BOOT


def test_its_key_is_never_shown() -> None:
    assert BOOT.key not in repr(BOOT)
    assert BOOT.key not in f"{BOOT}"


def test_it_names_its_run() -> None:
    assert BOOT.of_generation == Generation("job", 2)
    assert BOOT.of_run == Run(Generation("job", 2), 3)


def test_each_machine_gets_its_own_with_the_memory_of_its_class() -> None:
    own = BOOT.for_machine("i-7", launch=4, slots=2, memory_class=2, folder="/tmp/i-7")

    assert (own.instance, own.launch, own.slots, own.memory_class, own.folder) == ("i-7", 4, 2, 2, "/tmp/i-7")
    assert own.memory_mb == 4096.0
    assert (own.key, own.backend_options) == (BOOT.key, BOOT.backend_options)


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_format_is_refused(version: int | None) -> None:
    with pytest.raises(FormatMismatch, match="boot data"):
        Boot.from_text(json.dumps({**json.loads(BOOT.to_text()), "format": version}))
