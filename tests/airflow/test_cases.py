"""What users get wrong in a DAG is told before anything is launched; rare sources of items work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.ran import RunDag


def test_a_mapped_upstream_is_a_source_of_items(run_dag: RunDag) -> None:
    assert run_dag("cases_of_a_mapped_upstream").report() == [1, 4, 9]


def test_braces_within_items_are_never_rendered(run_dag: RunDag) -> None:
    ran = run_dag("cases_braces_in_nested_items")
    assert ran.report() == [{"text": "{{ ds }}", "more": ["{% raise %}"]}]


@pytest.mark.parametrize(
    ("dag_id", "message"),
    [
        ("cases_number_for_items", "'item' is 5. One job over all items is noted(items)"),
        ("cases_text_for_items_of_the_operator", "items must be a list or another iterable, not"),
        (
            "cases_item_that_cannot_be_sent",
            "item 1, of type dict, cannot be sent to a machine: items[1]['deep'][0]",
        ),
        ("cases_function_that_cannot_be_sent", "locked cannot be sent to a machine: function locked"),
        ("cases_missing_module", "needs imports 'not_installed_anywhere'"),
        ("cases_too_many_cpus", "one item asks for item_resources.cpus=4096"),
        ("cases_negative_number_from_a_template", "concurrency must be a whole number of at least 1, not -5"),
        ("cases_template_from_an_xcom", "concurrency must be a whole number, not the text '{{ 5 }}'"),
    ],
)
def test_bad_input_is_told_before_anything_is_launched(run_dag: RunDag, dag_id: str, message: str) -> None:
    ran = run_dag(dag_id)
    assert "failed" in ran.states.values()
    assert message in ran.log
    assert ran.calls() == []
    assert "starting" not in ran.log, "a machine was asked for"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"path": "{file}/below"},
            "the local backend keeps everything in {file}/below, which cannot be made",
        ),
        ({"path": "/proc/spotbatch"}, "which cannot be made: No such file or directory"),
        (
            {"path": "{folder}", "store": "file://{file}/store"},
            "the store file://{file}/store cannot be made",
        ),
        ({"path": "{folder}", "store": "file:///proc/store"}, "the store file:///proc/store cannot be made"),
    ],
)
def test_a_place_that_cannot_be_written_is_told(
    run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], message: str
) -> None:
    file = tmp_path / "file"
    file.write_text("a file where a folder must be")
    filled = {
        name: text.format(file=file, folder=tmp_path / "root") if "{" in text else text
        for name, text in extra.items()
    }
    connection = {"conn_type": "spotbatch", "extra": filled}
    monkeypatch.setenv("AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps(connection))
    ran = run_dag("of_a_list")
    assert ran.states["tenfold"] == "failed"
    assert message.format(file=file) in ran.log
    assert "starting" not in ran.log
