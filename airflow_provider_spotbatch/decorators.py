"""``@task.spot_map`` and ``@task.spot``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from airflow_provider_spotbatch.arguments import is_item_source, known_at_parse_time
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.spec import CALL_SPREAD
from airflow_provider_spotbatch.operators import SpotMapOperator
from airflow_provider_spotbatch.results import MapResult
from airflow_provider_spotbatch.signature import (
    check_parameters,
    context_values,
    item_parameter,
    refuse_async,
    refuse_live,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

OF_A_MAP = ("concurrency", "on_item_error", "max_failures", "early_stop")
"""Arguments that say something about many items only."""


class SpotTask(Protocol[P, R]):
    """A decorated function: called in a DAG it makes a task; ``function`` is the function itself."""

    @property
    def function(self) -> Callable[P, R]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> XComArg: ...
    def partial(self, **kwargs: Any) -> SpotTask[P, R]: ...
    def expand(self, **kwargs: Any) -> XComArg: ...
    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg: ...
    def override(self, **kwargs: Any) -> SpotTask[P, R]: ...


class _Decorated(DecoratedOperator, SpotMapOperator):  # type: ignore[misc]
    """Binds TaskFlow's call to the operator: what is passed lies in op_args and op_kwargs."""

    template_fields: Sequence[str] = (
        "op_args",
        *(field for field in SpotMapOperator.template_fields if field != "items"),
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 - Airflow's own form
    python_callable: Callable[..., Any]

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kwargs_to_upstream={"python_callable": python_callable, "op_kwargs": op_kwargs},
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )

    @classmethod
    def passed_always(cls, function: Callable[..., Any]) -> list[str]:
        """Names of the parameters that every call fills."""
        return []

    def _passed(self) -> inspect.BoundArguments:
        """What was passed, by parameter."""
        return inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)

    def _names(self) -> set[str]:
        """Names of all that was passed, those that ``**kwargs`` takes among them."""
        return set(self._passed().arguments) | set(self.op_kwargs)


class _SpotMap(_Decorated):
    """The operator behind ``@task.spot_map``."""

    custom_operator_name = "@task.spot_map"

    @classmethod
    def passed_always(cls, function: Callable[..., Any]) -> list[str]:
        first = item_parameter(function)
        return [] if first is None else [first]

    def _check_call(self) -> None:
        self._split()
        check_parameters(self.python_callable, self._names())

    def _call(self, context: Context) -> tuple[Any, dict[str, Any]]:
        items, shared = self._split()
        return items, {**shared, **context_values(self.python_callable, self._names(), context)}

    def _split(self) -> tuple[Any, dict[str, Any]]:
        """The items, and what all items share, by name."""
        shared = self._by_name()
        first = item_parameter(self.python_callable)
        function = self.python_callable.__name__
        if first is None or first not in shared:
            raise InvalidInput(
                f"{function}() was called without items: pass them as {first!r}, its first argument"
            )
        items = shared.pop(first)
        if items is None:
            raise InvalidInput(
                f"{function}() was called with None for {first!r}, its items: "
                "if a task made them, it returned nothing"
            )
        if known_at_parse_time(items) and not is_item_source(items):
            raise InvalidInput(
                f"{function}() runs on each element of a list, and {first!r} is {items!r}. One job over all "
                f"items is {function}(items); {function}.expand({first}=lists) makes one job per list, so "
                "each of its elements must be a list of items"
            )
        return items, shared

    def _by_name(self) -> dict[str, Any]:
        passed = self._passed()
        by_name: dict[str, Any] = {}
        for position, (name, value) in enumerate(passed.arguments.items()):
            kind = passed.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                by_name.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL and position == 0 and len(value) == 1:
                by_name[name] = value[0]
            elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY) and position:
                raise InvalidInput(f"{name!r} is taken by position, and only the items are passed so")
            else:
                by_name[name] = value
        return by_name


class _Spot(_Decorated):
    """The operator behind ``@task.spot``: a job of one item, which holds all arguments of the call."""

    custom_operator_name = "@task.spot"
    call = CALL_SPREAD

    def _check_call(self) -> None:
        refuse_async(self.python_callable)
        check_parameters(self.python_callable, self._names())

    def _call(self, context: Context) -> tuple[Any, dict[str, Any]]:
        filled = context_values(self.python_callable, self._names(), context)
        return [{"args": list(self.op_args), "kwargs": {**self.op_kwargs, **filled}}], {}

    def _most_items(self, context: Context) -> int | None:
        return None

    def _value(self, result: MapResult) -> Any:
        return result[0]


def spot_map_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """``@task.spot_map``: the decorated function is run on each of many items.

    Called in a DAG, its first argument is the items and its keywords are shared by all. Takes the
    arguments of :class:`~airflow_provider_spotbatch.operators.SpotMapOperator` and Airflow's own.
    """
    _refuse(kwargs, ("items", "command", "op_kwargs"), "@task.spot_map")
    return _decorate(_SpotMap, python_callable, multiple_outputs, kwargs)


def spot_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """``@task.spot``: one call of the decorated function runs on a machine; its result is the task's.

    Takes the arguments of ``@task.spot_map`` but those that are about many items.
    """
    _refuse(kwargs, ("items", "command", "op_kwargs", *OF_A_MAP), "@task.spot")
    return _decorate(_Spot, python_callable, multiple_outputs, kwargs)


@overload
def spot_map(python_callable: Callable[P, R], /) -> SpotTask[P, R]: ...
@overload
def spot_map(**arguments: Any) -> Callable[[Callable[P, R]], SpotTask[P, R]]: ...
def spot_map(python_callable: Callable[P, R] | None = None, /, **arguments: Any) -> Any:
    """``@task.spot_map`` with types."""
    return spot_map_task(python_callable, **arguments)


@overload
def spot(python_callable: Callable[P, R], /) -> SpotTask[P, R]: ...
@overload
def spot(**arguments: Any) -> Callable[[Callable[P, R]], SpotTask[P, R]]: ...
def spot(python_callable: Callable[P, R] | None = None, /, **arguments: Any) -> Any:
    """``@task.spot`` with types."""
    return spot_task(python_callable, **arguments)


def _decorate(
    operator: type[_Decorated],
    python_callable: Callable[..., Any] | None,
    multiple_outputs: bool | None,
    kwargs: dict[str, Any],
) -> Any:
    if multiple_outputs:
        raise InvalidInput("multiple_outputs means nothing here: the result is one value")

    def decorate(function: Callable[..., Any]) -> Any:
        # Mapped tasks are not bound before they run, so what is never passed is refused here.
        refuse_live(function, operator.passed_always(function))
        return task_decorator_factory(
            function, multiple_outputs=False, decorated_operator_class=operator, **kwargs
        )

    return decorate if python_callable is None else decorate(python_callable)


def _refuse(arguments: Mapping[str, Any], names: Sequence[str], decorator: str) -> None:
    given = sorted(set(arguments) & set(names))
    if given:
        raise InvalidInput(f"{decorator} does not take {', '.join(given)}")
