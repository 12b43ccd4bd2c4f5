"""What the documents say holds: links lead somewhere, tables are what the code says, messages exist."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment, Resources, SpotMapOperator
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.cli import build_parser
from airflow_provider_spotbatch.decorators import OF_A_MAP
from airflow_provider_spotbatch.job.outcome import CAUSES, OK
from airflow_provider_spotbatch.provider_info import CONNECTION_FIELDS, PROVIDER_INFO
from airflow_provider_spotbatch.signature import FILLED
from tests.support.documents import DOCUMENTS, PAGES, ROOT, messages, snippets, table_after

DOCS = ROOT / "docs"
LANGUAGES = {"python", "sh", "json", "ini", "text"}
"""``text`` is for pictures and for what a program prints; all else is run."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_names_its_language(document: Path) -> None:
    unknown = [
        f"{block.place}: {block.language or 'no language'}"
        for block in snippets(document)
        if block.language not in LANGUAGES and not block.language.startswith("{")
    ]

    assert unknown == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_page_is_in_the_sites_contents() -> None:
    listed = {
        f"{name}.md"
        for block in snippets(DOCS / "index.md")
        for name in re.findall(r"(?m)^[\w-]+$", block.text)
    }

    assert {page.name for page in PAGES} - {"index.md"} == listed


def code(cell: str) -> str:
    found = re.fullmatch(r"`([^`]+)`", cell)
    assert found is not None, f"{cell!r} should be code"
    return found[1]


def defaults_of(kind: type) -> dict[str, Any]:
    """Field → default of a dataclass; empty collections as the tables show them."""
    return {field.name: field.default for field in fields(kind)}


def test_the_arguments_are_the_operators() -> None:
    rows = table_after(DOCS / "arguments.md", "## Reference")
    parameters = inspect.signature(SpotMapOperator.__init__).parameters
    expected = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }

    assert {code(name): ast.literal_eval(code(default)) for name, default, *_ in rows} == expected
    templated = {code(name) for name, _, is_template, _ in rows if is_template == "yes"}
    assert templated == set(SpotMapOperator.template_fields)


def test_the_page_of_arguments_names_what_is_not_for_one_call_and_what_is_filled() -> None:
    text = (DOCS / "arguments.md").read_text()

    assert "but `concurrency`, `on_item_error`, `max_failures` and `early_stop`" in text
    assert set(OF_A_MAP) == {"concurrency", "on_item_error", "max_failures", "early_stop"}
    assert [name for name in FILLED if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("page", "heading", "kind"),
    [("arguments.md", "## Resources", Resources), ("environments.md", "## `Environment`", Environment)],
)
def test_a_table_of_fields_is_the_classs(page: str, heading: str, kind: type) -> None:
    rows = table_after(DOCS / page, heading)

    assert {code(name): ast.literal_eval(code(default)) for name, default, _ in rows} == defaults_of(kind)


@pytest.mark.parametrize(
    ("document", "heading"), [("docs/connection.md", "## Fields"), ("README.md", "## The connection")]
)
def test_the_fields_of_the_connection_are_those_it_has(document: str, heading: str) -> None:
    shown = {name.strip(" `") for row in table_after(ROOT / document, heading) for name in row[0].split(",")}
    shown.discard("password")

    if document == "README.md":  # the commonest ones
        assert shown <= set(CONNECTION_FIELDS)
    else:
        assert shown == set(CONNECTION_FIELDS)


def test_the_connections_defaults_are_the_codes() -> None:
    defaults = {
        name.strip("`"): default for name, default, _ in table_after(DOCS / "connection.md", "## Fields")
    }

    assert float(defaults["idle_timeout"]) == Settings.idle_timeout
    assert float(defaults["orphan_after"]) == Settings.orphan_after


def test_the_options_of_the_site_are_those_it_has() -> None:
    rows = table_after(DOCS / "connection.md", "## Options of the site")

    assert {code(name) for name, *_ in rows} == set(PROVIDER_INFO["config"]["spotbatch"]["options"])


def test_the_causes_are_those_an_item_may_have() -> None:
    rows = table_after(DOCS / "failures.md", "## Causes")

    assert [code(cause) for cause, *_ in rows] == [cause for cause in CAUSES if cause != OK]


def test_the_messages_of_the_troubleshooting_are_the_codes() -> None:
    def plain(text: str) -> str:
        return re.sub(r"[…\s]+", " ", text).strip()

    known = {plain(message) for message in messages(ROOT / "airflow_provider_spotbatch")}
    unknown = [
        block.text
        for block in snippets(DOCS / "troubleshooting.md")
        if not any(plain(block.text) in message for message in known)
    ]

    assert unknown == []


SHARED = {"--conn-id", "--store", "--json", "--generation", "--run"}
"""Options that several commands have: their page tells them once."""


def options_of(command: argparse.ArgumentParser) -> set[str]:
    return {name for action in command._actions for name in action.option_strings} - {"-h", "--help"}


def test_every_command_and_option_of_the_command_line_is_on_its_page_and_no_other() -> None:
    page = DOCS / "command-line.md"
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    headings = re.findall(r"(?m)^## `spotbatch (\w+)( JOB)?`$", page.read_text())
    assert {name for name, _ in headings} == set(commands.choices)

    for name, job in headings:
        command = commands.choices[name]
        heading = f"## `spotbatch {name}{job}`"
        rows = table_after(page, heading) if options_of(command) - SHARED else []
        shown = {code(option).split()[0] for option, _ in rows}
        assert shown == options_of(command) - SHARED, name
        assert bool(job) == any(action.dest == "job" for action in command._actions), name
    assert all(f"`{option}" in page.read_text() for option in SHARED)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "read"), str(DOCS), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )

    assert (built.returncode, built.stdout) == (0, "")
