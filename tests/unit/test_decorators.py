from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_spotbatch import spot, spot_map
from airflow_provider_spotbatch.decorators import spot_map_task, spot_task
from airflow_provider_spotbatch.job.errors import InvalidInput


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("d", schedule=None) as dag:
        yield dag


def operator_of(xcom_arg: Any) -> Any:
    return xcom_arg.operator


@spot_map(item_retries=5)
def render(uri: str, *, quality: int = 80) -> dict[str, Any]:
    return {"uri": uri, "quality": quality}


def test_items_come_by_position_or_by_name() -> None:
    for called in (render(["a", "b"], quality=90), render(uri=["a", "b"], quality=90)):
        operator = operator_of(called)
        assert operator._call({}) == (["a", "b"], {"quality": 90})
        assert operator.item_retries == 5


def test_items_may_be_a_task_s_result() -> None:
    @task
    def scans() -> list[str]:
        return ["a"]

    listed = scans()
    operator = operator_of(render(listed))
    assert operator.upstream_task_ids == {"scans"}


def test_a_return_type_of_dict_makes_no_multiple_outputs() -> None:
    assert operator_of(render(["a"])).multiple_outputs is False
    with pytest.raises(InvalidInput, match="multiple_outputs"):
        spot_map_task(render.function, multiple_outputs=True)


def test_override_changes_airflow_s_arguments_and_ours() -> None:
    operator = operator_of(render.override(task_id="other", item_retries=1, retries=3)(["a"]))
    assert (operator.task_id, operator.item_retries, operator.retries) == ("other", 1, 3)


def test_calls_without_items_are_refused() -> None:
    with pytest.raises(TypeError, match="uri"):
        render()

    @spot_map
    def any_number(*values: int) -> int:
        return values[0]

    with pytest.raises(InvalidInput, match="without items"):
        any_number()


def test_items_of_a_task_that_returned_nothing_are_refused_as_such() -> None:
    with pytest.raises(InvalidInput, match="it returned nothing"):
        render(None)


@pytest.mark.parametrize("items", ["a", b"a", {"a": 1}, 5])
def test_what_is_no_list_is_refused_with_the_right_call(items: Any) -> None:
    with pytest.raises(InvalidInput, match=r"render\.expand\(uri=lists\) makes one job per list"):
        render(items)


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected"):
        render(["a"], colour=True)


def test_a_second_argument_by_position_is_shared() -> None:
    @spot_map
    def scale(item: int, factor: int) -> int:
        return item * factor

    assert operator_of(scale([1, 2], 3))._call({}) == ([1, 2], {"factor": 3})


def test_keywords_of_a_catch_all_are_shared() -> None:
    @spot_map
    def anything(item: int, **rest: Any) -> Any:
        return rest

    assert operator_of(anything([1], colour="red"))._call({}) == ([1], {"colour": "red"})


def test_live_parts_of_the_context_are_refused_when_decorating() -> None:
    for decorate in (spot_map, spot):
        with pytest.raises(InvalidInput, match="asks for ti of Airflow's context"):

            @decorate
            def work(item: int, ti: Any = None) -> None: ...


def test_an_item_may_be_called_task() -> None:
    @spot_map
    def run(task: int) -> int:
        return task

    assert operator_of(run([1]))._call({}) == ([1], {})


def test_context_values_are_filled_unless_passed() -> None:
    @spot_map
    def work(item: int, ds: str, params: dict[str, Any] | None = None) -> None: ...

    context = {"ds": "2026-01-02", "params": {"a": 1}}
    assert operator_of(work([1]))._call(context)[1] == {"ds": "2026-01-02", "params": {"a": 1}}
    assert operator_of(work([1], ds="x"))._call(context)[1] == {"ds": "x", "params": {"a": 1}}


def test_a_single_call_is_a_job_of_one_item_that_holds_its_arguments() -> None:
    @spot
    def train(data: str, *, epochs: int, ds: str) -> str:
        return f"{data} {epochs} {ds}"

    operator = operator_of(train("s3://data", epochs=3))
    assert operator._call({"ds": "2026-01-02"}) == (
        [{"args": ["s3://data"], "kwargs": {"epochs": 3, "ds": "2026-01-02"}}],
        {},
    )
    assert operator.call == "spread"


@pytest.mark.parametrize("name", ["concurrency", "on_item_error", "max_failures", "early_stop", "items"])
def test_a_single_call_takes_no_argument_about_many_items(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        spot_task(**{name: 1})


def test_mapping_makes_one_task_per_list() -> None:
    mapped = operator_of(render.partial(quality=5).expand(uri=[["a", "b"], ["c"]]))
    unmapped = mapped.unmap({"op_kwargs": {"uri": ["a", "b"]}})
    assert unmapped._call({}) == (["a", "b"], {"quality": 5})


def test_mapping_over_single_items_is_refused_before_anything_runs() -> None:
    unmapped = operator_of(render.expand(uri=["a", "b"])).unmap({"op_kwargs": {"uri": "a"}})
    with pytest.raises(InvalidInput, match=r"One job over all items is render\(items\)"):
        unmapped._check()


def test_rendering_leaves_what_holds_no_template() -> None:
    operator = operator_of(render(["plain\n", "{{ ds }}"]))
    operator.render_template_fields({"ds": "2026-01-02"})
    assert operator._call({})[0] == ["plain\n", "2026-01-02"]
