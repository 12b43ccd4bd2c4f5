from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from airflow_provider_spotbatch.backends.memory import MemoryCloud
from airflow_provider_spotbatch.control.advice import (
    INTERPRETER,
    Advice,
    advise,
    describe_use,
    figures,
    use_of,
)
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.outcome import MEMORY, OK, TIMEOUT, ItemOutcome
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import ENDED, Report
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.use import Use

GENERATION = Generation("dag-task-0123456789abcdef", 1)
ASKED = Policy(resources=Resources(cpus=1, memory_gb=4))


def use(
    items: int = 100,
    *,
    seconds: float = 2.0,
    memory_gb: float | None = 3.0,
    cpus: float = 0.9,
    overhead: float = 0.0,
    failed: tuple[str, ...] = (),
) -> Use:
    """What so many equal items used, and some that failed."""
    outcomes = [
        ItemOutcome(item, 1, OK, "json", b"1", 0.0, seconds, memory_gb and memory_gb * 1024, cpus * seconds)
        for item in range(items)
    ]
    outcomes += [
        ItemOutcome(items + k, 1, cause, "failure", b"{}", 0.0, seconds) for k, cause in enumerate(failed)
    ]
    return Use.of_chunk(outcomes, (items + len(failed)) * seconds + overhead, 4096)


def asks(used: Use, policy: Policy = ASKED) -> dict[str, float]:
    return {name: value for advice in advise(used, policy) for name, value in advice.ask.items()}


@pytest.mark.parametrize(
    ("used", "policy", "asked"),
    [
        (use(), ASKED, {}),
        (use(memory_gb=1.3), ASKED, {"memory_gb": 1.6}),
        (use(memory_gb=0.02), ASKED, {"memory_gb": 0.1}),
        (use(memory_gb=2.4), ASKED, {}),
        (use(memory_gb=3.9), ASKED, {"memory_gb": 5.0}),
        (use(memory_gb=50), Policy(resources=Resources(memory_gb=256)), {"memory_gb": 60.0}),
        (use(19, memory_gb=0.1), ASKED, {}),
        (use(memory_gb=None), ASKED, {}),
        (use(cpus=0.2), ASKED, {"cpus": 0.25}),
        (use(cpus=0.01), ASKED, {"cpus": 0.1}),
        (use(cpus=0.6), ASKED, {}),
        (use(cpus=1.2), ASKED, {}),
        (use(cpus=3.8), ASKED, {"cpus": 6}),
        (use(cpus=0.2, seconds=0.05), ASKED, {}),
        (use(19, cpus=0.2), ASKED, {}),
        (use(seconds=100), replace(ASKED, item_timeout=105), {"item_timeout": 300}),
        (use(seconds=2), replace(ASKED, item_timeout=3600), {"item_timeout": 6}),
        (use(seconds=2), replace(ASKED, item_timeout=30), {}),
        (use(seconds=2), ASKED, {}),
        (use(seconds=50, failed=(TIMEOUT,)), replace(ASKED, item_timeout=60), {"item_timeout": 180}),
        (use(seconds=1, failed=(TIMEOUT,)), replace(ASKED, item_timeout=60), {}),
    ],
)
def test_what_to_ask_for(used: Use, policy: Policy, asked: dict[str, float]) -> None:
    assert asks(used, policy) == asked


def test_an_advice_names_what_was_used_what_was_asked_and_the_headroom() -> None:
    (memory,) = advise(use(memory_gb=1.3), ASKED)

    assert memory == Advice(
        "memory",
        "items used at most 1.3 GB of 4 GB asked: ask for memory_gb=1.6 (20 % above the most)",
        {"memory_gb": 1.6},
    )


def test_many_items_that_outgrew_their_memory_are_a_reason_to_ask_for_more() -> None:
    used = use(20, memory_gb=6.0, failed=(MEMORY,) * 10)
    (memory,) = advise(used, ASKED)

    assert "10 items needed more than the 4 GB asked and ran again with more: ask for" in memory.text
    assert memory.ask == {"memory_gb": 7.5}


def test_few_items_that_outgrew_their_memory_may_go_on_so() -> None:
    (memory,) = advise(use(1000, memory_gb=6.0, failed=(MEMORY,)), ASKED)

    assert "1 item needed more than the 4 GB asked" in memory.text
    assert "cheap while they are few" in memory.text


def test_an_item_that_outgrew_each_memory_it_was_given_is_told_once() -> None:
    used = use(0, failed=(MEMORY,))
    used.outgrew[8192] += 1
    (memory,) = advise(used, ASKED)

    assert memory.text.startswith("1 item needed more than the 4 GB asked, and none")
    assert memory.ask == {}


def test_limits_below_what_is_asked_now_are_of_no_concern() -> None:
    assert asks(use(memory_gb=6, failed=(MEMORY,)), Policy(resources=Resources(memory_gb=8))) == {}


def test_more_time_between_items_than_in_them_is_told() -> None:
    (time,) = advise(use(10_000, seconds=0.01, overhead=400), ASKED)

    assert "80 %" in time.text
    assert "let each item hold more work" in time.text


def test_little_time_between_items_is_not_told() -> None:
    assert advise(use(10_000, seconds=0.001, memory_gb=None, overhead=59), ASKED) == []


def test_the_figures_name_what_was_asked_and_what_was_left_out() -> None:
    used = use(memory_gb=1.3, failed=(MEMORY, TIMEOUT, TIMEOUT))

    assert describe_use(used, replace(ASKED, item_timeout=60)) == [
        "measured on 100 items that succeeded; left out: 2 timeout, 1 memory",
        "time: median 1.9 s, 95th 1.9 s, most 2 s (item_timeout 60 s)",
        f"memory: median 1.3 GB, 95th 1.3 GB, most 1.3 GB of 4 GB asked ({INTERPRETER})",
        "CPU: median 0.86, 95th 0.86, most 0.9 of 1 asked",
    ]


def test_what_was_measured_on_some_items_only_says_so() -> None:
    used = use(20)
    used.merge(use(30, seconds=0.001, memory_gb=None))

    lines = describe_use(used, ASKED)

    assert "its interpreter included; measured on 20 of them" in lines[2]
    assert lines[3].endswith("of 1 asked (measured on 20 of them)")


def test_what_was_not_measured_is_not_shown() -> None:
    few = use(30, seconds=0.001, memory_gb=None)
    few.merge(use(3, memory_gb=None))

    assert len(describe_use(few, ASKED)) == 2
    assert describe_use(use(0, failed=(MEMORY,)), ASKED) == []


def test_figures_as_json_hold_the_same() -> None:
    shown = figures(use(memory_gb=1.0, failed=(MEMORY,)))

    assert shown["items"] == 100
    assert shown["left_out"] == {"memory": 1}
    assert shown["memory_mb"] == {"measured": 100, "median": 1024.0, "high": 1024.0, "most": 1024.0}


def test_use_is_that_of_all_machines_of_all_runs() -> None:
    store = MemoryCloud("advice").store

    async def stored() -> Use:
        for run, instance, used in (
            (1, "i-1", use(3, seconds=1).to_json()),
            (1, "i-2", use(4, seconds=7).to_json()),
            (2, "i-1", use(5).to_json()),
            (2, "i-3", {}),
            (2, "i-4", {"cpu": 0.5}),
        ):
            report = Report(instance, 1, 0, 1, 1, ENDED, use=used)
            await store.write(Run(GENERATION, run).report(instance), report.to_bytes())
        await store.write(Run(GENERATION, 2).seal("i-1", 1), b"a seal")
        return await use_of(store, GENERATION)

    found = asyncio.run(stored())

    assert found.items == 12
    assert found.seconds.maximum == 7


def test_a_generation_without_reports_has_used_nothing() -> None:
    assert asyncio.run(use_of(MemoryCloud("none").store, GENERATION)).items == 0
