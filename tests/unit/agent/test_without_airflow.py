"""The agent needs no Airflow, nor any part of the package that does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.jobs import function_job, value_of

FORBIDDEN = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow" or name.startswith(
            ("airflow_provider_spotbatch.control", "airflow_provider_spotbatch.environment")
        ):
            raise ImportError(f"the agent imported {name}")

sys.meta_path.insert(0, Forbidden())
"""


def test_a_chunk_runs_end_to_end_where_importing_airflow_raises(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FORBIDDEN)
    job = function_job(tmp_path, lambda x: x + 1, [1, 2])
    asyncio.run(job.submit())
    agent = job.start_agent(PYTHONPATH=str(tmp_path / "site"))
    _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 0, errors.decode()
    assert [value_of(outcome) for outcome in asyncio.run(job.outcomes())] == [2, 3]


def test_the_trap_works(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FORBIDDEN)
    job = function_job(tmp_path, lambda x: __import__("airflow"), [1])
    asyncio.run(job.submit())
    agent = job.start_agent(PYTHONPATH=str(tmp_path / "site"))
    agent.communicate(timeout=60)
    (outcome,) = asyncio.run(job.outcomes())
    assert b"the agent imported airflow" in outcome.value
