"""DAGs that the tests run: what users get wrong, and sources of items that are rare."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_spotbatch import Resources, SpotMapOperator, spot_map

FOLDER = "{{ params.folder }}"


def dag(dag_id: str) -> DAG:
    return DAG(
        dag_id,
        schedule=None,
        params={"folder": "/nowhere"},
        default_args={"retry_delay": timedelta(0)},
    )


@spot_map
def noted(item: Any, folder: str = "") -> Any:
    if folder:
        with open(f"{folder}/calls", "a") as file:
            file.write(f"{item}\n")
    return item


@task
def report(results: Any, folder: str) -> None:
    Path(folder, "report.json").write_text(json.dumps(list(results)))


with dag("cases_of_a_mapped_upstream"):

    @task
    def square(x: int) -> int:
        return x * x

    report(noted(square.expand(x=[1, 2, 3]), folder=FOLDER), FOLDER)

with dag("cases_braces_in_nested_items"):

    @task
    def records() -> list[dict[str, Any]]:
        return [{"text": "{{ ds }}", "more": ["{% raise %}"]}]

    report(noted(noted.override(task_id="first")(records()), folder=FOLDER), FOLDER)

with dag("cases_number_for_items"):

    @task
    def number() -> int:
        return 5

    noted(number(), folder=FOLDER)

with dag("cases_text_for_items_of_the_operator"):

    @task
    def text() -> str:
        return "{{ abc }}"

    SpotMapOperator(
        task_id="work", python_callable=noted.function, items=text(), op_kwargs={"folder": FOLDER}
    )

with dag("cases_item_that_cannot_be_sent"):

    def locks() -> Any:
        yield 1
        yield {"deep": [threading.Lock()]}

    SpotMapOperator(task_id="work", python_callable=noted.function, items=locks, op_kwargs={"folder": FOLDER})

with dag("cases_function_that_cannot_be_sent"):
    LOCK = threading.Lock()

    @spot_map
    def locked(item: int, folder: str) -> int:
        with LOCK:
            return item

    locked([1], folder=FOLDER)

with dag("cases_missing_module"):

    @spot_map
    def needs(item: int, folder: str) -> int:
        import not_installed_anywhere  # type: ignore[import-not-found]

        return int(not_installed_anywhere.work(item))

    needs([1], folder=FOLDER)

with dag("cases_too_many_cpus"):
    noted.override(item_resources=Resources(cpus=4096))([1], folder=FOLDER)

with dag("cases_negative_number_from_a_template"):
    noted.override(concurrency="{{ -5 }}")([1], folder=FOLDER)

with dag("cases_template_from_an_xcom"):

    @task
    def width() -> str:
        return "{{ 5 }}"

    noted.override(concurrency=width())([1], folder=FOLDER)
