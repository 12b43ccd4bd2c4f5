"""The operator's arguments: which are templates, and how the rest become a checked policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_spotbatch.items import Items
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources

WHOLE = ("item_retries", "concurrency", "early_stop")
SECONDS = ("item_timeout", "max_runtime", "poll_interval")
DOLLARS = ("budget_usd",)


def has_template(text: str) -> bool:
    """Whether a literal string is rendered at all."""
    return "{{" in text or "{%" in text


def known_at_parse_time(value: Any) -> bool:
    """Whether an argument's value is there before the task runs."""
    return not (isinstance(value, XComArg) or (isinstance(value, str) and has_template(value)))


def is_item_source(value: Any) -> bool:
    """Whether a value can be a list of items: texts, bytes and dicts are single values."""
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return False
    return isinstance(value, (Iterable, Items)) or callable(value)


def policy_from(arguments: Mapping[str, Any]) -> Policy:
    """The policy that these arguments ask for; numbers may be texts, times may be timedeltas.

    Raises InvalidInput naming the argument that is wrong.
    """
    return Policy(**{name: _read(name, value) for name, value in arguments.items()})


def policy_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an operator's arguments that make up its policy, under the policy's own names."""
    named = {**arguments, "resources": arguments["item_resources"] or Resources()}
    return {field.name: named[field.name] for field in fields(Policy)}


def _read(name: str, value: Any) -> Any:
    if name == "resources" and not isinstance(value, Resources):
        raise InvalidInput(f"item_resources must be Resources(cpus=…, memory_gb=…), not {value!r}")
    if name in SECONDS and isinstance(value, timedelta):
        return value.total_seconds()
    if name in (*WHOLE, *SECONDS, *DOLLARS) and isinstance(value, str):
        return _number(name, value, int if name in WHOLE else float)
    return value


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float | None:
    """A rendered template as a number; an empty one and ``None`` leave the argument unset."""
    if text.strip() in ("", "None"):
        return None
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InvalidInput(f"{name} must be {wanted}, not the text {text!r}") from None
