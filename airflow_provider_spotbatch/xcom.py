"""Lets Airflow read this package's classes back from XComs: its allow-list knows only its own."""

from __future__ import annotations


def allow_from_xcom(*classes: type) -> None:
    """Allow ``classes`` for deserialization in this process; nothing happens where Airflow is absent."""
    try:
        from airflow.sdk.serde import allow_class
    except ImportError:
        _allow_before_3_3(*classes)
        return
    for cls in classes:
        allow_class(cls)


def _allow_before_3_3(*classes: type) -> None:
    """Airflow 3.1 and 3.2 have the list, but no function to add to it."""
    from importlib import import_module

    for module in ("airflow.sdk.serde", "airflow.serialization.serde"):
        try:
            allowed = import_module(module)._extra_allowed
        except (ImportError, AttributeError):
            continue
        allowed.update(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)
