"""A job over the results of another one, and the files that items can be read from.

``flag_day`` runs on what ``total_of_day`` returned: the results go from job to job by reference, through the
object store and never through Airflow's database, so there may be a million. Items that lie in files are
read when the task runs, a block at a time:

* ``Items.listing("s3://bucket/orders/*.jsonl")``: the URIs of all objects that match,
* ``Items.jsonl("s3://bucket/customers.jsonl")``: a JSON value from each line,
* ``Items.lines("s3://bucket/countries.txt")``: the text of each line.

Your own data: run it with ``{"folder": "s3://bucket/shop"}`` (or ``gs://…``, ``file:///…``), without
``make_files``. On a cloud's machines it must be a bucket that they may read.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import obstore
from airflow.sdk import dag, task
from obstore.store import ObjectStore, from_url

from airflow_provider_spotbatch import Items

FOLDER = "{{ params.folder }}"


def locate(uri: str) -> tuple[ObjectStore, str]:
    """The bucket of a URI, or the machine's file system, and the name in it."""
    parts = urlsplit(uri)
    return from_url(f"{parts.scheme}://{parts.netloc}/"), parts.path.lstrip("/")


@task
def make_files(folder: str, days: int = 14) -> None:
    """Stands for files that are there already: orders of each day, customers, countries."""
    for day in range(1, days + 1):
        chance = random.Random(day)
        orders = [{"order": n, "usd": chance.randrange(1, 200)} for n in range(day * 5)]
        write_lines(f"{folder}/orders/2026-01-{day:02}.jsonl", map(json.dumps, orders))
    customers = [{"name": f"customer {n}", "country": "NO" if n % 3 else "SE"} for n in range(9)]
    write_lines(f"{folder}/customers.jsonl", map(json.dumps, customers))
    write_lines(f"{folder}/countries.txt", ["NO", "SE"])


def write_lines(uri: str, lines: Iterable[str]) -> None:
    obstore.put(*locate(uri), "\n".join(lines).encode())


@task.spot_map
def total_of_day(uri: str) -> dict[str, Any]:
    """The turnover of one day's file."""
    text = bytes(obstore.get(*locate(uri)).bytes()).decode()
    orders = [json.loads(line) for line in text.splitlines()]
    return {"day": PurePosixPath(uri).stem, "usd": sum(order["usd"] for order in orders)}


@task.spot_map
def flag_day(total: dict[str, Any], *, expected: int) -> dict[str, Any]:
    """One result of the job before: a day, with whether it was a good one."""
    return {**total, "good": total["usd"] >= expected}


@task.spot_map
def letter(customer: dict[str, str]) -> str:
    return f"Dear {customer['name']} in {customer['country']}"


@task.spot_map
def vat(country: str) -> list[Any]:
    return [country, {"NO": 0.25, "SE": 0.25}[country]]


@task
def report(days: Any, letters: Any, rates: Any) -> dict[str, Any]:
    good = [day["day"] for day in days if day["good"]]
    print(f"{len(good)} of {len(days)} days were good: {', '.join(good)}")
    print(f"{len(letters)} letters, from {letters[0]!r} to {letters[-1]!r}")
    return {"good": good, "letters": len(letters), "vat": dict(rates)}


@dag(
    schedule=None,
    catchup=False,
    tags=["example"],
    params={"folder": f"file://{tempfile.gettempdir()}/spotbatch/chained_jobs"},
)
def chained_jobs() -> None:
    totals = total_of_day(Items.listing(f"{FOLDER}/orders/*.jsonl"))
    letters = letter(Items.jsonl(f"{FOLDER}/customers.jsonl"))
    rates = vat(Items.lines(f"{FOLDER}/countries.txt"))
    make_files(FOLDER) >> [totals, letters, rates]
    report(flag_day(totals, expected=2500), letters, rates)


chained_jobs()
