"""Text of items becomes harmless before it reaches a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.cli import output
from tests.support.stored_runs import stored_run


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines – ünïcödé", "plain\ttext\nof two lines – ünïcödé"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("back\x08\rover", "back\\x08\\x0dover"),
        ("one byte \x9b31m", "one byte \\x9b31m"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("half \ud800 a character", "half \\ud800 a character"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert output.plain(text) == shown


def test_one_line_is_one_and_no_longer_than_asked() -> None:
    assert output.one_line("a\nb\r\n  c") == "a b c"
    assert output.one_line("x" * 500, 10) == "x" * 9 + "…"


def test_cells_are_neither_markup_nor_escape_sequences() -> None:
    written = io.StringIO()
    table = output.table(("name",), [["[red]\x1b[2J[/red] :bomb:"]])
    Console(file=written, width=100).print(table)

    assert "[red]\\x1b[2J[/red] :bomb:" in written.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (100, ["job         state    done  dag", "my-long-job running   1/2  of it"]),
        (28, ["job         state    done", "my-long-job running   1/2"]),
        (20, ["job         state", "my-long-job running"]),
        (16, ["job     state", "my-long running", "-job"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_loses_no_character_of_them(
    monkeypatch: pytest.MonkeyPatch, width: int, shown: list[str]
) -> None:
    monkeypatch.setattr(output, "FILE_WIDTH", width)
    written = io.StringIO()
    columns = ("job", "state", "done", "dag")
    row = ["my-long-job", "running", "1/2", "of it"]
    table = output.table(columns, [row], right=("done",), wrap=("dag",), spare=("dag", "done"))
    Console(file=written, width=width).print(table)

    lines = written.getvalue().splitlines()
    assert [line.split() for line in lines] == [line.split() for line in shown]


def test_errors_and_notes_go_to_standard_error_as_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("no \x1b[31mjob")
    output.note("this too")

    assert capsys.readouterr() == ("", "error: no \\x1b[31mjob\nnote: this too\n")


def test_json_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"text": "\x1b\n\u2028"})

    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"text": "\x1b\n\u2028"}


@pytest.fixture
def listing(tmp_path: Path) -> list[str]:
    """A command that prints a table with an accent in it."""
    store = f"file://{tmp_path}"
    asyncio.run(stored_run(open_store(store)).begin("dåg"))
    return [sys.executable, "-m", "airflow_provider_spotbatch.cli", "jobs", "--store", store]


def test_a_reader_that_has_enough_is_no_failure(listing: list[str]) -> None:
    """As ``spotbatch jobs | head -1``."""
    theirs, ours = os.pipe()
    os.close(theirs)
    with open(ours, "wb") as nobody:
        ended = subprocess.run(listing, stdout=nobody, stderr=subprocess.PIPE, timeout=60, text=True)

    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "Broken" not in ended.stderr


def test_a_disk_that_is_full_is_told_in_one_line(listing: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(listing, stdout=full, stderr=subprocess.PIPE, timeout=60, text=True)

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1:] == ["error: [Errno 28] No space left on device"]


def test_characters_that_a_terminal_does_not_have_are_spelled_out(listing: list[str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(listing, capture_output=True, timeout=60, env=environment, check=True)

    assert b"d\\xe5g" in ended.stdout
