"""The aws backend: EC2 fleets, SQS queues and an S3 store, in one region.

What is Amazon's stays in this folder. Its parts, from the SDK upwards::

    clients verdicts quotas refusals             calls and what their refusals mean
    facts machine_types prices images subnets    what a region has, kept in the store for a while
    regions instances single_flight              what the jobs of a process share
    offers                                       the machines to be had for a job
    pools launch_template fleet queue notices    the ports
    user_data boot_program                       what a machine runs before anything of ours is on it
    secrets checks                               what is asked with the machine's rights, and of the account
    policies data_policy setup* network grants   the command line's set-up of an account
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_spotbatch.backends.aws.checks import check_region
from airflow_provider_spotbatch.backends.aws.clients import Access, Clients
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet, delete_templates, terminate
from airflow_provider_spotbatch.backends.aws.images import DEFAULT_GPU, default_images
from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup
from airflow_provider_spotbatch.backends.aws.notices import Ec2Notices
from airflow_provider_spotbatch.backends.aws.offers import MOST_DISK_GB, offers_of
from airflow_provider_spotbatch.backends.aws.queue import SqsQueue, queue_prefix
from airflow_provider_spotbatch.backends.aws.regions import Region, shared_region
from airflow_provider_spotbatch.backends.aws.secrets import secret_value
from airflow_provider_spotbatch.backends.aws.setup_plan import EXPIRE_DAYS, MAX_RUNTIME_DAYS
from airflow_provider_spotbatch.backends.aws.user_data import user_data
from airflow_provider_spotbatch.backends.base import BareMachines, Check, Offer, RunMachine
from airflow_provider_spotbatch.backends.local import local_root
from airflow_provider_spotbatch.backends.machine_sizing import launchable_architectures
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources

LEASE_SECONDS = 30.0

CONCURRENCY = 64
"""Items at once where the user does not say."""

FORGET_SECONDS = 24 * 3600.0

MAX_RUNTIME_SECONDS = MAX_RUNTIME_DAYS * 24 * 3600.0
MIN_RUNTIME_SECONDS = 60.0
"""EC2 bills a minute of each machine at least; no item would have run."""


class AwsBackend:
    """See :class:`~airflow_provider_spotbatch.backends.base.Backend`.

    Options of the connection: ``region``; ``session``, ``verify``, ``config`` and ``identity`` of ``Access``,
    and ``endpoint_url`` of an emulator, from the Amazon connection; ``subnets`` and ``security_groups``, ids
    (default: the region's default ones); ``instance_profile``, of the machines; ``image``, ids or SSM
    parameters, one for each architecture (default: a stock image with this process's Python);
    ``public_address``, whether machines have one; ``tags``; ``path``, the folder on the Airflow side.
    """

    name = "aws"
    lease = LEASE_SECONDS
    tick_seconds = 1.0

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        self._settings = settings
        self.root = local_root(options.get("path"))
        self.store_uri = settings.store
        self._place: dict[str, Any] = {
            "region": options["region"],
            "endpoint_url": options.get("endpoint_url", ""),
        }
        self.store_options = _store_options(self._place) | settings.store_options
        self._subnets: Sequence[str] = options.get("subnets", ())
        self._images: Sequence[str] = options.get("image", ())
        self._max_instances = settings.max_instances
        self._setup = MachineSetup(
            store=settings.store,
            instance_profile=options["instance_profile"],
            security_groups=tuple(options.get("security_groups", ())),
            public_address=options.get("public_address", False),
            tags=options.get("tags", {}),
        )
        self._region = shared_region(
            settings.conn_id,
            self._place,
            Access(
                options.get("session"),
                options.get("verify"),
                options.get("config"),
                options.get("identity", ""),
            ),
            self.store_uri,
            self.store_options,
        )

    @property
    def region(self) -> Region:
        """The connection's region: its clients, machine types and prices."""
        return self._region

    def open_store(self) -> Store:
        return self._region.open_store()

    def fleet(self, run: Run, boot: Boot) -> Ec2Fleet:
        return Ec2Fleet(self._region.clients, self._region.instances, self._setup, run, boot, user_data)

    def queue(self, run: Run, memory_class: int) -> SqsQueue:
        tags = {**self._setup.tags, STORE_TAG: self.store_uri}
        return _queue(self._region.clients, self._region.open_store(), run, memory_class, self.lease, tags)

    async def machines(self) -> list[RunMachine]:
        return await self._region.instances.all()

    async def terminate(self, instances: Sequence[str]) -> None:
        await terminate(self._region.clients, instances)
        self._region.instances.forget()

    async def queues(self) -> list[str]:
        prefix = queue_prefix(self.store_uri)
        urls = await self._region.clients.pages(
            "sqs", "ListQueues", "QueueUrls", QueueNamePrefix=prefix, MaxResults=1000
        )
        return sorted(url.rsplit("/", 1)[1].removeprefix(prefix) for url in urls)

    async def forget_ended(self) -> int:
        """Launch templates are all that is left of machines."""
        templates = await self._region.clients.pages(
            "ec2",
            "DescribeLaunchTemplates",
            "LaunchTemplates",
            Filters=[{"Name": f"tag:{STORE_TAG}", "Values": [self.store_uri]}],
        )
        before = datetime.now(timezone.utc) - timedelta(seconds=FORGET_SECONDS)
        old = [each["LaunchTemplateName"] for each in templates if each["CreateTime"] < before]
        await delete_templates(self._region.clients, old)
        return len(old)

    async def check(self) -> list[Check]:
        return await check_region(self._region, self._setup, self._subnets, self._images_for(Resources()))

    def default_concurrency(self, resources: Resources, items: int) -> int:
        return max(1, min(items, CONCURRENCY))

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        _check_max_runtime(policy.max_runtime)
        return await offers_of(
            self._region,
            resources,
            policy,
            concurrency,
            subnets=await self._region.subnets(self._subnets),
            images=await self._region.images(self._images_for(resources)),
            public_address=self._setup.public_address,
            max_instances=self._max_instances,
        )

    async def bare_machines(self, resources: Resources) -> BareMachines | None:
        images = await self._region.images(self._images_for(resources))
        launchable = launchable_architectures(await self._region.types(), resources, MOST_DISK_GB)
        return BareMachines(
            pythons={
                architecture: image["python"]
                for architecture, image in images.items()
                if architecture in launchable or not launchable  # none fits: the offers say what would
            },
            distributions=("boto3",),
            only={
                "botocore/data": ("*.json*", "secretsmanager", "sqs", "ssm"),  # 25 MB of other services
                "boto3/data": (),
                "boto3/examples": (),
            },
        )

    def _images_for(self, resources: Resources) -> Sequence[str]:
        if self._images:
            return self._images
        if resources.gpus or resources.gpu_memory_gb:
            return DEFAULT_GPU
        return default_images(f"{sys.version_info.major}.{sys.version_info.minor}")

    def boot_options(self) -> dict[str, Any]:
        return dict(self._place)

    def in_region(self, region: str) -> AwsBackend:
        options = {**self._settings.options, "region": region}
        return AwsBackend(replace(self._settings, options=options, store_options=self.store_options))

    def continues_elsewhere(self) -> str | None:
        return None


def _check_max_runtime(seconds: float) -> None:
    if seconds > MAX_RUNTIME_SECONDS:
        raise InvalidInput(
            f"max_runtime is {seconds / 86400:g} days; on AWS it may be at most "
            f"{MAX_RUNTIME_SECONDS / 86400:g}: objects of the store are removed after {EXPIRE_DAYS} days"
        )
    if seconds < MIN_RUNTIME_SECONDS:
        raise InvalidInput(
            f"max_runtime is {seconds:g} s; on AWS it must be at least {MIN_RUNTIME_SECONDS:g}: a machine "
            "takes about as long to boot"
        )


class AwsMachine:
    """An EC2 instance as its agent sees it: its credentials are those of its instance profile."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._clients = Clients(boot.backend_options["region"], boot.backend_options["endpoint_url"])
        self._store: Store | None = None

    def queue(self, run: Run, memory_class: int) -> SqsQueue:
        if self._store is None:
            self._store = open_store(self._boot.store, self._boot.store_options)
        return _queue(self._clients, self._store, run, memory_class, self._boot.lease, {})

    def notices(self) -> Ec2Notices:
        return Ec2Notices()

    async def secret(self, reference: str) -> str:
        return await secret_value(self._clients, reference)


def _queue(
    clients: Clients, store: Store, run: Run, memory_class: int, lease: float, tags: dict[str, str]
) -> SqsQueue:
    name = queue_prefix(store.uri) + run.queue(memory_class)
    return SqsQueue(clients, store, name, run.queue_deleted(memory_class), lease, tags)


def _store_options(place: dict[str, Any]) -> dict[str, Any]:
    """obstore's settings of a bucket in the same region, or at the same emulator."""
    if not place["endpoint_url"]:
        return {"region": place["region"]}
    return {
        "region": place["region"],
        "endpoint": place["endpoint_url"],
        "client_options": {"allow_http": place["endpoint_url"].startswith("http:")},
    }
