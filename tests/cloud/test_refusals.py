"""Whatever the cloud refuses, the task's log names the cure; what waiting cures is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment
from airflow_provider_spotbatch.backends.aws import clients
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet
from airflow_provider_spotbatch.control.controller import Controller
from airflow_provider_spotbatch.control.drive import drive
from airflow_provider_spotbatch.control.finish import finish
from airflow_provider_spotbatch.control.site import open_site
from airflow_provider_spotbatch.control.submit import JobRequest, submit
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_outcome import FAILED, SUCCEEDED, Outcome
from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE
from tests.support.fast_clock import FastClock
from tests.support.runs import REPOSITORY

CONN_ID = "spotbatch_default"
SPOT_STANDARD = "L-34B43A08"

Mood = Callable[[Cloudbox], None]
"""What the cloud refuses for a while."""


def all_pools(code: str) -> Mood:
    return lambda box: box.refuse_machines(code)


def whole_call(code: str) -> Mood:
    return lambda box: box.refuse("CreateFleet", code)


@dataclass
class Job:
    """One job of one item, driven to its end. ``seconds`` by its own clock."""

    outcome: Outcome
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0
    machines: int = 0

    def refused(self, code: str) -> list[str]:
        return [line for line in self.said if " was refused " in line and code in line]


class Jobs:
    """Jobs on one connection."""

    def __init__(self, box: Cloudbox) -> None:
        self._box = box
        self._number = 0

    def run(self, *moods: Mood, **policy: Any) -> Job:
        """A job that meets these moods one after the other, each until a launch was refused for it."""
        waiting = list(moods)
        said: list[str] = []

        def next_mood() -> None:
            self._box.relent()
            if waiting:
                waiting.pop(0)(self._box)

        def say(line: str) -> None:
            said.append(line)
            if line.startswith("launch ") and " was refused " in line:
                next_mood()

        next_mood()
        before = len(self._box.instances())
        clock = FastClock(lambda: bool(self._box.machines()))
        began = clock.now()
        outcome = asyncio.run(self._driven(clock, say, policy))
        return Job(outcome, said, clock.now() - began, len(self._box.instances()) - before)

    async def _driven(self, clock: FastClock, say: Callable[[str], None], policy: dict[str, Any]) -> Outcome:
        site = clock.around(open_site(SpotBatchHook(CONN_ID).get_settings()))
        submitted = await submit(site, self._request(policy), say)
        assert submitted.run is not None
        await drive(Controller(site, submitted.run, say), say, sleep=clock.sleep)
        return await finish(site, submitted.run, say)

    def _request(self, policy: dict[str, Any]) -> JobRequest:
        self._number += 1
        packing = Packing(
            function=None,
            dotted=None,
            command=["true"],
            kwargs={},
            call="item",
            environment=Environment(),
            bundle=str(REPOSITORY),
            name="true",
        )
        resources = Resources(architectures=(ARCHITECTURE,))
        names = ("tests", "dag", "run", f"task_{self._number}", -1, 0, "")
        return JobRequest(
            *names, packing, [0], Policy(**{"concurrency": 1, "resources": resources, **policy})
        )


@pytest.fixture(scope="module")
def account(running_box: Cloudbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.getbasetemp() / "airflow"))
        patch.setattr(Ec2Fleet, "visibility_bound", 0.0)  # the box's listings are not late
        patch.setattr(clients, "ATTEMPTS", 1)  # the SDK's own pauses between tries are real seconds
        for name, connection in connections(running_box, make_account(running_box, "refusals")).items():
            patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        yield Jobs(running_box)


@pytest.fixture
def jobs(account: Jobs, box: Cloudbox) -> Jobs:
    """Of a box that refuses nothing at first."""
    return account


PASSING = {
    "InsufficientInstanceCapacity": (all_pools, "Other types and zones are tried"),
    "UnfulfillableCapacity": (all_pools, "more subnets in other zones"),
    "InsufficientFreeAddressesInSubnet": (all_pools, "'subnets' of the connection"),
    "Unsupported": (all_pools, "not to be had in this zone: others are tried"),
    "MaxSpotInstanceCountExceeded": (
        all_pools,
        f"request-service-quota-increase --service-code ec2 --quota-code {SPOT_STANDARD}",
    ),
    "VcpuLimitExceeded": (
        all_pools,
        f"request-service-quota-increase --service-code ec2 --quota-code {SPOT_STANDARD}",
    ),
    "RequestLimitExceeded": (whole_call, "asked again, less often"),
}
"""Codes that waiting may cure: how the box refuses, and what the log says would cure it."""


@pytest.fixture(scope="module")
def patient(account: Jobs) -> Job:
    """A job that met each of these codes, one after the other."""
    return account.run(*(how(code) for code, (how, _) in PASSING.items()))


class TestRefusalsThatPass:
    @pytest.mark.parametrize("code", PASSING)
    def test_the_line_of_the_log_names_the_cure(self, patient: Job, code: str) -> None:
        [line] = patient.refused(code)
        assert PASSING[code][1] in line

    def test_the_job_runs_in_the_end(self, patient: Job) -> None:
        assert patient.outcome.state == SUCCEEDED, patient.outcome.message
        assert patient.machines == 1


FATAL = {
    "UnauthorizedOperation": (whole_call, "iam:PassRole"),
    "InvalidAMIID.NotFound": (all_pools, "'image' of the connection"),
    "InvalidGroup.NotFound": (all_pools, "'security_groups' of the connection"),
    "InvalidParameterValue": (all_pools, "'instance_profile'"),
}
"""Codes that waiting does not cure."""


class TestRefusalsThatDoNotPass:
    @pytest.mark.parametrize("code", FATAL)
    def test_the_job_fails_at_once_and_for_good_and_names_the_cure(self, jobs: Jobs, code: str) -> None:
        how, cure = FATAL[code]
        job = jobs.run(how(code))
        assert (job.outcome.state, job.outcome.retryable, job.machines) == (FAILED, False, 0)
        assert cure in job.outcome.message
        [line] = job.refused(code)
        assert cure in line
