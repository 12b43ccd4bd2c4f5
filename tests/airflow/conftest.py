"""The fixtures of tests that run DAGs."""

from tests.airflow.dag_runs import add_dags, clear, dag_bag, days, run_dag

__all__ = ["add_dags", "clear", "dag_bag", "days", "run_dag"]
