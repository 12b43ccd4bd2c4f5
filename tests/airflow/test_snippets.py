"""Every block of code in the documents is run, page by page.

The Python of a page is one DAG file: it is loaded as Airflow loads it, and each of its DAGs runs (one that
the page's own shell commands run, by these). Its shell commands run in one shell, JSON is read as the
connection it stands for, and configuration as Airflow's. A block below ``<!-- not run: reason -->`` is left
out, and shows up as skipped.
"""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.provider_info import PROVIDER_INFO
from tests.support.documents import DOCUMENTS, Snippet, of_language, snippets

SHELL_SECONDS = 90
"""The shell commands of one page; an ``airflow`` command takes about 5 s."""


def with_code(*languages: str) -> list[Any]:
    return [
        pytest.param(document, id=document.name)
        for document in DOCUMENTS
        if any(of_language(document, language) for language in languages)
    ]


@pytest.mark.parametrize("document", with_code("python", "sh"))
def test_the_code_of_a_page_runs(
    document: Path, tmp_path: Path, add_dags: Callable[[Path], Any], days: Iterator[datetime]
) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    python, shell = of_language(document, "python"), of_language(document, "sh")
    if python:
        (folder / f"{document.stem.lower()}_page.py").write_text(as_one_file(python))
        for dag in add_dags(folder).dags.values():
            if not any(f"airflow dags test {dag.dag_id}" in block.text for block in shell):
                day = next(days)
                run = dag.test(run_after=day, logical_date=day)
                assert str(run.state) == "success", f"{dag.dag_id} of {document.name}"
    if shell:
        run_shell(shell, tmp_path, folder)


def as_one_file(blocks: list[Snippet]) -> str:
    """The blocks, each on the lines that it has in its document: so errors name them."""
    text = ""
    for block in blocks:
        text += "\n" * (block.line - text.count("\n")) + block.text
    return text


def run_shell(blocks: list[Snippet], home: Path, dags: Path) -> None:
    script = "set -euo pipefail\n" + "".join(f": {block.place}\n{block.text}" for block in blocks)
    ran = subprocess.run(
        ["bash", "-xc", script],
        cwd=home,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "COLUMNS": "120",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SHELL_SECONDS,
    )
    print(ran.stdout)  # shown if the test fails
    assert ran.returncode == 0, f"the last command above failed with {ran.returncode}"


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=block.place) for page in DOCUMENTS for block in of_language(page, "json")],
)
def test_json_is_a_connection_that_can_be_read(block: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_connection(json.loads(block.text), monkeypatch)

    assert settings.backend == "local"


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

    assert shown.sections() == ["spotbatch"]
    assert set(shown["spotbatch"]) <= set(PROVIDER_INFO["config"]["spotbatch"]["options"])


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
