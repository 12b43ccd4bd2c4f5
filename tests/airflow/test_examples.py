"""The example DAGs, each run as it stands, with small inputs."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.ran import Ran, RunDag

DAGS = Path(__file__).parent / "dags"
EXAMPLES = Path(__file__).parents[2] / "example_dags"


def returned(ran: Ran, task_id: str) -> Any:
    """What a task of the run returned."""
    (ti,) = (ti for ti in ran.run.get_task_instances() if ti.task_id == task_id)
    return ti.xcom_pull(task_ids=task_id)


def of_its_docstring(example: str, pattern: str) -> Any:
    """The JSON that an example's docstring shows."""
    shown = re.search(pattern, (EXAMPLES / example).read_text(), re.DOTALL)
    assert shown is not None
    return json.loads(shown[1])


def assert_succeeded(ran: Ran) -> None:
    assert set(ran.states.values()) == {"success"}, ran.states


def test_every_example_is_among_the_dags_of_the_tests() -> None:
    missing = {path.name for path in EXAMPLES.glob("*.py")} - {path.name for path in DAGS.iterdir()}
    assert missing == set()


def test_stdlib_search(run_dag: RunDag) -> None:
    ran = run_dag("stdlib_search")
    assert_succeeded(ran)
    found = re.search(r"(\d+) matches in \d+ of (\d+) files", ran.log)
    assert found is not None
    assert int(found[1]) > 10
    assert int(found[2]) > 500


def test_archive_chunks(run_dag: RunDag, tmp_path: Path) -> None:
    ran = run_dag("archive_chunks", folder=f"file://{tmp_path}")
    assert_succeeded(ran)
    assert returned(ran, "join") == {"articles": 150, "words": 150 * 100}
    text = gzip.decompress((tmp_path / "articles.xml.gz").read_bytes()).decode()
    numbers = [int(number) for number in re.findall(r"<page>word (\d+)", text)]
    assert numbers == [number for number in range(200) if number % 4]
    assert text.count("</page>\n") == 150


def test_regex_scan(run_dag: RunDag, tmp_path: Path) -> None:
    ran = run_dag("regex_scan")
    assert_succeeded(ran)
    troubles = re.compile("timeout after 30 s|OOM: killed|disk sdb failed|retry 3 of 3")
    lines = [line for path in tmp_path.glob("*.log") for line in path.read_text().splitlines()]
    assert returned(ran, "report") == {
        "files": 24,
        "lines": len(lines),
        "matches": sum(1 for line in lines if troubles.search(line)),
    }
    assert returned(ran, "choose") in ("one_by_one", "alternation", "text_first")


def test_render_frames(run_dag: RunDag, tmp_path: Path) -> None:
    ran = run_dag("render_frames", frames=6)
    assert_succeeded(ran)
    frames = sorted(tmp_path.glob("frame-*.ppm"))
    assert [path.name for path in frames] == [f"frame-{number:04}.ppm" for number in range(6)]
    assert len({path.read_text() for path in frames}) == 6
    kind, width, height, depth, *colours = Path(returned(ran, "contact_sheet")).read_text().split()
    assert (kind, width, height, depth) == ("P3", str(4 * 96), str(2 * 64), "255")
    assert len(colours) == 3 * 4 * 96 * 2 * 64
    first_row_of_second = frames[1].read_text().split()[4 : 4 + 3 * 96]
    assert colours[3 * 96 : 6 * 96] == first_row_of_second


def test_failures_and_policies(run_dag: RunDag) -> None:
    ran = run_dag("failures_and_policies")
    states = ran.states
    assert states.pop("check") == "failed"
    assert set(states.values()) == {"success"}
    assert returned(ran, "sort_out") == {"usd": 13, "broken": ['{"id": 3, "usd":', ""]}
    assert returned(ran, "report") == {"pages": 9, "causes": {"timeout": 1}, "checked": False}


def test_checkpoints_of_interrupted_items_are_gone_on_from(
    run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = of_its_docstring("checkpoints.py", r"AIRFLOW_CONN_SPOTBATCH_DEFAULT='(.*?)'")
    connection["extra"]["path"] = str(tmp_path / "root")
    monkeypatch.setenv("AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps(connection))
    ran = run_dag("checkpoints", steps=60)
    assert_succeeded(ran)
    estimates = returned(ran, "report")
    assert [one["seed"] for one in estimates] == [1, 2]
    for one in estimates:
        assert one["taken_over"] + one["done_here"] == 60
        assert math.isclose(one["pi"], math.pi, abs_tol=0.01)
    assert "was interrupted with 1 chunk in hand" in ran.log
    assert max(one["taken_over"] for one in estimates) >= 10, "the work began again"


def test_map_reduce(run_dag: RunDag) -> None:
    ran = run_dag("map_reduce")
    assert_succeeded(ran)
    assert {f"longest_word[{index}]" for index in range(4)} <= set(ran.states)
    assert returned(ran, "merge")["the"] == 6
    assert "longest words: quick, machine, finished, machine" in ran.log


def test_chained_jobs(run_dag: RunDag) -> None:
    ran = run_dag("chained_jobs")
    assert_succeeded(ran)
    report = returned(ran, "report")
    assert report["letters"] == 9
    assert report["vat"] == {"NO": 0.25, "SE": 0.25}
    assert report["good"]
    assert report["good"] == sorted(report["good"])
