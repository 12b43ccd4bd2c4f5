"""Whatever the cloud refuses, the task's log names the cure; what waiting cures is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_spotbatch import Environment, SpotMapOperator
from airflow_provider_spotbatch.backends.aws import clients, instances
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
from tests.cloud.cloudbox.refusals import MESSAGES
from tests.support.fast_clock import FastClock
from tests.support.runs import REPOSITORY

CONN_ID = "spotbatch_default"
RESOURCES = Resources(architectures=(ARCHITECTURE,), instance_types=("m5.large", "m6g.large"))
"""Few pools: each refusal of one takes the box some milliseconds."""

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

    def __init__(self, box: Cloudbox, connections: dict[str, dict[str, Any]]) -> None:
        self._box = box
        self.connections = connections
        self._number = 0

    def run(
        self,
        *moods: Mood,
        until: float | None = None,
        command: Sequence[str] = ("true",),
        on_line: Callable[[str, Cloudbox], None] = lambda line, box: None,
        **policy: Any,
    ) -> Job:
        """A job that meets these moods one after the other, each until a launch was refused for it, or
        the last of them ``until`` so many seconds have passed. ``on_line`` is told each line of its log."""
        waiting = list(moods)
        said: list[str] = []
        clock = FastClock(lambda: bool(self._box.machines()))
        began = clock.now()

        def next_mood() -> None:
            self._box.relent()
            if waiting:
                waiting.pop(0)(self._box)

        def say(line: str) -> None:
            said.append(line)
            on_line(line, self._box)
            refused = line.startswith("launch ") and " was refused " in line
            if refused if until is None else clock.now() - began > until:
                next_mood()

        next_mood()
        before = len(self._box.instances())
        outcome = asyncio.run(self._driven(clock, say, self._request(command, policy)))
        return Job(outcome, said, clock.now() - began, len(self._box.instances()) - before)

    def refused_before_any_launch(self, **connection: Any) -> str:
        """What the task fails with, for good, as its operator is run. ``connection``: changed fields."""
        before = len(self._box.instances())
        self._number += 1
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _changed(self.connections, connection).items():
                patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(value))
            with pytest.raises(AirflowFailException) as failed:
                self._operator().execute(_context(f"task_{self._number}"))
        assert len(self._box.instances()) == before
        return str(failed.value)

    def _operator(self) -> SpotMapOperator:
        with DAG("dag", schedule=None):
            return SpotMapOperator(
                task_id="task", command=["true"], items=[0], item_resources=RESOURCES, deferrable=False
            )

    async def _driven(self, clock: FastClock, say: Callable[[str], None], request: JobRequest) -> Outcome:
        site = clock.around(open_site(SpotBatchHook(CONN_ID).get_settings()))
        submitted = await submit(site, request, say, sleep=clock.sleep)
        assert submitted.run is not None
        await drive(Controller(site, submitted.run, say), say, sleep=clock.sleep)
        return await finish(site, submitted.run, say)

    def _request(self, command: Sequence[str], policy: dict[str, Any]) -> JobRequest:
        self._number += 1
        packing = Packing(
            function=None,
            dotted=None,
            command=list(command),
            kwargs={},
            call="item",
            environment=Environment(),
            bundle=str(REPOSITORY),
            name="true",
        )
        names = ("tests", "dag", "run", f"task_{self._number}", -1, 0, "")
        return JobRequest(
            *names, packing, [0], Policy(**{"concurrency": 1, "resources": RESOURCES, **policy})
        )


def _changed(connections: dict[str, dict[str, Any]], fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The connections with other fields of the job's extra, or of Amazon's by ``aws_…``."""
    amazon, jobs = dict(connections["aws_cloudbox"]), dict(connections[CONN_ID])
    for name, value in fields.items():
        if name in ("login", "password"):
            amazon[name] = value
        else:
            jobs["extra"] = {**jobs["extra"], name: value}
    return {"aws_cloudbox": amazon, CONN_ID: jobs}


def _context(task_id: str) -> Any:
    """What a task's process knows of itself."""
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id=task_id,
        map_index=-1,
        max_tries=0,
        id="ti",
        is_mapped=False,
        xcom_push=lambda **_: None,
    )
    dag = SimpleNamespace(fileloc=__file__)
    return {"ti": ti, "dag": dag, "dag_run": SimpleNamespace(start_date="then")}


@pytest.fixture(scope="module")
def account(running_box: Cloudbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.getbasetemp() / "airflow"))
        patch.setattr(Ec2Fleet, "visibility_bound", 0.0)  # the box's listings are not late
        patch.setattr(instances, "FRESH_SECONDS_MOST", 0.0)  # nothing is known from the job before
        patch.setattr(clients, "ATTEMPTS", 1)  # the SDK's own pauses between tries are real seconds
        there = connections(running_box, make_account(running_box, "refusals"))
        for name, connection in there.items():
            patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        yield Jobs(running_box, there)


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


class TestWhatIsKnownBeforeAnyLaunch:
    """The task fails for good, with the cure, and no machine was started."""

    def test_the_bucket_may_not_be_written(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("PutObject", "AccessDenied")
        assert "Allow s3:PutObject on s3://refusals/spotbatch" in jobs.refused_before_any_launch()

    def test_the_buckets_own_key_may_not_be_used(
        self, jobs: Jobs, box: Cloudbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = "arn:aws:kms:us-east-2:123456789012:key/1234"
        denied = f"User: u is not authorized to perform: kms:GenerateDataKey on resource: {key} because no"
        monkeypatch.setitem(MESSAGES, "AccessDenied", denied)
        box.refuse("PutObject", "AccessDenied")
        assert f"Allow kms:GenerateDataKey on the bucket's own key {key}" in jobs.refused_before_any_launch()

    def test_the_bucket_may_not_be_read(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("GetObject", "AccessDenied")
        assert "Allow s3:GetObject and s3:ListBucket on s3://refusals/spotbatch" in (
            jobs.refused_before_any_launch()
        )

    def test_there_is_no_bucket(self, jobs: Jobs) -> None:
        told = jobs.refused_before_any_launch(store="s3://never-made/spotbatch")
        assert "there is no bucket of the store s3://never-made/spotbatch: make it" in told

    def test_queues_may_not_be_made(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("CreateQueue", "AccessDenied")
        assert "Allow sqs:CreateQueue and sqs:TagQueue" in jobs.refused_before_any_launch()

    def test_work_may_not_be_sent(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("SendMessageBatch", "AccessDenied")
        assert "Allow sqs:SendMessage" in jobs.refused_before_any_launch()

    def test_templates_may_not_be_made(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("CreateLaunchTemplate", "UnauthorizedOperation")
        assert "Allow ec2:CreateLaunchTemplate" in jobs.refused_before_any_launch()

    def test_machines_may_not_be_looked_at(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("DescribeInstances", "UnauthorizedOperation")
        assert "Allow ec2:DescribeInstances" in jobs.refused_before_any_launch()

    def test_there_is_no_image(self, jobs: Jobs) -> None:
        told = jobs.refused_before_any_launch(image="ami-00000000000000000")
        assert "Correct 'image' of the connection" in told

    def test_an_image_parameter_may_not_be_read(self, jobs: Jobs, box: Cloudbox) -> None:
        box.refuse("GetParameter", "AccessDeniedException")
        assert "Allow ssm:GetParameter" in jobs.refused_before_any_launch(image="/our/own/image")

    def test_there_is_no_subnet(self, jobs: Jobs) -> None:
        told = jobs.refused_before_any_launch(subnets="subnet-00000000000000000")
        assert "Correct 'subnets' of the connection" in told

    def test_there_is_no_instance_profile(self, jobs: Jobs) -> None:
        told = jobs.refused_before_any_launch(instance_profile="never-made")
        assert "'instance_profile' of the connection" in told

    @pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
    def test_the_store_refuses_the_credentials(self, jobs: Jobs, box: Cloudbox, code: str) -> None:
        box.refuse("GetObject", code)
        told = jobs.refused_before_any_launch()
        assert code in told
        assert "Give the connection valid credentials for its store ('aws_conn_id' on AWS)" in told

    @pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "AuthFailure"])
    def test_ec2_refuses_the_credentials(self, jobs: Jobs, box: Cloudbox, code: str) -> None:
        box.refuse("Describe*", code)
        told = jobs.refused_before_any_launch()
        assert code in told
        assert "Renew the credentials that 'aws_conn_id' of the connection leads to" in told

    def test_there_are_no_credentials(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        told = jobs.refused_before_any_launch(login=None, password=None, store="s3://refusals/of-another")
        assert "Give the connection valid credentials for its store ('aws_conn_id' on AWS)" in told


class TestQuotas:
    def test_a_spot_quota_of_nothing_fails_within_one_tick(self, jobs: Jobs) -> None:
        """Case 13."""

        def nothing(box: Cloudbox) -> None:
            box.set_quota(SPOT_STANDARD, 0)
            box.refuse_machines("MaxSpotInstanceCountExceeded")

        job = jobs.run(nothing)
        assert (job.outcome.state, job.outcome.retryable, job.machines) == (FAILED, False, 0)
        assert len(job.refused("MaxSpotInstanceCountExceeded")) == 1
        assert f"now 0, is {SPOT_STANDARD}" in job.outcome.message
        assert f"--quota-code {SPOT_STANDARD} --desired-value 64 --region" in job.outcome.message


def no_capacity(box: Cloudbox) -> None:
    box.refuse_machines("InsufficientInstanceCapacity")


class TestNoCapacity:
    """Case 12."""

    def test_after_ten_minutes_the_job_runs_and_had_told_what_it_waited_for(self, jobs: Jobs) -> None:
        job = jobs.run(no_capacity, until=600.0)
        assert job.outcome.state == SUCCEEDED, job.outcome.message
        assert job.seconds > 600.0
        assert job.machines == 1
        waits = [line for line in job.said if "waiting for machines: " in line]
        assert waits
        assert all("There is no Spot capacity" in line and "more subnets" in line for line in waits)

    def test_with_a_shorter_max_runtime_it_fails_with_the_reason(self, jobs: Jobs) -> None:
        job = jobs.run(no_capacity, until=600.0, max_runtime=300.0)
        assert (job.outcome.state, job.machines) == (FAILED, 0)
        assert "max_runtime (300 s) is over" in job.outcome.message
        assert "There is no Spot capacity" in job.outcome.message

    def test_spot_then_on_demand_buys_on_demand_after_a_wait(self, jobs: Jobs) -> None:
        def no_spot(box: Cloudbox) -> None:
            box.set_quota(SPOT_STANDARD, 0)
            box.refuse_machines("MaxSpotInstanceCountExceeded", times=1)

        job = jobs.run(no_spot, purchase="spot-then-on-demand")
        assert job.outcome.state == SUCCEEDED, job.outcome.message
        assert job.machines == 1


class TestThrottling:
    """Case 11."""

    def test_describe_refused_for_two_minutes_before_a_launch_neither_fails_nor_doubles(
        self, jobs: Jobs
    ) -> None:
        job = jobs.run(lambda box: box.refuse("Describe*", "RequestLimitExceeded"), until=120.0)
        assert job.outcome.state == SUCCEEDED, job.outcome.message
        assert job.seconds > 120.0
        assert job.machines == 1

    def test_describe_refused_while_a_machine_works_neither_fails_nor_doubles(self, jobs: Jobs) -> None:
        def once_at_work(line: str, box: Cloudbox) -> None:
            if " is at work, " in line:
                box.refuse("DescribeInstances", "RequestLimitExceeded", seconds=4.0)

        job = jobs.run(command=["sleep", "3"], on_line=once_at_work)
        assert job.outcome.state == SUCCEEDED, job.outcome.message
        assert job.machines == 1
