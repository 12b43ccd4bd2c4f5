"""Awkward items, results and functions, from submission to the reader, on the local backend."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.result_reader import KEPT_BYTES
from tests.support.jobs import processes_with
from tests.support.runs import REPOSITORY, Site, peak_of_agents
from tests.support.work import same


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


VALUES = [
    (1, (2, "two")),
    {1, 2},
    frozenset({3}),
    {1: "one", None: "nothing"},
    math.nan,
    math.inf,
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=1))),
    np.arange(6, dtype="int16").reshape(2, 3),
    np.float64(0.5),
    None,
    b"\x00\xff",
    10**5000,
    "\ud800 { {{ item }} {% if %}",
    ValueError("an exception is a value too", 5),
    [],
    "",
]


def test_values_come_back_as_they_went(site: Site) -> None:
    results = site.results(same, VALUES)
    assert len(results) == len(VALUES)
    for went, came in zip(VALUES, results, strict=True):
        assert type(came) is type(went)
        assert equal(went, came) or (isinstance(went, ValueError) and came.args == went.args)


def test_an_exception_whose_init_takes_arguments_is_a_value_and_a_failure(site: Site) -> None:
    class NeedsTwo(Exception):
        def __init__(self, code: int, reason: str) -> None:
            super().__init__(f"{code}: {reason}")
            self.code = code

    def give_or_raise(how: str) -> Exception:
        error = NeedsTwo(5, "wrong")
        if how == "raise":
            raise error
        return error

    given, raised = site.results(give_or_raise, ["give", "raise"], item_retries=0, on_item_error="collect")
    assert (type(given).__name__, given.code, str(given)) == ("NeedsTwo", 5, "5: wrong")
    assert (raised.cause, raised.item, "NeedsTwo: 5: wrong" in raised.message) == ("error", "raise", True)
    assert "raise error" in raised.traceback


def test_results_that_cannot_be_stored_name_the_part_to_blame(site: Site) -> None:
    def awkward(kind: str) -> Any:
        if kind == "generator":
            return (number for number in range(3))
        return {"handle": [threading.Lock()]} if kind == "lock" else kind

    plain, generator, lock = site.results(
        awkward, ["plain", "generator", "lock"], item_retries=0, on_item_error="collect"
    )
    assert plain == "plain"
    assert generator.message.startswith("TypeError: the result is a generator")
    assert "return list(...)" in generator.message
    assert "the result, a dict, cannot be pickled: result['handle'][0] is a _thread.lock" in lock.message


def test_an_item_that_cannot_be_sent_is_named_and_nothing_is_launched(site: Site) -> None:
    with pytest.raises(InvalidInput, match=r"item 1, of type dict.*items\[1\]\['lock'\].*lock"):
        site.submit(same, [1, {"lock": threading.Lock()}])
    assert site.machines == []


def test_no_items_are_a_success_without_a_machine(site: Site) -> None:
    results = site.results(same, [])
    assert (len(results), list(results), list(results.failures), results[:2].__len__()) == (0, [], [], 0)
    assert site.machines == []


def test_one_item_takes_one_machine(site: Site) -> None:
    assert site.results(same, ["only"]).to_list() == ["only"]
    assert len(site.machines) == 1


@pytest.mark.parametrize("items", ["abc", b"abc", 5, {"a": 1}, None])
def test_what_is_no_collection_is_refused_before_launch(site: Site, items: Any) -> None:
    with pytest.raises(InvalidInput, match="items must be a list or another iterable"):
        site.submit(same, items)
    assert site.machines == []


MB = 2**20
LARGE = 10 * MB

READER = """
import sys
from airflow_provider_spotbatch import MapResult

def peak():
    with open("/proc/self/status") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) // 1024

result = MapResult.deserialize(eval(sys.argv[1]), 1)
first = result[0]  # Airflow, the store's library and the index are loaded now
before = peak()
for index, value in enumerate(result):
    assert value == bytes([index]) * len(value), index
print(peak() - before)
"""


def test_large_results_are_made_and_read_in_bounded_memory(site: Site) -> None:
    """Small ones first, so that chunks of many items are sent before a large one was seen."""

    def large_later(index: int) -> bytes:
        return bytes([index]) * (LARGE if index >= 160 else 10)

    with peak_of_agents(site) as agents:
        results = site.results(large_later, range(200))
    try:
        read = subprocess.run(
            [sys.executable, "-c", READER, repr(results.serialize())],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(site.root / "store")  # 400 MB
    assert read.returncode == 0, read.stderr
    limit = (KEPT_BYTES + 4 * LARGE) / MB + 4
    assert int(read.stdout) < limit, "three copies of one result, one before it, what is at hand, and crumbs"
    assert agents
    assert max(agents.values()) < 400, "MB: two chunks' results, each of 64 MB and one result over it"
    assert not any("failed attempts" in line or "PutOff" in line for line in site.said)


def test_output_of_any_kind_harms_neither_item_nor_result(site: Site) -> None:
    def talk(how: str) -> str:
        if how == "flood":
            line = "x" * 1023 + "\n"
            for _ in range(100 * 1024):
                sys.stdout.write(line)
        elif how == "no newline":
            print("x" * 100_000, end="")
        elif how == "bytes":
            os.write(1, b"\xff\xfe\x00" * 1000)
            sys.stderr.buffer.write(b"\x80\x81")
        elif how == "closed":
            sys.stdout.close()
            os.close(1)
            os.close(2)
        return how

    kinds = ["flood", "no newline", "bytes", "closed", "after"]
    with peak_of_agents(site) as agents:
        assert site.results(talk, kinds, concurrency=1).to_list() == kinds
    logs = sum(path.stat().st_size for path in site.root.rglob("store/out/*/*/logs/*/*"))
    assert 100_000 < logs < 5 * MB
    assert max(agents.values()) < 300


def test_nothing_that_an_item_started_outlives_the_job(site: Site) -> None:
    def start(how: str) -> str:
        if how == "child":
            subprocess.Popen(["sleep", "3600"])
        elif how == "daemon":
            subprocess.Popen(["sleep", "3600"], start_new_session=True, env={})
        elif how == "fork" and os.fork() == 0:
            return "the child returned"
        elif how == "double fork" and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
        elif how == "exit":
            os._exit(0)
        return how

    kinds = ["child", "daemon", "fork", "double fork", "exit", "after"]
    before = set(sleeping())
    results = site.results(start, kinds, item_retries=0, on_item_error="collect", concurrency=2)
    assert [value if isinstance(value, str) else value.cause for value in results] == [
        "child",
        "daemon",
        "fork",
        "double fork",
        "crash",
        "after",
    ]
    assert "the process ended with exit code 0, and gave no result" in results[4].message
    assert site.processes == []
    assert set(sleeping()) == before, "of those without the machine's mark in their environment"


def sleeping() -> list[int]:
    return list(processes_with("sleep\x003600"))
