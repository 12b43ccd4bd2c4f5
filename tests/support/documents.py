"""The documents and their fenced blocks, as the tests read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]

NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
"""Stands on the line above a block that no test runs, with the reason."""

_FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")


@dataclass(frozen=True)
class Snippet:
    """One fenced block. ``line``: of its fence, from 1; ``not_run``: why no test runs it."""

    document: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def snippets(document: Path) -> Iterator[Snippet]:
    """The fenced blocks of a document, in order."""
    lines = iter(enumerate(document.read_text().splitlines(), 1))
    before = ""
    for number, line in lines:
        opened = _FENCE.fullmatch(line)
        if opened is None:
            before = line
            continue
        block: list[str] = []
        indent, fence, language = opened.groups()
        for _, inside in lines:
            if inside.strip() == fence:
                break
            block.append(inside.removeprefix(indent))
        else:
            raise ValueError(f"{document}:{number}: the block has no end")
        marker = NOT_RUN.fullmatch(before.strip())
        yield Snippet(
            document, number, language.strip(), "\n".join(block) + "\n", marker[1] if marker else None
        )
        before = ""


def of_language(document: Path, language: str) -> list[Snippet]:
    """The blocks of one language that are to be run."""
    return [each for each in snippets(document) if each.language == language and each.not_run is None]


def table_after(document: Path, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, cells without their blanks."""
    _, found, rest = document.read_text().partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"{document} has no heading {heading!r}")
    rows: list[list[str]] = []
    for line in rest.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
        elif rows or line.startswith("#"):
            break
    return rows[2:]


def messages(folder: Path) -> set[str]:
    """Every text in the source below a folder that a person may read, ``…`` for what is filled in."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(_constant(part) for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def _constant(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"
