"""From an asking to the first item on a machine of the cloudbox, in parts."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from dataclasses import dataclass

from airflow_provider_spotbatch import Resources
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.policy import Policy
from benchmarks.boot_clock import started_at
from benchmarks.job import run_job, submit_job
from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE

BOOTS = 3
"""Jobs that are measured, one after another, after one that has the environments built and stored."""


@dataclass(frozen=True)
class Boot:
    """Seconds: from the submission to the machine's first process (submitting, the call, and what the box
    takes for a machine; EC2 takes half a minute), to the boot program, to the agent, to its first worker,
    to the item."""

    machine: float
    boot_program: float
    agent: float
    worker: float
    item: float


def boots() -> Boot:
    """The median of each part."""
    with Cloudbox() as box:
        found = connections(box, make_account(box))
        for name, connection in found.items():
            os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(connection)
        settings = SpotBatchHook("spotbatch_default").get_settings()
        _boot(settings, "first")
        measured = [_boot(settings, f"boot {number}") for number in range(BOOTS)]
    return Boot(*(statistics.median(parts) for parts in zip(*measured, strict=True)))


def _boot(settings: Settings, run_id: str) -> tuple[float, ...]:
    policy = Policy(concurrency=1, resources=Resources(architectures=(ARCHITECTURE,)))
    began = time.time()
    [at] = run_job(settings, submit_job(settings, started_at, [0], policy, run_id))
    moments = [began, at["machine"], at["boot program"], at["agent"], at["worker"], at["item"]]
    return tuple(later - earlier for earlier, later in itertools.pairwise(moments))
