"""Count words: a map over texts, its result mapped over once more by Airflow itself, and a reduce.

The result of a ``spot_map`` is a sequence in the order of the items, however many there are. A task that
takes it whole reads it piece by piece (``merge``); a task that is mapped over it with ``expand`` becomes a
task instance for each result (``longest_word``), with a log and retries of its own, up to Airflow's
``[core] max_map_length`` of 1024. Use the first for many results, the second for a few that matter singly.

Your own data: let ``list_texts`` return paths or URIs, and let ``count_words`` read one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from airflow.sdk import dag, task

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A machine may vanish, and the work goes on: the dog sleeps.",
    "What was finished is never lost; what was lost is done again.",
    "The fox and the machine jump again, and again.",
]


@task
def list_texts() -> list[str]:
    return TEXTS


@task.spot_map
def count_words(text: str) -> dict[str, int]:
    """How often each word occurs in one text. Runs on whatever machine the connection leads to."""
    return dict(Counter(re.findall(r"[a-z]+", text.lower())))


@task
def longest_word(counts: dict[str, int]) -> str:
    """One task instance for each text."""
    return max(counts, key=len)


@task
def merge(all_counts: Any) -> dict[str, int]:
    """The words of all texts, the most frequent first."""
    total: Counter[str] = Counter()
    for counts in all_counts:
        total.update(counts)
    return dict(total.most_common())


@task
def report(total: dict[str, int], longest: Any) -> None:
    for word, count in list(total.items())[:5]:
        print(f"{count:5} {word}")
    print("longest words:", ", ".join(longest))


@dag(schedule=None, catchup=False, tags=["example"])
def map_reduce() -> None:
    counted = count_words(list_texts())
    report(merge(counted), longest_word.expand(counts=counted))


map_reduce()
