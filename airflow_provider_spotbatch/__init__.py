"""Run a function over many items on spot machines from an Airflow DAG.

Importing this package imports nothing else: the public names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_provider_spotbatch.decorators import spot, spot_map
    from airflow_provider_spotbatch.environment.environment import Environment
    from airflow_provider_spotbatch.items import Items
    from airflow_provider_spotbatch.job.context import item_context
    from airflow_provider_spotbatch.job.resources import Resources
    from airflow_provider_spotbatch.operators import SpotMapOperator
    from airflow_provider_spotbatch.results import ItemFailure, MapResult

__all__ = [
    "Environment",
    "ItemFailure",
    "Items",
    "MapResult",
    "Resources",
    "SpotMapOperator",
    "item_context",
    "spot",
    "spot_map",
]

_HOMES = {
    "Environment": "environment.environment",
    "ItemFailure": "results",
    "Items": "items",
    "MapResult": "results",
    "Resources": "job.resources",
    "SpotMapOperator": "operators",
    "item_context": "job.context",
    "spot": "decorators",
    "spot_map": "decorators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def get_provider_info() -> dict[str, Any]:
    """What Airflow asks of a provider; filled in by :mod:`airflow_provider_spotbatch.provider_info`."""
    from airflow_provider_spotbatch.provider_info import PROVIDER_INFO

    return PROVIDER_INFO
