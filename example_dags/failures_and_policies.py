"""What becomes of items that fail: four jobs with four policies, and a report that runs in any case.

* ``parse``, ``on_item_error="collect"``: a failed item is a value, an ``ItemFailure`` in its place;
* ``fetch``, retries and ``max_failures``: passing troubles are tried again, a tenth may be gone for good;
* ``thumbnail``, limits: an item over its time or its memory fails alone, and its neighbours go on. One that
  outgrew its memory is tried again with twice as much, if it has a retry left;
* ``check``, the default ``"fail"``: every item runs, then the task fails if one failed. A retry, or a clear
  once the data are mended, runs only the items that failed; all of them if the function was changed.

The report is a task with ``trigger_rule="all_done"``: what a failed task would have given is None there.
"""

from __future__ import annotations

import json
import time
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_spotbatch import ItemFailure, Resources, item_context

RECORDS = ['{"id": 1, "usd": 5}', '{"id": 2, "usd": 7}', '{"id": 3, "usd":', "", '{"id": 5, "usd": 1}']
MB = 2**20


@task.spot_map(on_item_error="collect", item_retries=0)
def parse(record: str) -> dict[str, Any]:
    """Broken records stay broken, however often they are read: no retries."""
    return dict(json.loads(record))


@task
def sort_out(parsed: Any) -> dict[str, Any]:
    """Values and failures come in one sequence, in the order of the items."""
    good = [record for record in parsed if not isinstance(record, ItemFailure)]
    for failure in parsed.failures:
        print(f"record {failure.index}, {failure.item!r}: {failure.message}")
    return {"usd": sum(record["usd"] for record in good), "broken": [f.item for f in parsed.failures]}


@task.spot_map(item_retries=1, max_failures=0.1)
def fetch(page: int) -> str:
    """Every page times out at first, and the last is gone."""
    if page == 9:
        raise LookupError("404: there is no page 9")
    if item_context.attempt == 1:
        raise TimeoutError(f"page {page} did not answer")
    return f"page {page}"


@task.spot_map(
    on_item_error="collect",
    item_retries=1,
    item_timeout=3,
    item_resources=Resources(cpus=1, memory_gb=0.25),
)
def thumbnail(image: dict[str, Any]) -> int:
    """Takes the memory and the time that the image says."""
    pixels = bytearray(image["mb"] * MB)
    time.sleep(image["seconds"])
    return len(pixels) // MB


@task.spot_map(item_retries=0)
def check(number: int) -> int:
    if number == 3:
        raise ValueError("3 is not allowed")
    return number


@task(trigger_rule="all_done")
def report(sorted_out: Any, pages: Any, thumbnails: Any, checked: Any) -> dict[str, Any]:
    print(f"parsed: {sorted_out}")
    print(f"fetched: {pages.ok} pages, {pages.failed} gone")
    print(f"thumbnails: {thumbnails.ok}, failed by cause: {thumbnails.causes}")
    print("checked" if checked is not None else "the check failed: its log says why")
    return {"pages": pages.ok, "causes": thumbnails.causes, "checked": checked is not None}


@dag(schedule=None, catchup=False, tags=["example"])
def failures_and_policies() -> None:
    images = [
        {"mb": 1, "seconds": 0},
        {"mb": 1, "seconds": 60},  # takes too long
        {"mb": 350, "seconds": 2},  # outgrows its memory, and fits in twice as much
    ]
    report(sort_out(parse(RECORDS)), fetch(list(range(10))), thumbnail(images), check(list(range(5))))


failures_and_policies()
