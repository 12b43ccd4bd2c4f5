"""DAGs run by ``dag.test()`` on the local backend, every part real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow.ran import Ran, RunDag

SUCCESS, FAILED = "success", "failed"


@pytest.mark.parametrize(
    ("dag_id", "expected"),
    [
        ("of_a_list", [10, 20, 30]),
        ("of_an_xcom", [0, 10, 20]),
        ("of_a_generator", [0, 10, 40, 90, 160]),
        ("of_a_dotted_path", ["b", "c"]),
        ("of_a_command", [{"item": "a"}, {"item": "b"}]),
        ("of_nothing", []),
        ("of_lists", [[10, 20], [30]]),
        ("mapped_over", [11, 21, 31]),
        ("one_after_another", [100, 200, 300]),
        ("classes", [[True, 10], [True, 20]]),
        ("fail_within_limit", [0, 2, 4]),
        ("not_deferred", [10, 20, 30]),
        ("braces_from_xcom", ["{{ ds }}{{ run_id }}", "{% raise %}{{ run_id }}"]),
    ],
)
def test_results_come_in_item_order(run_dag: RunDag, dag_id: str, expected: object) -> None:
    ran = run_dag(dag_id)
    assert set(ran.states.values()) == {SUCCESS}
    assert ran.report() == expected


def test_items_are_read_from_a_file(run_dag: RunDag, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    assert run_dag("of_lines").report() == ["ONE", "TWO"]


def test_values_come_back_as_they_went(run_dag: RunDag) -> None:
    assert run_dag("values").report() == [
        "(1, 2)",
        "{3}",
        "{4: 5}",
        "None",
        "1.5",
        "datetime.datetime(2026, 1, 2, 0, 0)",
        "b'bytes'",
    ]


def test_collect_gives_failures_as_values(run_dag: RunDag) -> None:
    ran = run_dag("collect")
    assert ran.report() == {
        "values": [0, "ItemFailure", 2, "ItemFailure"],
        "failures": [
            [1, 1, "error", "ValueError: 1 is odd", 1],
            [3, 3, "error", "ValueError: 3 is odd", 1],
        ],
        "ok": 2,
        "failed": 2,
    }


def test_fail_runs_every_item_and_tells_how_many_failed(run_dag: RunDag) -> None:
    ran = run_dag("fail")
    assert ran.states == {"work": FAILED}
    assert "2 of 4 items failed" in ran.log
    assert "is odd" in ran.log


def test_stop_leases_no_more_after_the_failure(run_dag: RunDag) -> None:
    ran = run_dag("stop")
    assert ran.states == {"stop_at_five": FAILED}
    assert 6 <= len(ran.calls()) < 2000


def test_early_stop_ends_a_job_whose_code_is_broken(run_dag: RunDag) -> None:
    ran = run_dag("early_stop")
    assert ran.states == {"broken": FAILED}
    assert len(ran.calls()) < 500
    assert "the code is broken" in ran.log


def test_an_item_is_retried(run_dag: RunDag) -> None:
    ran = run_dag("item_retries")
    assert ran.report() == [0, 1]
    assert ran.calls() == ["0", "0", "1", "1"]


def test_a_retry_runs_only_what_has_no_success(run_dag: RunDag) -> None:
    ran = run_dag("retry")
    assert ran.report() == [0, 1, 2, 3]
    assert ran.calls() == ["0", "1", "2", "2", "3"]


def test_the_same_try_come_back_runs_nothing(run_dag: RunDag) -> None:
    first = run_dag("mapped_over")
    assert len(first.calls()) == 3
    second = run_dag("mapped_over", again=first)
    assert second.report() == first.report()
    assert len(second.calls()) == 3


def test_clear_after_success_starts_afresh(run_dag: RunDag, clear: Callable[[Ran], Ran]) -> None:
    first = run_dag("mapped_over")
    second = clear(first)
    assert set(second.states.values()) == {SUCCESS}
    assert second.report() == [11, 21, 31]
    assert len(second.calls()) == 6


def test_changed_arguments_start_the_next_generation(run_dag: RunDag) -> None:
    first = run_dag("changed", broken=True)
    assert first.states["may_break"] == FAILED
    second = run_dag("changed", again=first, broken=False)
    assert second.report() == [0, 1]
    assert second.calls() == ["0", "0", "1", "1"]


def test_an_item_over_its_memory_fails_alone(run_dag: RunDag) -> None:
    report = run_dag("too_much_memory").report()
    assert report["values"] == [1, "ItemFailure"]
    assert report["failures"][0][:3] == [1, 600, "memory"]


def test_an_item_over_its_time_fails_alone(run_dag: RunDag) -> None:
    report = run_dag("too_much_time").report()
    assert report["values"] == [0, "ItemFailure"]
    assert report["failures"][0][:3] == [1, 600, "timeout"]


def test_one_call_gives_its_bare_result(run_dag: RunDag) -> None:
    ran = run_dag("one_call")
    assert ran.report() == f"images 3 {ran.run.logical_date:%Y-%m-%d}"


def test_one_call_that_fails_fails_the_task(run_dag: RunDag) -> None:
    ran = run_dag("one_call_fails")
    assert ran.states == {"explode": FAILED}
    assert "cannot read the disk" in ran.log


def test_context_values_are_filled_in(run_dag: RunDag) -> None:
    ran = run_dag("context_values", length=7)
    day = ran.run.logical_date
    assert ran.report() == [
        [1, f"{day:%Y-%m-%d}", ran.run.run_id, day.isoformat(), 7, "datetime"],
    ]


def test_templates_are_rendered(run_dag: RunDag) -> None:
    ran = run_dag("templated")
    assert ran.report() == [10]
    assert ran.report("words") == [f"DAY {ran.run.logical_date:%Y-%m-%d}", "PLAIN"]


@pytest.mark.parametrize(
    ("dag_id", "message"),
    [
        ("mapped_over_too_long", "at most 1024 values"),
        ("of_single_items", "One job over all items is tenfold(items)"),
        ("text_for_items", "One job over all items is tenfold(items)"),
        ("missing_connection", "'nowhere' does not exist"),
    ],
)
def test_bad_input_fails_before_anything_is_launched(run_dag: RunDag, dag_id: str, message: str) -> None:
    ran = run_dag(dag_id)
    assert FAILED in ran.states.values()
    assert message in ran.log
    assert ran.calls() == []
