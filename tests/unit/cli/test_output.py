"""Text of items becomes harmless before it reaches a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from airflow_provider_spotbatch.cli import output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines – ünïcödé", "plain\ttext\nof two lines – ünïcödé"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("back\x08\rover", "back\\x08\\x0dover"),
        ("one byte \x9b31m", "one byte \\x9b31m"),
        ("evil\u202etxt.exe", "evil\\x202etxt.exe"),
        ("half \ud800 a character", "half \\xd800 a character"),
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


def test_errors_and_notes_go_to_standard_error_as_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("no \x1b[31mjob")
    output.note("this too")

    assert capsys.readouterr() == ("", "error: no \\x1b[31mjob\nnote: this too\n")


def test_json_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"text": "\x1b\n\u2028"})

    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"text": "\x1b\n\u2028"}
