"""The table that ``make bench`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Row(NamedTuple):
    """One line: ours, what it is held against (a peer of the same run, or a target), their ratio where
    both are one number, and whether the target holds (None: there is no target)."""

    name: str
    ours: str
    against: str
    ratio: str = ""
    holds: bool | None = None


def at_most(
    name: str, ours: float, most: float, unit: str, *, what: str = "target", shown: str = ".2f"
) -> Row:
    """A row of a figure that is to be at most another."""
    against = f"{what} {most:{shown}} {unit}"
    return Row(name, f"{ours:{shown}} {unit}", against, f"{ours / most:.2f}", ours <= most)


def render(rows: Iterable[Row]) -> str:
    """The rows in columns below their names."""
    cells = [("", "spotbatch", "against", "ratio", "holds")]
    cells += [(*row[:4], {True: "yes", False: "NO", None: ""}[row.holds]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
