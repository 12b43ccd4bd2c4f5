"""A whole fleet under interruptions; and what ends machines when all of Airflow is gone, or the budget is.

One story in one box, told once: 500 items on 8 machines that meet with everything at once, and beside them
three smaller jobs, each for a way to end. The tests look at what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import MapResult
from airflow_provider_spotbatch.backends.aws.instances import PRICE_TAG, RUN_TAG, tags_of
from airflow_provider_spotbatch.control.site import Site, open_site
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.keys import Run, launch_entry
from airflow_provider_spotbatch.job.launches import LaunchRecord
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import RUNNING, Report
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_outcome import FAILED, SUCCEEDED
from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE
from tests.cloud.cloudbox.listings import RECLAIMED
from tests.support.machine_work import wait
from tests.support.task_process import TaskProcess

CONN_ID = "interruptions"
MACHINE_TYPE = "m5.large"
"""Two processors and 8 GB."""

ITEMS = 500
ITEM_SECONDS = 2.4
MACHINES = 8
SLOTS = 2
CONCURRENCY = MACHINES * SLOTS
FROZEN_SECONDS = 40.0
"""Longer than a lease of 30 s: what the machine has in hand is run elsewhere, too."""

CUT_SECONDS = 60.0
NOTICE_SECONDS = 120.0

FOR_EVER = 599.0
ORPHAN_AFTER = 20.0
LOOK_SECONDS = 10.0
"""How often an agent looks whether its controller lives."""

KILL_SECONDS = 3.0
"""Until when a controller is killed whose machines have come."""

MAX_RUNTIME = 62.0
BUDGET_SECONDS = 63.0
"""Machine time that a small job's budget pays for: a machine is not asked for to live less than 60 s."""

TICK_SECONDS = 15.0
"""Longest pause between two looks of a controller, ``poll_interval``."""

SAME_TICK_SECONDS = 5.0
"""What a tick may take that sends hundreds of messages to an emulator; the next one comes later."""

SLACK_SECONDS = 15.0
"""A boot, a busy host."""

DEADLINE = 240.0
"""Seconds for what takes 90 on an idle host."""

pytestmark = pytest.mark.timeout(2 * DEADLINE)


@dataclass
class Seen:
    """What was seen of the machines while they ran. Times in seconds since the epoch."""

    slots_in_use: list[int] = field(default_factory=list)
    """Of the large job, at each look."""
    on: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Instance → when it was seen on first and last."""


class Story:
    """The jobs of one box, and what befalls their machines."""

    def __init__(self, box: Cloudbox, folder: Path) -> None:
        self.box = box
        self.seen = Seen()
        self._folder = folder
        self._over = threading.Event()
        account = make_account(box, "interruptions")
        amazon, ours = connections(box, account).values()
        self._environment = {"AIRFLOW_CONN_AWS_CLOUDBOX": json.dumps(amazon)}
        self._connection = ours

    def environment(self, **extra: Any) -> dict[str, str]:
        connection = {**self._connection, "extra": {**self._connection["extra"], **extra}}
        return {**self._environment, f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection)}

    def start(
        self,
        name: str,
        items: int,
        seconds: float,
        *,
        cpus: int,
        extra: dict[str, Any] | None = None,
        **policy: Any,
    ) -> TaskProcess:
        """A task of items that wait for so long each; ``extra``: more of its connection."""
        return TaskProcess(
            CONN_ID,
            wait,
            list(range(items)),
            self._folder / name,
            self.environment(**(extra or {})),
            name=name,
            kwargs={"seconds": seconds},
            item_retries=0,
            resources=_resources(cpus),
            **policy,
        )

    def budget_of(self, machines: int) -> float:
        """Dollars that pay for so many machines of the small jobs for BUDGET_SECONDS, whichever they are."""
        [offer, *_] = asyncio.run(self.site.backend.offers(_resources(2), Policy(), 1))
        return machines * offer.usd_per_hour * BUDGET_SECONDS / 3600

    # --- what the cloud shows ------------------------------------------------------------------------

    def instances(self, run: Run | None) -> list[dict[str, Any]]:
        """All that were ever launched for a run, as EC2 describes them."""
        tag = run.tag if run is not None else "none yet"
        filters = [{"Name": f"tag:{RUN_TAG}", "Values": [tag]}]
        reservations = self.box.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return [instance for reservation in reservations for instance in reservation["Instances"]]

    def reports(self, run: Run | None) -> dict[str, Report]:
        """Instance → its agent's last report."""
        if run is None:
            return {}

        async def read() -> dict[str, Report]:
            found = {}
            for entry in await self.site.store.list_objects(run.agents):
                if entry.name.endswith(".json"):
                    report = Report.from_bytes(await self.site.store.read(entry.name) or b"")
                    found[entry.name.rsplit("/", 1)[1].removesuffix(".json")] = report
            return found

        return asyncio.run(read())

    def launches(self, run: Run) -> list[tuple[float, LaunchRecord]]:
        """Each record with the time at which it was written."""

        async def read() -> list[tuple[float, LaunchRecord]]:
            entries = await self.site.store.list_objects(run.launches)
            return [
                (entry.modified, LaunchRecord.from_bytes(await self.site.store.read(entry.name) or b""))
                for entry in entries
                if launch_entry(entry.name)[1] == "json"
            ]

        return asyncio.run(read())

    @property
    def site(self) -> Site:
        return open_site(SpotBatchHook(CONN_ID).get_settings())

    def at_work(self, run: Run, machines: int) -> list[str]:
        """The run's machines, once so many of them work."""
        working: list[str] = []

        def reached() -> bool:
            reports = self.reports(run)
            working[:] = sorted(name for name, report in reports.items() if report.state == RUNNING)
            return len(working) >= machines

        self.until(reached, f"the work of {machines} machines of {run.tag}")
        return working

    def replacement(self, run: Run, known: list[str]) -> str:
        """The first machine of the run that is none of the known."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [each["InstanceId"] for each in self.instances(run) if each["InstanceId"] not in known]
            return bool(found)

        self.until(there, f"a replacement in {run.tag}")
        return found[0]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come in {DEADLINE} s\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(self._folder.glob("*/log")))

    # --- watching ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look all the time at which items and which machines run."""
        watching = threading.Thread(target=self._watch)
        watching.start()
        try:
            yield
        finally:
            self._over.set()
            watching.join()

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self.seen.slots_in_use.append(_waiting(ITEM_SECONDS))
            now = time.time()
            for machine in self.box.machines():
                first, _ = self.seen.on.get(machine, (now, now))
                self.seen.on[machine] = first, now

    def usd(self, run: Run) -> float:
        """What the run's machines cost by the time that they were seen on."""
        return sum(
            (self.seen.on[each["InstanceId"]][1] - self.seen.on[each["InstanceId"]][0]) / 3600 * _price(each)
            for each in self.instances(run)
            if each["InstanceId"] in self.seen.on
        )


def _resources(cpus: int) -> Resources:
    return Resources(cpus=cpus, memory_gb=3, instance_types=(MACHINE_TYPE,), architectures=(ARCHITECTURE,))


def _waiting(seconds: float) -> int:
    """Items of so many seconds that run now, on any machine of the host, frozen or not."""
    wanted = f"sleep\0{seconds}\0".encode()
    found = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                found += (process / "cmdline").read_bytes() == wanted
    return found


def _price(instance: dict[str, Any]) -> float:
    """Of the dearest machine that its launch might have given, with its disk."""
    return float(tags_of(instance)[PRICE_TAG])


@dataclass
class Told:
    """What came of the story.

    ``spent``: its budget ends it. ``orphan`` and ``poor``, each of two machines, lose their controller at
    some moment, and one of their agents (``stopped``) then stands still.
    """

    story: Story
    large: TaskProcess
    spent: TaskProcess
    orphan: Run
    poor: Run
    stopped: dict[Run, str]
    came_back: tuple[str, str]
    """The machine that was frozen, and the one that was cut off."""

    def lived(self, machine: str) -> float:
        """For how many seconds it was seen on."""
        first, last = self.story.seen.on[machine]
        return last - first

    def of_the_living(self, run: Run) -> str:
        """The machine of an orphaned run whose agent went on."""
        [machine] = {each["InstanceId"] for each in self.story.instances(run)} - {self.stopped[run]}
        return machine


@pytest.fixture(scope="module")
def told(running_box: Cloudbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    story = Story(running_box, tmp_path_factory.mktemp("story"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in story.environment().items():
            patch.setenv(name, value)
        large = story.start("large", ITEMS, ITEM_SECONDS, cpus=1, concurrency=CONCURRENCY)
        small: dict[str, Any] = {"seconds": FOR_EVER, "cpus": 2}
        spent = story.start("spent", 1, **small, concurrency=1, budget_usd=story.budget_of(1))
        poor = story.start("poor", 2, **small, concurrency=2, budget_usd=story.budget_of(2))
        orphan = story.start(
            "orphan",
            2,
            **small,
            concurrency=2,
            max_runtime=MAX_RUNTIME,
            extra={"orphan_after": ORPHAN_AFTER},
        )
        try:
            with story.watched():
                orphans = [kill_at_random(story, task, machines=2) for task in (orphan, poor)]
                stopped = {run: stop_an_agent(story, run) for run in orphans}
                came_back = befall(story, large)
                story.until(lambda: not (large.running or spent.running), "the end of the jobs")
                story.until(lambda: not running_box.machines(), "the end of all machines")
            yield Told(story, large, spent, *orphans, stopped, came_back)
        finally:
            for task in (large, spent, poor, orphan):
                task.kill()
            running_box.end_machines()


def kill_at_random(story: Story, task: TaskProcess, machines: int) -> Run:
    """The controller, at some moment after EC2 gave it machines, whether or not it knows; Airflow with it."""
    story.until(lambda: len(story.instances(task.run)) == machines, f"{machines} machines of a job")
    time.sleep(random.uniform(0, KILL_SECONDS))
    task.kill()
    assert task.run is not None
    return task.run


def stop_an_agent(story: Story, run: Run) -> str:
    """Of one of a run's two machines, once both are at work."""
    machine = story.at_work(run, 2)[0]
    story.box.run(machine, ["pkill", "-STOP", "-f", "airflow_provider_spotbatch.[a]gent"]).check_returncode()
    return machine


def befall(story: Story, large: TaskProcess) -> tuple[str, str]:
    """All that is to happen to eight machines, at once; and one that replaces them is taken back in its
    boot. The two that come back."""
    box = story.box
    assert large.run is not None
    *noticed, gone, lost, frozen, cut, advised = machines = story.at_work(large.run, MACHINES)
    began = time.monotonic()
    box.freeze(frozen)
    box.cut(cut)
    for machine in noticed:
        box.notice(machine, NOTICE_SECONDS)
    for machine in (gone, lost):
        box.vanish(machine)
    box.recommend_rebalance(advised)
    box.vanish(story.replacement(large.run, machines))
    for after, act, machine in ((FROZEN_SECONDS, box.thaw, frozen), (CUT_SECONDS, box.restore, cut)):
        time.sleep(max(0.0, began + after - time.monotonic()))
        act(machine)
    return frozen, cut


class TestInterruptions:
    """500 items on eight machines: three get the notice, two vanish, one is advised to leave, one freezes for
    longer than a lease, one has no network for a minute. All but the last two are replaced, and one of the
    replacements is taken back as it boots."""

    def test_every_item_is_once_in_the_result(self, told: Told) -> None:
        outcome = told.large.outcome
        assert outcome.state == SUCCEEDED, told.large.log
        store = SpotBatchHook(CONN_ID).get_settings().store
        assert list(MapResult.of(outcome, CONN_ID, store)) == list(range(ITEMS))

    def test_they_spend_no_retries(self, told: Told) -> None:
        """There were none to spend: one would have failed the job."""
        assert told.large.outcome.causes == {}
        assert not any("failed (" in line for _, line in told.large.said)

    def test_the_cap_is_never_passed(self, told: Told) -> None:
        """By the processes that ran, also on machines that were frozen or cut off."""
        in_use = told.story.seen.slots_in_use
        assert max(in_use) <= CONCURRENCY
        assert max(in_use) >= CONCURRENCY - SLOTS, "most slots were seen in use at least once"

    def test_each_machine_that_ended_is_replaced_and_no_other(self, told: Told) -> None:
        launched = told.story.instances(told.large.run)
        assert len(launched) == MACHINES + 7, told.large.log
        interrupted = [each for each in launched if each["StateReason"]["Code"] == RECLAIMED[0]]
        assert len(interrupted) >= 3, "those that vanished, and the one that booted"

    def test_a_replacement_is_asked_for_at_once(self, told: Told) -> None:
        """In the tick that told of the end, but for its calls: see tests/property for that tick."""
        ended = [at for at, line in told.large.said if " ended: EC2 " in line]
        starts = [at for at, line in told.large.said if line.startswith("starting ")]
        assert len(ended) >= 3
        for at in ended:
            assert any(0 <= start - at < SAME_TICK_SECONDS for start in starts), told.large.log

    def test_the_frozen_and_the_cut_off_come_back(self, told: Told) -> None:
        """Nobody gave them up: they worked on to the end of the job."""
        assert told.large.run is not None
        said = "\n".join(line for _, line in told.large.said)
        assert "silent" not in said
        reports = told.story.reports(told.large.run)
        working_on = [name for name, report in reports.items() if report.items_ok > 3 * SLOTS]
        assert set(told.came_back) <= set(working_on), told.large.log

    def test_nothing_is_left_of_the_jobs_that_ended(self, told: Told) -> None:
        box = told.story.box
        assert box.machines() == []
        templates = box.client("ec2").describe_launch_templates()["LaunchTemplates"]
        queues = box.client("sqs").list_queues().get("QueueUrls", [])
        for run in (told.large.run, told.spent.run):
            assert run is not None
            assert not [each for each in templates if tags_of(each).get(RUN_TAG) == run.tag]
            assert not [each for each in queues if run.generation.job in each]


class TestWithAirflowGone:
    """The controller is killed at a random moment; each machine ends by what it alone knows."""

    def test_an_agent_that_sees_no_controller_ends_its_machine(self, told: Told) -> None:
        report = told.story.reports(told.orphan)[told.of_the_living(told.orphan)]
        assert "no controller was seen" in report.reason
        longest = KILL_SECONDS + LOOK_SECONDS + ORPHAN_AFTER + SLACK_SECONDS
        assert ORPHAN_AFTER - LOOK_SECONDS <= report.up_seconds <= longest

    def test_the_timer_ends_a_machine_whose_agent_stands_still(self, told: Told) -> None:
        """When the job's time is over: nothing else looks at that."""
        assert told.lived(told.stopped[told.orphan]) == pytest.approx(MAX_RUNTIME, abs=SLACK_SECONDS)

    def test_the_timers_end_machines_whose_share_of_the_budget_is_spent(self, told: Told) -> None:
        """Whether or not their agent stands still."""
        for machine in (told.stopped[told.poor], told.of_the_living(told.poor)):
            assert told.lived(machine) == pytest.approx(BUDGET_SECONDS, abs=SLACK_SECONDS)

    def test_the_budget_is_kept(self, told: Told) -> None:
        assert told.story.usd(told.poor) <= told.story.budget_of(2) * (1 + TICK_SECONDS / BUDGET_SECONDS)


class TestTheBudget:
    def test_it_stops_the_job_and_the_log_says_so(self, told: Told) -> None:
        outcome = told.spent.outcome
        assert (outcome.state, outcome.retryable) == (FAILED, False)
        assert f"the budget of ${told.story.budget_of(1):g} is spent" in outcome.message
        assert any(line.startswith("stopping the job: the budget") for _, line in told.spent.said)

    def test_it_is_passed_by_one_tick_at_most(self, told: Told) -> None:
        assert told.spent.run is not None
        most = told.story.budget_of(1) * (1 + TICK_SECONDS / BUDGET_SECONDS)
        assert told.story.usd(told.spent.run) <= most
        assert (told.spent.outcome.cost_usd or 0.0) <= most
