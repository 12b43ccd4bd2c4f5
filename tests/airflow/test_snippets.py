"""Every block of code in the documents is run, page by page.

The Python of a page is one DAG file: it is loaded as Airflow loads it, and each of its DAGs runs, under the
connections that the page exports; a DAG that the page's own shell commands run is run by these. Then its
shell commands run; JSON is read as the connection it stands for, and configuration as Airflow's.
A block below ``<!-- not run: reason -->`` is left out, and shows up as skipped.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import conf

from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.provider_info import PROVIDER_INFO
from tests.support.documents import DOCUMENTS, Snippet, of_language, snippets

SHELL_SECONDS = 90
"""The shell commands of one block; an ``airflow`` command takes about 10 s."""


def with_code(*languages: str) -> list[Any]:
    return [
        pytest.param(document, id=document.name)
        for document in DOCUMENTS
        if any(of_language(document, language) for language in languages)
    ]


@pytest.mark.parametrize("document", with_code("python", "sh"))
def test_the_code_of_a_page_runs(
    document: Path,
    tmp_path: Path,
    add_dags: Callable[[Path], Any],
    days: Iterator[datetime],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    python, shell = of_language(document, "python"), of_language(document, "sh")
    for name, value in exported(shell).items():
        monkeypatch.setenv(name, value)
    if python:
        (folder / f"{document.stem.lower()}_page.py").write_text(as_one_file(python))
        for dag in add_dags(folder).dags.values():
            if not any(f"airflow dags test {dag.dag_id}" in block.text for block in shell):
                day = next(days)
                run = dag.test(run_after=day, logical_date=day)
                assert str(run.state) == "success", f"{dag.dag_id} of {document.name}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    for block in shell:
        run_commands(block)


def as_one_file(blocks: list[Snippet]) -> str:
    """The blocks, each on the lines that it has in its document: so errors name them."""
    text = ""
    for block in blocks:
        text += "\n" * (block.line - text.count("\n")) + block.text
    return text


def exported(blocks: list[Snippet]) -> dict[str, str]:
    """Connections and options that blocks of nothing but ``export`` set: the page's DAGs run under them."""
    script = "".join(block.text for block in blocks if block.text.startswith("export ")) + "env -0"
    shown = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    variables = dict(line.partition("=")[::2] for line in shown.split("\0"))
    return {name: value for name, value in variables.items() if name.startswith("AIRFLOW_CONN_")}


def run_commands(block: Snippet) -> None:
    """Lines that are nothing but ``spotbatch`` run in this process, which has Airflow loaded; all else in
    a shell. ``# exit code 1`` at the end of a line is expected."""
    lines = block.text.splitlines()
    if all(re.fullmatch(r"spotbatch [^|&;<>$`\\]+", line) for line in lines):
        for line in lines:
            expected = re.search(r"# exit code (\d)", line)
            code = main(shlex.split(line, comments=True)[1:])
            assert code == (int(expected[1]) if expected else 0), f"{block.place}: {line}"
        return
    ran = subprocess.run(
        ["bash", "-exuo", "pipefail", "-c", block.text],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SHELL_SECONDS,
    )
    print(ran.stdout)  # shown if the test fails
    assert ran.returncode == 0, f"{block.place}: the last command above failed with {ran.returncode}"


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=block.place) for page in DOCUMENTS for block in of_language(page, "json")],
)
def test_json_is_a_connection_that_can_be_read(block: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_connection(json.loads(block.text), monkeypatch)

    assert settings.backend in ("local", "aws")


def read_connection(shown: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A whole connection, its extra alone, or (a list) its ``rehearse``."""
    if isinstance(shown, list):
        shown = {"rehearse": shown}
    connection = shown if "conn_type" in shown else {"conn_type": "spotbatch", "extra": shown}
    monkeypatch.setenv("AIRFLOW_CONN_SHOWN", json.dumps(connection))
    return SpotBatchHook("shown").get_settings()


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=block.place) for page in DOCUMENTS for block in of_language(page, "ini")],
)
def test_configuration_has_options_that_exist(block: Snippet) -> None:
    shown = configparser.ConfigParser()
    shown.read_string(block.text)

    ours = PROVIDER_INFO["config"]["spotbatch"]["options"]
    assert shown.sections()
    for section in shown.sections():
        for option in shown[section]:
            assert option in ours if section == "spotbatch" else conf.has_option(section, option)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.place)
        for page in DOCUMENTS
        for block in snippets(page)
        if block.not_run is not None
    ],
)
def test_not_run(block: Snippet) -> None:
    pytest.skip(f"{block.place}: {block.not_run}")
