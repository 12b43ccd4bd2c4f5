"""Arguments of the operator: what is refused at parse time, rendered, parsed and filled in."""

from __future__ import annotations

import inspect
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    BaseOperator,
    TaskDeferred,
)
from airflow.sdk import DAG

from airflow_provider_spotbatch import Environment, Items, Resources, SpotMapOperator
from airflow_provider_spotbatch.arguments import policy_arguments, policy_from
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.operators import deployment


def double(item: int, *, by: int = 2) -> int:
    return item * by


def make(**arguments: Any) -> SpotMapOperator:
    given = {"task_id": "t", "python_callable": double, "items": [1, 2], **arguments}
    return SpotMapOperator(**{name: value for name, value in given.items() if value is not ...})


def policy(**arguments: Any) -> Policy:
    return policy_from(policy_arguments(make(**arguments).__dict__))


def test_no_argument_clashes_with_one_of_airflows() -> None:
    own = set(inspect.signature(SpotMapOperator).parameters) - {"kwargs"}
    airflows = {
        name
        for cls in BaseOperator.__mro__
        if cls is not object
        for name in inspect.signature(cls.__init__).parameters
    }
    assert own & airflows == set()


def test_defaults() -> None:
    assert policy() == Policy()
    operator = make()
    assert (operator.conn_id, operator.deferrable, operator.environment) == ("spotbatch_default", True, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"python_callable": ...}, "either python_callable or command"),
        ({"command": ["echo"]}, "either python_callable or command"),
        ({"python_callable": 5}, "must be a function or a dotted path"),
        ({"python_callable": "render"}, "no dotted path"),
        ({"python_callable": ..., "command": "echo {item}"}, "command must be a list of strings"),
        ({"python_callable": ..., "command": []}, "command must be a list of strings"),
        ({"python_callable": ..., "command": ["echo", 5]}, "command must be a list of strings"),
        ({"python_callable": ..., "command": ["echo"], "op_kwargs": {"by": 1}}, "nothing to a command"),
        ({"items": ...}, "needs items"),
        ({"items": "abc"}, "not 'abc'"),
        ({"items": 5}, "not 5"),
        ({"items": {"a": 1}}, "not {'a': 1}"),
        ({"item_retries": -1}, "item_retries"),
        ({"item_timeout": 0}, "item_timeout"),
        ({"item_resources": {"cpus": 1}}, "item_resources must be Resources"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "many"}, "concurrency must be a whole number"),
        ({"concurrency": "1.5"}, "concurrency must be a whole number"),
        ({"on_item_error": "ignore"}, "on_item_error"),
        ({"max_failures": 1.0}, "max_failures"),
        ({"early_stop": 0}, "early_stop"),
        ({"reuse": "sometimes"}, "reuse"),
        ({"purchase": "stolen"}, "purchase"),
        ({"budget_usd": -5}, "budget_usd"),
        ({"max_runtime": timedelta(0)}, "max_runtime"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"op_kwargs": {"item": 5}}, "which takes the item"),
        ({"op_kwargs": {"factor": 5}}, "no parameter named factor"),
    ],
)
def test_bad_constants_fail_at_parse_time(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make(**arguments)


def test_functions_that_cannot_be_called_with_an_item_fail_at_parse_time() -> None:
    async def later(item: int) -> int:
        return item

    def needs_more(item: int, factor: int) -> int:
        return item * factor

    def by_name_only(*, item: int) -> int:
        return item

    for function, message in (
        (later, "is async"),
        (needs_more, "needs factor"),
        (by_name_only, "first argument"),
        (lambda: 5, "first argument"),
    ):
        with pytest.raises(InvalidInput, match=message):
            make(python_callable=function)


@pytest.mark.parametrize("name", ["ti", "task_instance", "task", "dag", "dag_run"])
def test_live_parts_of_the_context_are_refused_at_parse_time(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def function(item, {name}=None): pass", namespace)
    with pytest.raises(InvalidInput, match=f"asks for {name} of Airflow's context"):
        make(python_callable=namespace["function"])


def test_templates_are_let_through_and_checked_when_rendered() -> None:
    operator = make(concurrency="{{ params.width }}", budget_usd="{{ 5 }}", max_runtime="{{ 3600 }}")
    operator.concurrency, operator.budget_usd, operator.max_runtime = "8", "2.5", "3600"
    assert policy_from(policy_arguments(operator.__dict__)) == Policy(
        concurrency=8, budget_usd=2.5, max_runtime=3600
    )
    operator.concurrency = "0"
    with pytest.raises(InvalidInput, match="concurrency must be a whole number of at least 1"):
        policy_from(policy_arguments(operator.__dict__))


def test_times_may_be_timedeltas() -> None:
    assert policy(item_timeout=timedelta(minutes=2), max_runtime=timedelta(hours=1)) == Policy(
        item_timeout=120, max_runtime=3600
    )


def render(operator: SpotMapOperator, **context: Any) -> SpotMapOperator:
    with DAG("d", schedule=None) as dag:
        dag.add_task(operator)
    operator.render_template_fields({"ds": "2026-01-02", "params": {"width": 8}, **context})
    return operator


def test_only_strings_with_a_template_are_rendered() -> None:
    items = ["plain\n", "{# kept #}", "day {{ ds }}", {"nested": ("{% if ds %}yes{% endif %}", 5)}]
    operator = render(make(items=items, op_kwargs={"by": "{{ ds }}"}))
    assert operator.items == ["plain\n", "{# kept #}", "day 2026-01-02", {"nested": ("yes", 5)}]
    assert operator.op_kwargs == {"by": "2026-01-02"}


def test_value_objects_render_by_copy() -> None:
    environment = Environment(env={"DAY": "{{ ds }}"})
    lines = Items.lines("s3://bucket/{{ ds }}.txt")
    operator = render(make(items=lines, environment=environment))
    assert operator.environment == Environment(env={"DAY": "2026-01-02"})
    assert operator.items == Items.lines("s3://bucket/2026-01-02.txt")
    assert environment.env == {"DAY": "{{ ds }}"}
    assert lines.uri == "s3://bucket/{{ ds }}.txt"


def test_all_template_fields_are_rendered() -> None:
    operator = render(
        make(concurrency="{{ params.width }}", purchase="{{ 'on-demand' }}", conn_id="site_{{ ds }}")
    )
    assert (operator.concurrency, operator.purchase, operator.conn_id) == (
        "8",
        "on-demand",
        "site_2026-01-02",
    )


def test_a_generator_function_is_not_called_by_rendering() -> None:
    def numbers() -> Any:
        yield from (1, 2, 3)

    operator = render(make(items=numbers))
    items, _ = operator._call({})
    assert items is numbers


def test_resources_are_no_template_and_reach_the_policy() -> None:
    resources = Resources(cpus=4, memory_gb=8)
    assert policy(item_resources=resources).resources == resources


def test_context_values_are_filled_in_as_plain_data() -> None:
    import pendulum

    def work(
        item: int, ds: str, params: dict[str, Any], logical_date: datetime, run_id: str = ""
    ) -> None: ...

    context = {
        "ds": "2026-01-02",
        "params": {"width": 8},
        "logical_date": pendulum.datetime(2026, 1, 2, tz="Europe/Berlin"),
        "run_id": "manual",
        "ti": object(),
    }
    _, shared = make(python_callable=work, op_kwargs={"ds": "passed"})._call(context)
    assert shared == {
        "ds": "passed",
        "params": {"width": 8},
        "logical_date": datetime(2026, 1, 1, 23, tzinfo=timezone.utc),
        "run_id": "manual",
    }
    assert type(shared["logical_date"]) is datetime


def test_a_context_value_that_this_run_lacks_is_named() -> None:
    def work(item: int, logical_date: datetime) -> None: ...

    with pytest.raises(InvalidInput, match="'logical_date', which this DAG run does not have"):
        make(python_callable=work)._call({"logical_date": None})


def test_the_deployment_defaults_to_the_host_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com:8443/prod")
    assert deployment() == "airflow.example.com"
    monkeypatch.setenv("AIRFLOW__SPOTBATCH__DEPLOYMENT", "studio")
    assert deployment() == "studio"


def test_an_event_of_an_earlier_run_does_not_end_this_try(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection = {"conn_type": "spotbatch", "extra": {"path": str(tmp_path / "root")}}
    monkeypatch.setenv("AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps(connection))
    own = {"owner": "me", "job": "j", "generation": 1, "run": 2}
    context: Any = {"ti": SimpleNamespace(map_index=-1, xcom_pull=lambda **_: own)}
    with pytest.raises(TaskDeferred) as deferred:
        make().execute_complete(context, {"state": "over", "job": "j", "generation": 1, "run": 1})
    trigger: Any = deferred.value.trigger
    assert (trigger.of_run.number, deferred.value.method_name) == (2, "execute_complete")


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, AirflowException),  # by a trigger of an earlier release
        ({"retryable": True}, AirflowException),
        ({"retryable": False}, AirflowFailException),
    ],
)
def test_a_trigger_that_gave_up_for_good_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: dict[str, Any], kind: type[Exception]
) -> None:
    connection = {"conn_type": "spotbatch", "extra": {"path": str(tmp_path / "root")}}
    monkeypatch.setenv("AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps(connection))
    run = {"job": "j", "generation": 1, "run": 1}
    context: Any = {"ti": SimpleNamespace(map_index=-1, xcom_pull=lambda **_: {"owner": "me", **run})}
    event = {"state": "error", "message": "AccessDenied: no. Allow it", **run, **told}
    with pytest.raises(AirflowException, match="Allow it") as failed:
        make().execute_complete(context, event)
    assert type(failed.value) is kind
