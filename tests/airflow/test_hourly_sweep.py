"""The example DAG that sweeps and cleans, on a machine that outlived its run and an old job."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.local import LocalBackend
from airflow_provider_spotbatch.control.site import Site, open_site
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import TERMINATED, LaunchRecord
from tests.airflow.ran import RunDag

OLD = Generation("old-0123456789abcdef", 1)
OVER = Run(Generation("over-0123456789abcdef", 1), 1)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site of its own, whose jobs are kept for no time at all."""
    extra = {"path": str(tmp_path / "root"), "retention_days": 1e-7}
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPOTBATCH_DEFAULT", json.dumps({"conn_type": "spotbatch", "extra": extra})
    )
    site = open_site(SpotBatchHook().get_settings())
    yield site
    asyncio.run(_end_all(site))


async def _end_all(site: Site) -> None:
    await site.backend.terminate([machine.instance.id for machine in await site.backend.machines()])


async def leave_a_machine(site: Site) -> str:
    """A machine whose run has an outcome already; its agent ends by nothing of its own."""
    assert isinstance(site.backend, LocalBackend)
    site.backend.agent_command = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    boot = Boot("local", site.store.uri, OVER.generation.job, 1, 1, "")
    launched = await site.backend.fleet(OVER, boot).launch(LaunchRecord(1, slots=(1,), token="t"))
    await site.store.create(OVER.outcome, b"{}")
    return launched.instances[0].id


def test_the_example_dag_ends_what_outlived_its_run_and_removes_what_is_old(
    run_dag: RunDag, site: Site
) -> None:
    machine = asyncio.run(leave_a_machine(site))
    asyncio.run(site.store.write(OLD.spec, b"{}"))
    ran = run_dag("hourly_sweep")
    assert set(ran.states.values()) == {"success"}
    states = {m.instance.id: m.instance.state for m in asyncio.run(site.backend.machines())}
    assert states[machine] == TERMINATED
    ti = ran.run.get_task_instances()[0]
    assert ti.xcom_pull(task_ids="sweep")["machines"] == 1
    assert ti.xcom_pull(task_ids="clean") == 1
    assert not asyncio.run(site.store.exists(OLD.spec))
