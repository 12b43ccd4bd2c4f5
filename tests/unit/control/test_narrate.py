"""The task's log, as a person reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_spotbatch.control.narrate import Narrator, awaited
from airflow_provider_spotbatch.control.observe import TOLD_FAILURES, ToldFailure
from airflow_provider_spotbatch.control.snapshot import Counts, Machine, Snapshot
from airflow_provider_spotbatch.control.wording import duration, machines, rate_text, some
from airflow_provider_spotbatch.job.outcome import Failure
from airflow_provider_spotbatch.job.policy import Policy

SEEN = Snapshot(
    now=0.0,
    run=1,
    run_age=1.0,
    policy=Policy(item_retries=1),
    concurrency=1,
    counts=Counts(total=9, waiting=9, sent=0, retrying=0, ok=0, failed=0),
)


def told(*failures: Failure, cause: str = "error") -> list[str]:
    said: list[str] = []
    of_items = [ToldFailure(item, 1, cause, failure.label, failure) for item, failure in enumerate(failures)]
    Narrator(said.append).tell(SEEN, of_items)
    return said


def test_a_short_failure_is_told_once() -> None:
    said = told(Failure("ItemTimeout", "ran longer than item_timeout=3 s"), cause="timeout")
    assert said[0] == "item 0 failed (timeout, attempt 1 of 2): ItemTimeout: ran longer than item_timeout=3 s"


@pytest.mark.parametrize("message", ["too much\nIt had 366 MB.", "x" * 500], ids=["lines", "long"])
def test_what_a_label_leaves_out_is_told(message: str) -> None:
    assert told(Failure("OutOfMemory", message))[0].endswith(f"\n{message}")


def test_a_traceback_and_the_last_output_are_told() -> None:
    (line, _) = told(Failure("ValueError", "bad", "Traceback …\nValueError: bad\n", "reading\nparsing"))
    assert line.splitlines() == [
        "item 0 failed (error, attempt 1 of 2): ValueError: bad",
        "Traceback …",
        "ValueError: bad",
        "last lines of its output:",
        "  | reading",
        "  | parsing",
    ]


def test_failures_beyond_the_first_are_counted_by_their_label() -> None:
    said = told(*[Failure("ValueError", "bad")] * (TOLD_FAILURES + 1))
    assert said[-1] == "  1 more failed attempt: ValueError: bad"


def test_items_that_a_lost_machine_had_in_hand_are_said_to_be_awaited() -> None:
    counts = replace(SEEN.counts, waiting=0, sent=9)
    lost = Machine("m1", 1, 0, 1, "terminated", "running", held=("chunk",))
    idle = Machine("m2", 1, 0, 1, "running", "running")
    busy = replace(idle, held=("another",))
    assert "give back what lost machines had" in awaited(counts, [lost, idle], None, None)
    assert awaited(counts, [lost, busy], None, None) == ""
    assert awaited(counts, [idle], None, None) == ""


def test_what_holds_for_many_machines_is_told_in_one_line() -> None:
    said: list[str] = []
    narrator = Narrator(said.append)
    fleet = [Machine(f"m{n}", 1, 0, 4, "running", "running") for n in range(16)]
    over = [replace(machine, state="terminated", reason="it was asked to end") for machine in fleet]
    lost = replace(over[0], reason="taken back")
    narrator.tell(replace(SEEN, machines=tuple(fleet[:1])), [])
    narrator.tell(replace(SEEN, machines=tuple(fleet)), [])
    narrator.tell(replace(SEEN, machines=(lost, *over[1:])), [])
    narrator.tell(replace(SEEN, machines=(lost, *over[1:])), [])
    assert [line for line in said if line[:1] == "m" or "machines (" in line] == [
        "machine m0 is at work, 4 slots",
        "15 machines (m1, m2, m3, …) are at work, 4 slots each",
        "machine m0 has ended: taken back",
        "15 machines (m1, m2, m3, …) have ended: it was asked to end",
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (machines(["a"]), "machine a"),
        (machines(["a", "b"]), "2 machines (a, b)"),
        (machines(list("abcd")), "4 machines (a, b, c, d)"),
        (machines(list("abcde")), "5 machines (a, b, c, …)"),
        (some(1, "chunk"), "1 chunk"),
        (some(1200, "chunk"), "1,200 chunks"),
        (rate_text(12.4), "12 items/s"),
        (rate_text(1 / 60), "1 item/min"),
        (rate_text(0.005), "18.0 items/h"),
        (duration(60), "60 s"),
        (duration(600), "10 min"),
        (duration(7200), "2.0 h"),
    ],
)
def test_numbers_in_words(shown: str, expected: str) -> None:
    assert shown == expected
