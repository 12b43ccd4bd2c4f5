"""Pickles functions and classes of travelling modules by value, under their stable module names.

Built on cloudpickle, whose choice between value and reference is global to the process; here it
is the pickler's own, so that nothing is left behind and threads do not meet.
"""

from __future__ import annotations

import functools
import operator
import pickle
import typing
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from airflow_provider_spotbatch.environment.imports import globals_of
from airflow_provider_spotbatch.environment.modules import Modules
from airflow_provider_spotbatch.job.context import ItemContext

_AIRFLOW_OBJECTS = frozenset({"DAG", "DAGNode", "XComArg", "MappedOperator"})


@dataclass
class Seen:
    """What a pickling met: names of the modules needed, code that travels, and the named classes
    and functions that travel, by real module name and qualified name."""

    modules: set[str] = field(default_factory=set)
    codes: dict[CodeType, None] = field(default_factory=dict)
    definitions: dict[tuple[str, str], Any] = field(default_factory=dict)


def is_named(definition: Any) -> bool:
    """Whether a class or function can be found by its qualified name."""
    return "<" not in definition.__qualname__  # <locals> and <lambda>


def undecorated(value: Any) -> Any:
    """The function below Airflow's ``@task…``, or None if ``value`` is no such task."""
    kind = type(value)
    if kind.__name__ == "_TaskDecorator" and kind.__module__.startswith("airflow."):
        return value.function
    return None


def belongs_to_dag(kind: type) -> bool:
    """Whether instances are Airflow's: DAGs, operators, task groups, results not yet there."""
    return any(
        base.__module__.startswith("airflow.") and base.__name__ in _AIRFLOW_OBJECTS for base in kind.__mro__
    )


def by_value_pickler(modules: Modules, seen: Seen) -> type[Any]:
    """A pickler class that writes travelling modules by value and notes in ``seen`` what it met.

    Raises pickle.PicklingError or whatever the object's own reduction raises.
    """

    class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type):
                return self._of_class(obj)
            kind = type(obj)
            if kind is FunctionType:
                return self._of_function(obj)
            if kind is CodeType:
                return self._of_code(obj)
            if isinstance(obj, ModuleType):
                return self._of_module(obj)
            if kind is ItemContext:
                return "item_context"
            if kind is functools.cached_property:
                # Without the lock that it holds before Python 3.12, and makes anew.
                attributes = {name: value for name, value in vars(obj).items() if name != "lock"}
                return kind, (obj.func,), attributes
            function = undecorated(obj)
            if function is not None:
                return operator.getitem, ((function,), 0)
            if belongs_to_dag(kind):
                raise pickle.PicklingError(
                    f"an Airflow {kind.__name__} belongs to the DAG and cannot travel to a machine"
                )
            if kind is typing.TypeVar or kind not in self.dispatch_table:
                named_in = getattr(obj, "__module__", None)
                if modules.travels(named_in) and named_in != kind.__module__:
                    return _of_named_object(obj)
            return super().reducer_override(obj)

        def _note(self, module: Any) -> None:
            if isinstance(module, str):
                seen.modules.add(module)

        def _of_class(self, cls: Any) -> Any:
            self._note(cls.__module__)
            if not modules.travels(cls.__module__):
                return super().reducer_override(cls)
            reduced = cloudpickle._dynamic_class_reduce(cls)
            if not is_named(cls):
                # cloudpickle's own tracking keeps one copy of it per process.
                return reduced
            seen.definitions.setdefault((cls.__module__, cls.__qualname__), cls)
            return _under_stable_name(reduced, modules.stable(cls.__module__))

        def _of_function(self, function: FunctionType) -> Any:
            module = function.__module__
            self._note(module)
            if not modules.travels(module):
                return super().reducer_override(function)
            if is_named(function):
                seen.definitions.setdefault((module, function.__qualname__), function)
            make, arguments, (attributes, slots), *rest = self._dynamic_function_reduce(function)
            stable = modules.stable(module)
            arguments[1]["__name__"] = stable
            slots["__module__"] = stable
            for name in globals_of(function.__code__):
                if name in function.__globals__:
                    slots["__globals__"].setdefault(name, function.__globals__[name])
            return (make, arguments, (attributes, slots), *rest)

        def _of_code(self, code: CodeType) -> Any:
            seen.codes[code] = None
            make, arguments = cloudpickle._code_reduce(code)
            # The file's name makes tracebacks readable; cloudpickle leaves it out.
            shown = modules.below_bundle(code.co_filename)
            return make, tuple(
                shown if type(part) is str and part == "<dynamic-code>" else part for part in arguments
            )

        def _of_module(self, module: ModuleType) -> Any:
            self._note(module.__name__)
            if modules.travels(module.__name__):
                raise pickle.PicklingError(
                    f"the module object {module.__name__} cannot travel: use names imported from it"
                )
            return super().reducer_override(module)

    return ByValuePickler


def _under_stable_name(reduced: tuple[Any, ...], stable: str) -> tuple[Any, ...]:
    """A reduced class with another module name, and without cloudpickle's random tracking id."""
    make, arguments, (attributes, slots), *rest = reduced
    if make is cloudpickle._make_skeleton_enum:
        bases, name, qualname, members, _, _, extra = arguments
        arguments = (bases, name, qualname, members, stable, None, extra)
    else:
        metaclass, name, bases, keywords, _, extra = arguments
        arguments = (metaclass, name, bases, {**keywords, "__module__": stable}, None, extra)
    return (make, arguments, ({**attributes, "__module__": stable}, slots), *rest)


def _of_named_object(obj: Any) -> Any:
    """Objects that pickle would write as a global of a module that exists on no machine."""
    if isinstance(obj, functools._lru_cache_wrapper):
        parameters = obj.cache_parameters()
        attributes = {name: value for name, value in vars(obj).items() if name != "cache_parameters"}
        return (
            functools._lru_cache_wrapper,
            (obj.__wrapped__, parameters["maxsize"], parameters["typed"], functools._CacheInfo),
            attributes,
        )
    if isinstance(obj, typing.NewType):
        return typing.NewType, (obj.__name__, obj.__supertype__)
    if isinstance(obj, typing.TypeVar):
        return cloudpickle._make_typevar, (*cloudpickle._decompose_typevar(obj)[:-1], None)
    if isinstance(obj, typing.ParamSpec):
        return typing.ParamSpec, (obj.__name__,)
    if isinstance(obj.__reduce_ex__(4), str):
        raise pickle.PicklingError("it is known by its name in the DAG file only: define it in a module")
    return NotImplemented
