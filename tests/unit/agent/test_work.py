"""What a worker makes of functions, values and exceptions: real workers, driven by a real agent."""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.agent import slots
from airflow_provider_spotbatch.job import codec
from airflow_provider_spotbatch.job.spec import WorkerEnvironment
from tests.support.jobs import (
    Job,
    command_job,
    dotted_job,
    failure_of,
    function_job,
    outcomes_of,
    value_of,
)


def values_of(job: Job) -> list[Any]:
    return [value_of(outcome) for outcome in outcomes_of(job)]


def only_failure(job: Job) -> Any:
    (outcome,) = outcomes_of(job)
    return failure_of(outcome)


def test_results_come_in_item_order_with_attempt_and_times(tmp_path: Path) -> None:
    outcomes = outcomes_of(function_job(tmp_path, lambda x: x * 2, range(50)))
    assert [value_of(outcome) for outcome in outcomes] == [2 * x for x in range(50)]
    assert [outcome.item for outcome in outcomes] == list(range(50))
    assert {outcome.attempt for outcome in outcomes} == {1}
    assert all(outcome.start <= outcome.end for outcome in outcomes)
    assert (outcomes[7].preview_in, outcomes[7].preview_out) == ("7", "14")


def test_shared_keyword_arguments_reach_every_call(tmp_path: Path) -> None:
    job = function_job(tmp_path, lambda x, *, scale: x * scale, [1, 2], kwargs={"scale": 10})
    assert values_of(job) == [10, 20]


def test_a_spread_call_gets_its_own_arguments(tmp_path: Path) -> None:
    item = {"args": [1, 2], "kwargs": {"c": 3}}
    assert values_of(function_job(tmp_path, lambda a, b, c: [a, b, c], [item], call="spread")) == [[1, 2, 3]]


@pytest.mark.parametrize(
    "value",
    [
        None,
        (1, "a"),
        {1, 2},
        {1: "int key"},
        {"deep": [1.5, {"x": None}]},
        math.inf,
        datetime(2026, 1, 2, tzinfo=timezone.utc),
        b"\x00\xff",
        2**20000,
        "\ud800 {{ not rendered }}",
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_went(tmp_path: Path, value: Any) -> None:
    (came_back,) = values_of(function_job(tmp_path, lambda x: x, [value]))
    assert came_back == value
    assert type(came_back) is type(value)


def test_numpy_arrays_and_nan_come_back(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    array, nan = values_of(function_job(tmp_path, lambda x: x, [numpy.arange(3), math.nan]))
    assert array.tolist() == [0, 1, 2]
    assert math.isnan(nan)


def dag_file() -> dict[str, Any]:
    """What a DAG file holds, made anew: no module of that name can be imported anywhere."""
    source = """
import enum

FACTOR = 3

class Point:
    class Kind(enum.Enum):
        ROUND = 1
    def __init__(self, x):
        self.x = x
        self.kind = Point.Kind.ROUND

def helper(x):
    return x * FACTOR

def render(x):
    return Point(helper(x))

def is_point(item):
    return isinstance(item, Point) and item.kind is Point.Kind.ROUND
"""
    namespace: dict[str, Any] = {"__name__": "my_dag"}
    exec(source, namespace)
    return namespace


def test_classes_of_the_dag_file_are_referred_to_by_their_stable_name(tmp_path: Path) -> None:
    names = dag_file()
    point = names["Point"]
    modules = {"my_dag": {"Point": point, "Point.Kind": point.Kind, "render": names["render"]}}
    (outcome,) = outcomes_of(function_job(tmp_path, names["render"], [2], modules=modules))
    here = {"Point": point, "Point.Kind": point.Kind}
    result = codec.decode(outcome.kind, outcome.value, lambda module, name: here[name])
    assert isinstance(result, point)
    assert result.x == 6
    assert result.kind is point.Kind.ROUND


def test_an_item_of_a_class_of_the_dag_file_is_an_instance_of_the_workers_class(tmp_path: Path) -> None:
    names = dag_file()
    point = names["Point"]
    modules = {"my_dag": {"Point": point, "Point.Kind": point.Kind}}
    job = function_job(tmp_path, names["is_point"], [], modules=modules)

    buffer = io.BytesIO()
    codec.referring_pickler(pickle._Pickler)(buffer, {"my_dag": "my_dag"}).dump(point(1))
    job.packed = [(codec.PICKLE, buffer.getvalue())]
    assert values_of(job) == [True]


def test_a_generator_is_refused_with_the_cure(tmp_path: Path) -> None:
    def generate(x: int) -> Any:
        yield x

    failure = only_failure(function_job(tmp_path, generate, [1]))
    assert failure.type == "TypeError"
    assert "generator, which cannot be pickled" in failure.message
    assert "list(" in failure.message


def test_an_async_function_is_refused_with_the_cure(tmp_path: Path) -> None:
    async def work(x: int) -> int:
        return x

    assert "asyncio.run()" in only_failure(function_job(tmp_path, work, [1])).message


def test_a_returned_exception_is_a_value(tmp_path: Path) -> None:
    (value,) = values_of(function_job(tmp_path, lambda x: ValueError(x), ["bad"]))
    assert isinstance(value, ValueError)
    assert value.args == ("bad",)


def test_a_returned_exception_whose_init_takes_arguments_comes_back(tmp_path: Path) -> None:
    class Needy(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__("only one")

    (outcome,) = outcomes_of(function_job(tmp_path, lambda x: Needy(1, 2), [1]))
    assert value_of(outcome).args == ("only one",)


def test_a_raised_exception_whose_init_takes_arguments_is_text(tmp_path: Path) -> None:
    class Needy(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(f"{first} and {second}")

    def work(x: int) -> None:
        raise Needy(1, 2)

    failure = only_failure(function_job(tmp_path, work, [1]))
    assert failure.type.endswith("Needy")
    assert failure.message == "1 and 2"


def test_an_unpicklable_part_of_a_result_is_named_with_its_path(tmp_path: Path) -> None:
    def work(x: int) -> Any:
        import threading

        return {"rows": [1, {"lock": threading.Lock()}]}

    failure = only_failure(function_job(tmp_path, work, [1]))
    assert "result['rows'][1]['lock'] is a _thread.lock" in failure.message


def test_a_failure_has_the_functions_traceback_and_none_of_ours(tmp_path: Path) -> None:
    def inner() -> None:
        raise KeyError("gone")

    def work(x: int) -> None:
        try:
            inner()
        except KeyError as error:
            raise RuntimeError("outer") from error

    failure = only_failure(function_job(tmp_path, work, [1]))
    assert (failure.type, failure.message) == ("RuntimeError", "outer")
    assert "in inner" in failure.traceback
    assert "direct cause" in failure.traceback
    assert "worker.py" not in failure.traceback


@pytest.mark.parametrize(
    ("raised", "type_", "message"),
    [
        (SystemExit(3), "SystemExit", "sys.exit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (GeneratorExit("x"), "GeneratorExit", "x"),
    ],
)
def test_base_exceptions_are_errors_of_the_item_alone(
    tmp_path: Path, raised: BaseException, type_: str, message: str
) -> None:
    def work(x: int) -> int:
        if x == 1:
            raise raised
        return os.getpid()

    first, second, third = outcomes_of(function_job(tmp_path, work, [0, 1, 2]))
    assert second.cause == "error"
    assert failure_of(second).type == type_
    assert message in failure_of(second).message
    assert value_of(first) == value_of(third), "the same worker goes on"


def test_an_exception_whose_text_cannot_be_made_is_a_failure_all_the_same(tmp_path: Path) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    def work(x: int) -> None:
        raise Rude

    assert only_failure(function_job(tmp_path, work, [1])).type.endswith("Rude")


def test_a_missing_module_of_the_function_is_named_in_every_items_failure(tmp_path: Path) -> None:
    outcomes = outcomes_of(dotted_job(tmp_path, "no_such_module_here.render", [1, 2]))
    assert [outcome.cause for outcome in outcomes] == ["error", "error"]
    assert "needs the module 'no_such_module_here'" in failure_of(outcomes[1]).message
    assert failure_of(outcomes[1]).type == "ModuleNotFoundError"


def test_a_function_that_ends_the_process_while_it_is_loaded_fails_each_item(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os._exit, (3,)

    outcomes = outcomes_of(function_job(tmp_path, lambda x, bomb: x, [1, 2], kwargs={"bomb": Bomb()}))
    assert [outcome.cause for outcome in outcomes] == ["crash", "crash"]
    assert "exit code 3" in failure_of(outcomes[0]).message


@pytest.mark.parametrize("name", ["os.path.basename", "os.path:basename"])
def test_a_dotted_name_is_imported_on_the_machine(tmp_path: Path, name: str) -> None:
    assert values_of(dotted_job(tmp_path, name, ["/a/b"])) == ["b"]


PRINT_ITEM = [sys.executable, "-c", "import sys; print('working'); print(sys.argv[1])", "{item}"]


@pytest.mark.parametrize(
    ("item", "result"), [("text", "text"), ({"a": [1]}, {"a": [1]}), (5, 5), ("[1, 2]", [1, 2])]
)
def test_a_commands_last_line_is_its_result(tmp_path: Path, item: Any, result: Any) -> None:
    assert values_of(command_job(tmp_path, PRINT_ITEM, [item])) == [result]


def test_a_command_without_output_gives_none(tmp_path: Path) -> None:
    assert values_of(command_job(tmp_path, ["true"], ["x"])) == [None]


def test_a_commands_exit_code_is_a_failure_with_the_end_of_its_output(tmp_path: Path) -> None:
    failure = only_failure(command_job(tmp_path, ["sh", "-c", "echo out; echo err >&2; exit 7"], ["x"]))
    assert "exit code 7" in failure.message
    assert set(failure.output_tail.splitlines()) == {"out", "err"}


def test_a_command_does_not_wait_for_the_child_it_left_behind(tmp_path: Path) -> None:
    job = command_job(tmp_path, ["sh", "-c", "echo done; sleep 600 &"], ["x"])
    assert values_of(job) == ["done"]


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no-such-command" in only_failure(command_job(tmp_path, ["no-such-command"], ["x"])).message


def test_a_python_of_another_version_is_refused_for_a_pickled_function(tmp_path: Path) -> None:
    job = function_job(tmp_path, lambda x: x, [1], environment=WorkerEnvironment(python="3.1"))
    assert "was pickled for 3.1" in only_failure(job).message


def test_large_values_are_previewed_by_type_and_size(tmp_path: Path) -> None:
    (outcome,) = outcomes_of(function_job(tmp_path, lambda x: bytes(10_000), ["y" * 10_000]))
    assert outcome.preview_in.startswith("'yyyy")
    assert "bytes" in outcome.preview_out
    assert len(outcome.preview_in) <= 120


def test_items_are_put_off_once_the_results_before_them_grow_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CHUNK_RESULT_BYTES", 1000)
    ran = tmp_path / "ran"

    def large(x: int) -> str:
        with open(ran, "a") as file:
            file.write(f"{x}\n")
        return str(x) * 200_000  # more than the pipe holds

    outcomes = outcomes_of(function_job(tmp_path, large, range(10)))
    causes = [outcome.cause for outcome in outcomes]
    done = causes.count("ok")
    assert causes == ["ok"] * done + ["interrupted"] * (10 - done)
    assert 1 <= done < 10
    assert ran.read_text().split() == [str(index) for index in range(done)]
    assert failure_of(outcomes[-1]).label.startswith("PutOff")
