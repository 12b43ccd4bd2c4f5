"""What commands print: text and tables made for a terminal, or JSON for programs.

Names, messages and lines of output come from users' items. :func:`plain` makes them harmless: no
escape sequence of theirs reaches the terminal, and rich reads no markup in them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and line feed, and those that reorder the text around them."""


FILE_WIDTH = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def is_terminal() -> bool:
    """Whether somebody looks at standard output as it comes."""
    return sys.stdout.isatty()


def count(text: str) -> int:
    """A number of 1 or more, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def console() -> Console:
    """Standard output, in which no text is read as markup; wide enough for any table where it is no
    terminal."""
    return Console(markup=False, emoji=False, highlight=False, width=None if is_terminal() else FILE_WIDTH)


def print_json(document: Any) -> None:
    """One JSON document on a line of its own; a stream of them is JSON lines."""
    print(json.dumps(document), flush=True)  # noqa: T201 - it is what was asked for


def error(message: str) -> None:
    _to_stderr(f"error: {message}")


def note(message: str) -> None:
    """What the reader should know, apart from what was asked for: on standard error."""
    _to_stderr(f"note: {message}")


def sayer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Tells what a command does as it does it: on standard output, beside JSON on standard error."""
    return note if arguments.json else lambda line: console().print(plain(line), soft_wrap=True)


def _to_stderr(message: str) -> None:
    print(plain(message), file=sys.stderr, flush=True)  # noqa: T201


def plain(text: str) -> str:
    """``text`` with its control characters (tab and line feed excepted) spelled out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str, longest: int = 100) -> str:
    """``text`` on one line of at most ``longest`` characters."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    wrap: Collection[str] = (),
) -> Table:
    """A table without lines, and without columns that have nothing in them. ``right``: the columns that hold
    numbers; ``wrap``: those that may take several lines where the terminal is narrow."""
    cells = [[cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in row] for row in rows]
    used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in (columns[place] for place in used):
        side: Literal["left", "right"] = "right" if column in right else "left"
        shown.add_column(column, justify=side, no_wrap=column not in wrap, overflow="fold")
    for row in cells:
        shown.add_row(*(row[place] for place in used))
    return shown


STATE_STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "unfinished": "yellow",
}


def state_text(state: str) -> Text:
    return Text(plain(state), style=STATE_STYLES.get(state, ""))


def moment(seconds: float) -> str:
    """Seconds since the epoch, in local time; "" for 0."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def dollars(amount: float | None) -> str:
    return "" if amount is None else f"${amount:.4f}"
