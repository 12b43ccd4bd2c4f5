"""The walks over the boundaries on the aws backend: EC2, SQS and S3 are moto's, agents run in this process.

``SPOTBATCH_BOUNDARIES=full`` walks over every boundary besides, one at a time: about six minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from airflow_provider_spotbatch.backends.aws import instances
from airflow_provider_spotbatch.job.policy import Policy
from tests.cloud.cloudbox.moto import Moto
from tests.property.aws_simulation import AwsSimulation
from tests.property.boundaries import AFTER, BEFORE
from tests.property.scripted import Script
from tests.property.walks import Story, cancelling, driving, finishing, taking_over, walk, walk_once
from tests.support.aws import AMAZON_LINUX, REGION, aws_settings, one_pool

FULL = os.environ.get("SPOTBATCH_BOUNDARIES") == "full"

SCRIPT = Script(failures={1: ["error"]}, seconds=(3.0, 7.0, 20.0))


@pytest.fixture
def simulation(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AwsSimulation]:
    monkeypatch.setattr(instances, "FRESH_SECONDS", 0.0)  # of real time, in which hours go by here
    account, request = (
        aws_settings(moto, "boundaries"),
        one_pool(moto.client("ec2", REGION), AMAZON_LINUX[0].id),
    )
    policy = Policy(concurrency=4, early_stop=None)
    settings = {"idle_timeout": 3600.0}  # it is controllers who end machines here
    return lambda: AwsSimulation(
        moto, account, request, items=5, script=SCRIPT, policy=policy, settings=settings
    )


def test_killed_around_each_call(simulation: Callable[[], AwsSimulation]) -> None:
    walked: set[str] = set()
    walk_once(simulation, driving, walked)
    walk_once(simulation, finishing, walked)
    walk_once(simulation, cancelling, walked, complete=False)
    walk_once(simulation, taking_over, walked)
    calls = {name.split()[0] for name in walked}
    assert {"QueueHere.send", "QueueHere.delete", "FleetHere.launch", "FleetHere.terminate"} <= calls
    assert {"FleetHere.close", "MirroredStore.create", "MirroredStore.write"} <= calls


@pytest.mark.skipif(not FULL, reason="SPOTBATCH_BOUNDARIES=full")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("story", [driving, finishing, cancelling, taking_over])
def test_killed_at_every_boundary(simulation: Callable[[], AwsSimulation], story: Story, when: str) -> None:
    assert walk(simulation, story, when, complete=story is not cancelling) >= 3
