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
from airflow_provider_spotbatch.backends.aws import CONCURRENCY
from airflow_provider_spotbatch.backends.aws.images import default_images
from airflow_provider_spotbatch.backends.aws.offers import MOST_DISK_GB
from airflow_provider_spotbatch.backends.aws.prices import extras
from airflow_provider_spotbatch.backends.aws.setup_plan import EXPIRE_DAYS, MAX_RUNTIME_DAYS, Layout
from airflow_provider_spotbatch.backends.machine_sizing import plan_machines
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.cli import build_parser
from airflow_provider_spotbatch.control.estimate import estimate, snapshot_of
from airflow_provider_spotbatch.decorators import OF_A_MAP
from airflow_provider_spotbatch.job.outcome import CAUSES, OK
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, Policy
from airflow_provider_spotbatch.provider_info import CONNECTION_FIELDS, PROVIDER_INFO
from airflow_provider_spotbatch.signature import FILLED
from benchmarks.recorded_prices import recorded
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


def test_the_worked_cost_of_a_job_is_what_the_recorded_prices_give() -> None:
    types, prices = recorded()
    policy = Policy()
    beside = extras([{}], public_address=True)
    plans = plan_machines(
        types,
        prices,
        policy.resources,
        concurrency=CONCURRENCY,
        purchases=(SPOT,),
        architectures=("x86_64",),
        most_disk_gb=MOST_DISK_GB,
        extras=beside,
    )
    offers = tuple(plan.offer() for plan in plans)
    expected = estimate(snapshot_of(offers, policy, CONCURRENCY, 10_000), 30)
    [(offer, machines)] = expected.machines
    [disk_gb] = [plan.disk_gb for plan in plans if plan.slots == offer.slots]
    assert expected.usd is not None
    assert expected.seconds is not None
    on_demand = beside.usd_per_hour(disk_gb) + min(
        price.usd_per_hour for price in prices if price.purchase == ON_DEMAND and price.type in offer.types
    )

    told = (
        f"{expected.items:,} items of 30 s each (1 CPU, 2 GB), {CONCURRENCY} at once, take "
        f"{expected.seconds / 60:.0f} min on {machines} machines of {offer.slots} slots, and cost about "
        f"**${expected.usd:.2f}**"
    )
    readme = (ROOT / "README.md").read_text()
    assert told in readme
    assert f"would be ${on_demand * machines * expected.seconds / 3600:.2f}" in readme


def test_the_set_up_is_told_by_the_names_that_it_gives() -> None:
    layout = Layout(account="ACCOUNT", region="REGION", vpc="vpc-1")
    rows = table_after(DOCS / "aws.md", "### What set-up makes")
    text = "\n".join(" ".join(row) for row in rows)

    for name in (layout.own_bucket, layout.role, layout.group, layout.airflow_policy_arn.split("/")[1]):
        assert f"`{name}`" in text
    assert f"after {EXPIRE_DAYS} days" in text
    assert f"longer than {MAX_RUNTIME_DAYS}" in text


def test_the_default_images_are_those_that_are_told() -> None:
    told = re.findall(r"(Ubuntu|Debian) ([\d.]+) \((3\.\d+)\)", (DOCS / "aws.md").read_text())

    assert {python for *_, python in told} == {"3.10", "3.11", "3.12", "3.13"}
    for maker, release, python in told:
        assert all(f"/{maker.lower()}/" in name and f"/{release}/" in name for name in default_images(python))


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
