"""The machines of a connection's store as EC2 describes them: asked once for all jobs of the process."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.single_flight import SingleFlight
from airflow_provider_spotbatch.backends.base import RunMachine
from airflow_provider_spotbatch.job.errors import CloudUnavailable, Throttled
from airflow_provider_spotbatch.job.launches import PENDING, RUNNING, TERMINATED, Instance

FRESH_SECONDS = 1.0
FRESH_SECONDS_MOST = 5.0
FRESH_LOOKS = 5
"""An answer this old serves another job's look: with many jobs one call a second, whatever their number. With
many machines (1,000: 3 MB to read, half a second of this process) as old as five looks take, but less by far
than a fresh machine may be missing anyway (Ec2Fleet.visibility_bound)."""

REST_SECONDS = 2.0
REST_SECONDS_MOST = 30.0
"""Nobody asks for so long after a refusal, doubled from one to the next, with jitter: an account's calls
share one allowance, and the SDK has repeated each some times already. Reports tell of machines meanwhile."""

STORE_TAG = "spotbatch:store"
RUN_TAG = "spotbatch:run"
LAUNCH_TAG = "spotbatch:launch"
SLOTS_TAG = "spotbatch:slots"
PRICE_TAG = "spotbatch:usd-per-hour"

INTERRUPTED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""State reasons of machines that EC2 took back (EC2 API reference, StateReason)."""

_REASONS = {
    "Client.InstanceInitiatedShutdown": "the agent ended",
    "Client.UserInitiatedShutdown": "it was asked to end",
    "Server.SpotInstanceTermination": "EC2 took it back",
    "Server.SpotInstanceShutdown": "EC2 took it back",
    "Server.InsufficientInstanceCapacity": "EC2 had no room for it",
    "Server.InternalError": "EC2 failed to start it",
    "Client.InstanceTerminated": "it was terminated as soon as it started",
    "Client.InternalError": "it failed to start: see that the encryption key of its disk may be used",
    "Client.VolumeLimitExceeded": "the account's limit of EBS storage was reached",
}


class Instances:
    """All machines that carry the store's tag. Times in seconds; ``chance`` gives numbers in [0, 1)."""

    def __init__(
        self,
        clients: Clients,
        store: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clients = clients
        self._store = store
        self._clock = clock
        self._chance = chance
        self._refused = 0
        self._rests_until = -math.inf
        self._flight: SingleFlight[list[RunMachine]] = SingleFlight()
        self._known: list[RunMachine] = []
        self._known_at: float | None = None
        self._fresh_seconds = FRESH_SECONDS

    async def all(self) -> list[RunMachine]:
        """Machines of every run, terminated ones for as long as EC2 remembers them (about an hour).

        Raises Throttled where nobody could look.
        """
        if self._known_at is not None and self._clock() - self._known_at < self._fresh_seconds:
            return self._known
        return await self._flight.join(self._ask)

    async def of_launch(self, run: str, launch: int) -> list[dict[str, Any]]:
        """The machines of one launch record, asked now, as EC2 describes them."""
        return await self._describe({RUN_TAG: run, LAUNCH_TAG: str(launch)})

    def forget(self) -> None:
        """What was known is out of date: the next look asks."""
        self._known_at = None

    async def _ask(self) -> list[RunMachine]:
        asked = self._clock()
        found = await self._describe({})
        known = [RunMachine(tags_of(each)[RUN_TAG], instance_of(each)) for each in found if _is_ours(each)]
        took = self._clock() - asked
        self._fresh_seconds = min(FRESH_SECONDS_MOST, max(FRESH_SECONDS, FRESH_LOOKS * took))
        self._known, self._known_at = known, asked
        return known

    async def _describe(self, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        if self._clock() < self._rests_until:
            raise Throttled("the machines are not listed again so soon after a refusal")
        wanted = {STORE_TAG: self._store, **tags}
        try:
            reservations = await self._clients.pages(
                "ec2",
                "DescribeInstances",
                "Reservations",
                Filters=[{"Name": f"tag:{name}", "Values": [value]} for name, value in wanted.items()],
                MaxResults=1000,
            )
        except Throttled:
            self._rest()
            raise
        except (CloudUnavailable, asyncio.TimeoutError) as error:
            self._rest()
            raise Throttled(f"the machines could not be listed: {error}") from error
        self._refused = 0
        return [each for reservation in reservations for each in reservation["Instances"]]

    def _rest(self) -> None:
        rest = min(REST_SECONDS_MOST, REST_SECONDS * 2.0**self._refused) * (0.5 + self._chance())
        self._refused += 1
        self._rests_until = self._clock() + rest


def instance_of(described: Mapping[str, Any], usd_per_hour: float | None = None) -> Instance:
    """A machine as the control loop sees it, out of what EC2 says of it."""
    tags = tags_of(described)
    reason = described.get("StateReason", {})
    code = str(reason.get("Code", ""))
    state = _STATES.get(described["State"]["Name"], RUNNING)
    return Instance(
        id=described["InstanceId"],
        launch=int(tags[LAUNCH_TAG]),
        state=state,
        slots=int(tags[SLOTS_TAG]),
        usd_per_hour=float(tags.get(PRICE_TAG, 0.0)) if usd_per_hour is None else usd_per_hour,
        interrupted=code in INTERRUPTED,
        reason=(_REASONS.get(code) or str(reason.get("Message", ""))) if state == TERMINATED else "",
    )


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in sorted(tags.items())]


_STATES = {"pending": PENDING, "terminated": TERMINATED}
"""All others may still run something: a machine is gone only once it is terminated."""


def _is_ours(described: Mapping[str, Any]) -> bool:
    """Whether it has all that a machine of ours is tagged with: somebody may have copied one of the tags."""
    return {RUN_TAG, LAUNCH_TAG, SLOTS_TAG} <= tags_of(described).keys()
