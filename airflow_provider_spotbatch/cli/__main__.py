"""``python -m airflow_provider_spotbatch.cli``."""

from __future__ import annotations

from airflow_provider_spotbatch.cli import program

program()
