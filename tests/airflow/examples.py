"""What each example DAG must give, wherever its items run."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.airflow.ran import Ran

FOLDER = Path(__file__).parents[2] / "example_dags"


@dataclass(frozen=True)
class Example:
    """``check`` takes the run and the folder that was its parameter of that name; ``params``: others, for
    small inputs; ``reads``: its machines read from that folder, which is a URI then."""

    check: Callable[[Ran, str], None]
    params: dict[str, Any] = field(default_factory=dict)
    reads: bool = False


def names() -> list[str]:
    """Of all example DAGs."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def of_its_docstring(example: str, pattern: str) -> Any:
    """The JSON that an example's docstring shows."""
    shown = re.search(pattern, (FOLDER / example).read_text(), re.DOTALL)
    assert shown is not None
    return json.loads(shown[1])


def returned(ran: Ran, task_id: str) -> Any:
    """What a task of the run returned."""
    (ti,) = (ti for ti in ran.run.get_task_instances() if ti.task_id == task_id)
    return ti.xcom_pull(task_ids=task_id)


def assert_succeeded(ran: Ran) -> None:
    assert set(ran.states.values()) == {"success"}, ran.states


def read(uri: str) -> bytes:
    import obstore
    from obstore.store import from_url

    parts = urlsplit(uri)
    bucket = from_url(f"{parts.scheme}://{parts.netloc}/")
    return bytes(obstore.get(bucket, parts.path.lstrip("/")).bytes())


def stdlib_search(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    found = re.search(r"(\d+) matches in \d+ of (\d+) files", ran.log)
    assert found is not None
    assert int(found[1]) > 10
    assert int(found[2]) > 400
    missing = re.search(r"(\d+) of them are not in the machines' own Python", ran.log)
    assert int(missing[1] if missing else 0) < 20


def archive_chunks(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    assert returned(ran, "join") == {"articles": 150, "words": 150 * 100}
    text = gzip.decompress(read(f"{folder}/articles.xml.gz")).decode()
    numbers = [int(number) for number in re.findall(r"<page>word (\d+)", text)]
    assert numbers == [number for number in range(200) if number % 4]
    assert text.count("</page>\n") == 150


def regex_scan(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    troubles = re.compile("timeout after 30 s|OOM: killed|disk sdb failed|retry 3 of 3")
    logs = [read(f"{folder}/app-{number:03}.log").decode() for number in range(24)]
    lines = [line for log in logs for line in log.splitlines()]
    assert returned(ran, "report") == {
        "files": 24,
        "lines": len(lines),
        "matches": sum(1 for line in lines if troubles.search(line)),
    }
    assert returned(ran, "choose") in ("one_by_one", "alternation", "text_first")


def render_frames(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    kind, width, height, depth, *colours = Path(returned(ran, "contact_sheet")).read_text().split()
    assert (kind, width, height, depth) == ("P3", str(4 * 48), str(2 * 32), "255")
    assert len(colours) == 3 * 4 * 48 * 2 * 32
    rows = [colours[start : start + 3 * 48] for start in range(0, len(colours), 3 * 48)]
    upper, lower = rows[: 4 * 32], rows[4 * 32 :]
    frames = [half[column::4] for half in (upper, lower) for column in range(4)]
    assert all(one != other for one, other in pairwise(frames[:7])), "six frames, then black"
    assert frames[6] == frames[7] == [["0"] * 3 * 48] * 32


def failures_and_policies(ran: Ran, folder: str) -> None:
    states = ran.states
    assert states.pop("check") == "failed"
    assert set(states.values()) == {"success"}
    assert returned(ran, "sort_out") == {"usd": 13, "broken": ['{"id": 3, "usd":', ""]}
    assert returned(ran, "report") == {"pages": 9, "causes": {"timeout": 1}, "checked": False}


def checkpoints(ran: Ran, folder: str) -> None:
    """Of a run whose first machine was interrupted."""
    assert_succeeded(ran)
    estimates = returned(ran, "report")
    assert [one["seed"] for one in estimates] == [1, 2]
    for one in estimates:
        assert one["taken_over"] + one["done_here"] == 60
        assert math.isclose(one["pi"], math.pi, abs_tol=0.01)
    assert re.search(r"was interrupted with \d chunks? in hand", ran.log)
    assert max(one["taken_over"] for one in estimates) >= 10, "the work began again"


def map_reduce(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    assert {f"longest_word[{index}]" for index in range(4)} <= set(ran.states)
    assert returned(ran, "merge")["the"] == 6
    assert "longest words: quick, machine, finished, machine" in ran.log


def chained_jobs(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    report = returned(ran, "report")
    assert report["letters"] == 9
    assert report["vat"] == {"NO": 0.25, "SE": 0.25}
    assert report["good"]
    assert report["good"] == sorted(report["good"])


def hourly_sweep(ran: Ran, folder: str) -> None:
    assert_succeeded(ran)
    assert returned(ran, "sweep")["machines"] == 0


EXAMPLES = {
    "archive_chunks": Example(archive_chunks, reads=True),
    "chained_jobs": Example(chained_jobs, reads=True),
    "checkpoints": Example(checkpoints, {"steps": 60}),
    "failures_and_policies": Example(failures_and_policies),
    "hourly_sweep": Example(hourly_sweep),
    "map_reduce": Example(map_reduce),
    "regex_scan": Example(regex_scan, reads=True),
    "render_frames": Example(render_frames, {"frames": 6, "width": 48}),
    "stdlib_search": Example(stdlib_search),
}
