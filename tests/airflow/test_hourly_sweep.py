"""The example DAG that sweeps, on a machine that outlived its run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from airflow_provider_spotbatch.backends.local import LocalBackend
from airflow_provider_spotbatch.control.site import Site, open_site
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.launches import TERMINATED, LaunchRecord
from tests.airflow.ran import RunDag

OVER = Run(Generation("over-0123456789abcdef", 1), 1)


@pytest.fixture
def site() -> Iterator[Site]:
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


def test_the_example_dag_ends_what_outlived_its_run(run_dag: RunDag, site: Site) -> None:
    machine = asyncio.run(leave_a_machine(site))
    ran = run_dag("hourly_sweep")
    assert set(ran.states.values()) == {"success"}
    states = {m.instance.id: m.instance.state for m in asyncio.run(site.backend.machines())}
    assert states[machine] == TERMINATED
    (ti,) = ran.run.get_task_instances()
    assert ti.xcom_pull(task_ids="sweep")["machines"] == 1
