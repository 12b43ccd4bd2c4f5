"""The Airflow plugin. Every Airflow process loads it, so it imports little."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin


class SpotBatchPlugin(AirflowPlugin):
    """Makes results readable from XComs in processes that import nothing else of this package."""

    name = "spotbatch"

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        from airflow_provider_spotbatch.results import ItemFailure, MapResult
        from airflow_provider_spotbatch.xcom import allow_from_xcom

        allow_from_xcom(MapResult, ItemFailure)
