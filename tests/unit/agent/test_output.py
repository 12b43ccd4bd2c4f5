"""What items print: whole, attributed, bounded."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.agent.output import HEAD_BYTES, TAIL_BYTES, ItemOutput, WorkerOutput
from airflow_provider_spotbatch.job.outcome import ItemOutcome
from tests.support.jobs import Job, failure_of, function_job, outcomes_of, value_of


def ran(job: Job) -> tuple[list[ItemOutcome], dict[int | None, list[str]]]:
    """The outcomes, and the lines that each item printed."""
    outcomes = outcomes_of(job)
    lines: dict[int | None, list[str]] = {}
    for line in asyncio.run(job.logs()):
        lines.setdefault(line["item"], []).append(line["text"])
    return outcomes, lines


def test_lines_are_attributed_to_their_items(tmp_path: Path) -> None:
    def work(x: int) -> None:
        print(f"out {x}")
        print(f"err {x}", file=sys.stderr)
        os.write(1, b"raw %d\n" % x)
        os.system(f"echo child {x}")

    _, lines = ran(function_job(tmp_path, work, range(20)))
    assert lines == {x: [f"out {x}", f"err {x}", f"raw {x}", f"child {x}"] for x in range(20)}


def test_output_without_a_newline_and_not_utf8_is_kept(tmp_path: Path) -> None:
    def work(x: int) -> None:
        print(f"no newline {x}", end="")
        sys.stdout.flush()
        os.write(2, b"\xff\xfe")

    _, lines = ran(function_job(tmp_path, work, [0, 1]))
    assert lines == {x: [f"no newline {x}\\xff\\xfe"] for x in (0, 1)}


def test_a_surrogate_can_be_printed(tmp_path: Path) -> None:
    outcomes, lines = ran(function_job(tmp_path, lambda x: print("\ud800"), [0]))
    assert value_of(outcomes[0]) is None
    assert lines == {0: ["\\ud800"]}


def test_of_100_mb_the_first_and_the_last_lines_are_kept(tmp_path: Path) -> None:
    def work(x: int) -> str:
        for number in range(100_000):
            print(f"{number:06d}" + "x" * 1_000)
        raise RuntimeError("at the end")

    (outcome,), lines = ran(function_job(tmp_path, work, [0]))
    kept = lines[0]
    assert kept[0].startswith("000000x")
    assert kept[-1].startswith("099999x")
    assert any("bytes of output were left out" in line for line in kept)
    assert sum(map(len, kept)) < HEAD_BYTES + TAIL_BYTES + 1_000
    assert "099999" in failure_of(outcome).output_tail
    assert len(failure_of(outcome).output_tail) <= 4096


def test_a_closed_standard_output_is_there_again_for_the_next_item(tmp_path: Path) -> None:
    def work(x: int) -> int:
        print(f"before {x}")
        if x == 0:
            sys.stdout.close()
            os.close(1)
            os.close(2)
        return x

    outcomes, lines = ran(function_job(tmp_path, work, [0, 1]))
    assert [value_of(outcome) for outcome in outcomes] == [0, 1]
    assert lines == {0: ["before 0"], 1: ["before 1"]}


def test_a_replaced_standard_output_is_ours_again_for_the_next_item(tmp_path: Path) -> None:
    def work(x: int) -> None:
        if x == 0:
            sys.stdout = None  # type: ignore[assignment]
        else:
            print("heard")

    _, lines = ran(function_job(tmp_path, work, [0, 1]))
    assert lines == {1: ["heard"]}


def test_log_records_from_info_up_are_output(tmp_path: Path) -> None:
    def work(x: int) -> None:
        import logging

        logging.getLogger("user").info("told %d", x)
        logging.getLogger("user").debug("not told")

    _, lines = ran(function_job(tmp_path, work, [0, 1]))
    assert lines == {0: ["INFO user: told 0"], 1: ["INFO user: told 1"]}


def test_a_failure_shows_the_last_lines_of_its_own_output(tmp_path: Path) -> None:
    def work(x: int) -> None:
        for number in range(30):
            print(f"item {x} line {number}")
        if x == 1:
            raise ValueError

    outcomes, _ = ran(function_job(tmp_path, work, [0, 1, 2]))
    assert failure_of(outcomes[1]).output_tail.splitlines() == [f"item 1 line {n}" for n in range(10, 30)]


def test_what_is_printed_while_the_function_loads_belongs_to_no_item(tmp_path: Path) -> None:
    class Loud:
        def __reduce__(self) -> Any:
            return print, ("loading",)

    _, lines = ran(function_job(tmp_path, lambda x, loud: None, [0], kwargs={"loud": Loud()}))
    assert lines == {None: ["loading"]}


NONCE = "0123456789abcdef"


def mark(item: int, failed: bool = False) -> bytes:
    return b"\x1e" + NONCE.encode() + b":%d:%d\x1f" % (item, failed)


@given(
    texts=st.lists(st.binary(max_size=40).filter(lambda text: b"\n" not in text), min_size=1, max_size=6),
    size=st.integers(1, 50),
)
def test_marks_are_found_however_the_pipe_is_cut(texts: list[bytes], size: int) -> None:
    stream = b"".join(text + mark(item) for item, text in enumerate(texts))

    async def read() -> dict[int | None, str]:
        found: dict[int | None, str] = {}
        output = WorkerOutput(NONCE, lambda item, attempt, text: found.update({item: text}))
        output.begin(list(range(len(texts))), 1)
        for start in range(0, len(stream), size):
            output.take(stream[start : start + size])
        await output.caught_up(0)
        output.finish()
        return found

    expected = {
        item: text.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        for item, text in enumerate(texts)
        if text
    }
    assert asyncio.run(read()) == expected


@given(sizes=st.lists(st.integers(1, 3 * TAIL_BYTES), max_size=12))
def test_what_is_left_out_is_counted_exactly(sizes: list[int]) -> None:
    lines: list[str] = []
    output = ItemOutput(lines.append)
    for size in sizes:
        output.feed(b"x" * size)
    output.close()
    kept = sum(len(line) for line in lines if line.startswith("x"))
    notes = [line for line in lines if not line.startswith("x")]
    left_out = int(notes[0].split()[1].replace(",", "")) if notes else 0
    assert kept + left_out == sum(sizes)
    assert left_out == max(0, sum(sizes) - HEAD_BYTES - TAIL_BYTES)
