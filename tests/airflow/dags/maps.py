"""DAGs that the tests run: everything a mapped function and its items may be."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_spotbatch import Items, Resources, SpotMapOperator, spot, spot_map

FOLDER = "{{ params.folder }}"
FACTOR = 10


def dag(dag_id: str) -> DAG:
    return DAG(
        dag_id,
        schedule=None,
        params={"folder": "/nowhere", "length": 3, "broken": False},
        default_args={"retry_delay": timedelta(0)},
    )


def called(folder: str, item: Any) -> None:
    """Note, from a machine, that the function ran on an item."""
    with open(os.path.join(folder, "calls"), "a") as file:
        file.write(f"{item}\n")


@task
def report(results: Any, folder: str, name: str = "report") -> None:
    Path(folder, f"{name}.json").write_text(json.dumps(list(results)))


@dataclass
class Pixel:
    x: int

    def scaled(self) -> Pixel:
        return Pixel(self.x * FACTOR)


def helper(item: int) -> int:
    return item * FACTOR


@spot_map
def tenfold(item: int, folder: str = "") -> int:
    if folder:
        called(folder, item)
    return helper(item)


with dag("of_a_list"):
    report(tenfold([1, 2, 3]), FOLDER)

with dag("of_an_xcom"):

    @task
    def numbers(params: dict[str, Any]) -> list[int]:
        return list(range(params["length"]))

    report(tenfold(numbers()), FOLDER)

with dag("of_a_generator"):

    def squares() -> Iterator[int]:
        yield from (i * i for i in range(5))

    mapped = SpotMapOperator(task_id="squares", python_callable=helper, items=squares)
    report(mapped.output, FOLDER)

with dag("of_lines"):
    listed = SpotMapOperator(
        task_id="listed", python_callable=str.upper, items=Items.lines("{{ params.folder }}/lines.txt")
    )
    report(listed.output, FOLDER)

with dag("of_a_dotted_path"):
    dotted = SpotMapOperator(task_id="dotted", python_callable="os.path.basename", items=["/a/b", "/c"])
    report(dotted.output, FOLDER)

with dag("of_a_command"):
    command = SpotMapOperator(
        task_id="command",
        command=["sh", "-c", 'echo working; echo \'{"item": "{item}"}\''],
        items=["a", "b"],
    )
    report(command.output, FOLDER)

with dag("of_nothing"):
    report(tenfold([], folder=FOLDER), FOLDER)

with dag("of_lists"):

    @task
    def add(totals: Any, folder: str) -> None:
        Path(folder, "report.json").write_text(json.dumps([list(one) for one in totals]))

    @task
    def lists() -> list[list[int]]:
        return [[1, 2], [3]]

    add(tenfold.expand(item=lists()), FOLDER)

with dag("of_single_items"):
    tenfold.partial(folder=FOLDER).expand(item=[1, 2])

with dag("mapped_over"):

    @task
    def plus_one(value: int) -> int:
        return value + 1

    report(plus_one.expand(value=tenfold([1, 2, 3], folder=FOLDER)), FOLDER)

with dag("mapped_over_too_long"):

    @task
    def ignore(value: int) -> None: ...

    ignore.expand(value=tenfold(list(range(1025)), folder=FOLDER))

with dag("one_after_another"):
    report(tenfold.override(task_id="hundredfold")(tenfold([1, 2, 3])), FOLDER)

with dag("classes"):

    @spot_map
    def scale(pixel: Pixel) -> Pixel:
        assert isinstance(pixel, Pixel)
        return pixel.scaled()

    @task
    def look(results: Any, folder: str) -> None:
        held = [[isinstance(one, Pixel), one.x] for one in results]
        Path(folder, "report.json").write_text(json.dumps(held))

    look(scale([Pixel(1), Pixel(2)]), FOLDER)

with dag("values"):

    @spot_map
    def same(item: Any) -> Any:
        return item

    @task
    def compare(results: Any, folder: str) -> None:
        Path(folder, "report.json").write_text(json.dumps([repr(one) for one in results]))

    compare(same([(1, 2), {3}, {4: 5}, None, 1.5, datetime(2026, 1, 2), b"bytes"]), FOLDER)


@spot_map(item_retries=0, on_item_error="collect", early_stop=None)
def odd_fails(item: int) -> int:
    if item % 2:
        raise ValueError(f"{item} is odd")
    return item


with dag("collect"):

    @task
    def gather(results: Any, folder: str) -> None:
        values = [value if isinstance(value, int) else type(value).__name__ for value in results]
        failures = [[f.index, f.item, f.cause, f.message, f.attempts] for f in results.failures]
        facts = {"values": values, "failures": failures, "ok": results.ok, "failed": results.failed}
        Path(folder, "report.json").write_text(json.dumps(facts))

    gather(odd_fails([0, 1, 2, 3]), FOLDER)

with dag("fail"):
    odd_fails.override(task_id="work", on_item_error="fail")([0, 1, 2, 3])

with dag("fail_within_limit"):
    report(
        odd_fails.override(task_id="work", on_item_error="fail", max_failures=2)([0, 2, 4]),
        FOLDER,
    )

with dag("stop"):

    @spot_map(item_retries=0, on_item_error="stop", concurrency=1, early_stop=None)
    def stop_at_five(item: int, folder: str) -> int:
        called(folder, item)
        if item == 5:
            raise ValueError("five")
        time.sleep(0.02)
        return item

    stop_at_five(list(range(2000)), folder=FOLDER)

with dag("early_stop"):

    @spot_map(item_retries=0, early_stop=3, concurrency=1)
    def broken(item: int, folder: str) -> int:
        called(folder, item)
        raise RuntimeError("the code is broken")

    broken(list(range(500)), folder=FOLDER)

with dag("retry"):

    @spot_map(item_retries=0, retries=1, early_stop=None)
    def fails_once(item: int, folder: str) -> int:
        called(folder, item)
        mark = Path(folder, "failed")
        if item == 2 and not mark.exists():
            mark.touch()
            raise ValueError("the first time")
        return item

    report(fails_once([0, 1, 2, 3], folder=FOLDER), FOLDER)

with dag("item_retries"):

    @spot_map(item_retries=1)
    def fails_first(item: int, folder: str) -> int:
        called(folder, item)
        mark = Path(folder, f"failed-{item}")
        if not mark.exists():
            mark.touch()
            raise ValueError("the first time")
        return item

    report(fails_first([0, 1], folder=FOLDER), FOLDER)

with dag("changed"):

    @spot_map(item_retries=0, retries=0, early_stop=None)
    def may_break(item: int, folder: str, broken: Any) -> int:
        called(folder, item)
        if item == 1 and broken == "True":
            raise ValueError("broken")
        return item

    report(may_break([0, 1], folder=FOLDER, broken="{{ params.broken }}"), FOLDER)

with dag("too_much_memory"):

    @spot_map(
        item_retries=0,
        item_resources=Resources(cpus=1, memory_gb=0.25),
        on_item_error="collect",
        concurrency=1,
    )
    def hungry(item: int) -> int:
        taken = []
        for _ in range(item):
            taken.append(bytearray(os.urandom(1024) * 1024))
            time.sleep(0.001)
        time.sleep(2 if item > 256 else 0)
        return item

    gather(hungry([1, 600]), FOLDER)

with dag("too_much_time"):

    @spot_map(item_retries=0, item_timeout=2, on_item_error="collect")
    def slow(item: float) -> int:
        time.sleep(item)
        return int(item)

    gather(slow([0, 600]), FOLDER)

with dag("one_call"):

    @spot
    def train(data: str, *, epochs: int, ds: str) -> str:
        return f"{data} {epochs} {ds}"

    @task
    def write(value: str, folder: str) -> None:
        Path(folder, "report.json").write_text(json.dumps(value))

    write(train("images", epochs=3), FOLDER)

with dag("one_call_fails"):

    @spot(item_retries=0)
    def explode(text: str) -> None:
        raise ValueError(f"cannot read {text}")

    explode("the disk")

with dag("not_deferred"):
    report(tenfold.override(deferrable=False)([1, 2, 3]), FOLDER)

with dag("context_values"):

    @spot_map
    def dated(
        item: int, ds: str, run_id: str, logical_date: Any, params: Any, data_interval_start: Any = None
    ) -> Any:
        return [item, ds, run_id, logical_date.isoformat(), params["length"], type(logical_date).__module__]

    report(dated([1]), FOLDER)

with dag("templated"):
    report(
        tenfold.override(task_id="t", concurrency="{{ params.length }}", max_runtime="{{ 600 }}")(
            [1], folder="{{ params.folder }}"
        ),
        FOLDER,
    )
    report.override(task_id="second")(
        SpotMapOperator(task_id="words", python_callable=str.upper, items=["day {{ ds }}", "plain"]).output,
        FOLDER,
        name="words",
    )

with dag("braces_from_xcom"):

    @task
    def texts() -> list[str]:
        return ["{{ ds }}", "{% raise %}"]

    @task
    def suffix() -> dict[str, str]:
        return {"end": "{{ run_id }}"}

    @spot_map
    def join(text: str, end: dict[str, str]) -> str:
        return text + end["end"]

    report(join(texts(), end=suffix()), FOLDER)

with dag("missing_connection"):
    tenfold.override(conn_id="nowhere")([1], folder=FOLDER)

with dag("text_for_items"):

    @task
    def text() -> str:
        return "abc"

    tenfold(text(), folder=FOLDER)
