"""What a mapped function's parameters say: which takes the item, which Airflow's context fills."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_spotbatch.job.errors import InvalidInput

FILLED = frozenset(
    {
        "ds",
        "ds_nodash",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "run_id",
        "logical_date",
        "data_interval_start",
        "data_interval_end",
        "params",
    }
)
"""Context values that are plain data and the same for every try of a task instance."""

LIVE = frozenset({"ti", "task_instance", "task", "dag", "dag_run"})
"""Context values that exist inside Airflow only."""

_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, or None for a callable that shows none (some are written in C)."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def item_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that takes the item: the first; None if it is not known.

    Raises InvalidInput for a function that takes nothing by position, or is async.
    """
    refuse_async(function)
    signature = signature_of(function)
    if signature is None:
        return None
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind not in _BY_POSITION:
        raise InvalidInput(f"{_name(function)} must take the item as its first argument, by position")
    return first.name


def refuse_async(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{_name(function)} is async: it must be a plain function")


def check_parameters(function: Callable[..., Any], given: Collection[str]) -> None:
    """Refuse, before anything runs, parameters that nothing could fill.

    ``given``: names that are passed, the item's among them.
    """
    signature = signature_of(function)
    if signature is None:
        return
    named = {name: p for name, p in signature.parameters.items() if p.kind in _NAMED}
    refuse_live(function, given)
    missing = [
        name
        for name, parameter in named.items()
        if parameter.default is inspect.Parameter.empty and name not in given and name not in FILLED
    ]
    if missing:
        raise InvalidInput(f"{_name(function)} needs {', '.join(missing)}, which nothing passes")
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    unknown = sorted(set(given) - set(signature.parameters))
    if unknown and not takes_all:
        raise InvalidInput(f"{_name(function)} has no parameter named {', '.join(unknown)}")


def refuse_live(function: Callable[..., Any], given: Collection[str]) -> None:
    """Refuse parameters that ask for the task instance and its like."""
    signature = signature_of(function)
    asked = sorted(name for name in LIVE if signature and name in signature.parameters and name not in given)
    if asked:
        raise InvalidInput(
            f"{_name(function)} asks for {', '.join(asked)} of Airflow's context, which exists only inside "
            "Airflow, not on the machines: pass what it needs of it as arguments, "
            f"or use {', '.join(sorted(FILLED))}"
        )


def context_values(
    function: Callable[..., Any], given: Collection[str], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Values for the parameters that are named like a context value and were not passed.

    Dates come as ``datetime`` in UTC, parameters as a dict. Raises InvalidInput where the DAG run has
    no such value and the function has no default for it.
    """
    signature = signature_of(function)
    if signature is None:
        return {}
    values: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name not in FILLED or name in given or parameter.kind not in _NAMED:
            continue
        value = context.get(name) if name in KNOWN_CONTEXT_KEYS else None
        if value is not None:
            values[name] = _plain(value)
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidInput(f"{_name(function)} asks for {name!r}, which this DAG run does not have")
    return values


def _plain(value: Any) -> Any:
    """The value without Airflow's own classes, which a machine may not have."""
    if isinstance(value, datetime):
        return datetime.fromtimestamp(value.timestamp(), tz=timezone.utc)
    return dict(value) if isinstance(value, Mapping) else value


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', None) or repr(function)}()"
