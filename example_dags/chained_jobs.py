"""A job over the results of another one, and the files that items can be read from.

``flag_day`` runs on what ``total_of_day`` returned: the results go from job to job by reference, through the
object store and never through Airflow's database, so there may be a million. Items that lie in files are
read when the task runs, a block at a time:

* ``Items.listing("s3://bucket/orders/*.jsonl")``: the URIs of all objects that match,
* ``Items.jsonl("s3://bucket/customers.jsonl")``: a JSON value from each line,
* ``Items.lines("s3://bucket/countries.txt")``: the text of each line.

Your own data: run it with ``{"folder": "/path"}``, without ``make_files``. With ``s3://…`` or ``gs://…`` in
its place, items are read from there; ``total_of_day`` must then read its object from there too, for
example with obstore.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_spotbatch import Items

FOLDER = "{{ params.folder }}"


@task
def make_files(folder: str, days: int = 14) -> None:
    """Stands for files that are there already: orders of each day, customers, countries."""
    orders = Path(folder, "orders")
    orders.mkdir(parents=True, exist_ok=True)
    for day in range(1, days + 1):
        chance = random.Random(day)
        lines = [json.dumps({"order": n, "usd": chance.randrange(1, 200)}) for n in range(day * 5)]
        (orders / f"2026-01-{day:02}.jsonl").write_text("\n".join(lines))
    customers = [{"name": f"customer {n}", "country": "NO" if n % 3 else "SE"} for n in range(9)]
    Path(folder, "customers.jsonl").write_text("\n".join(map(json.dumps, customers)))
    Path(folder, "countries.txt").write_text("NO\nSE\n")


@task.spot_map
def total_of_day(path: str) -> dict[str, Any]:
    """The turnover of one day's file."""
    orders = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {"day": Path(path).stem, "usd": sum(order["usd"] for order in orders)}


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
    params={"folder": f"{tempfile.gettempdir()}/spotbatch/chained_jobs"},
)
def chained_jobs() -> None:
    totals = total_of_day(Items.listing(f"{FOLDER}/orders/*.jsonl"))
    letters = letter(Items.jsonl(f"{FOLDER}/customers.jsonl"))
    rates = vat(Items.lines(f"{FOLDER}/countries.txt"))
    make_files(FOLDER) >> [totals, letters, rates]
    report(flag_day(totals, expected=2500), letters, rates)


chained_jobs()
