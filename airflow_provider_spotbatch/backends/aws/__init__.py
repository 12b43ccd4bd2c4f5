"""The aws backend: EC2 fleets, SQS queues and an S3 store, in one region.

What is Amazon's stays in this folder. Its parts, from the SDK upwards::

    clients verdicts quotas refusals               calls and what their refusals mean
    facts machine_types prices images subnets      what a region has, kept in the store for a while
    regions instances              what the jobs of a process share
    pools launch_template fleet queue notices checks     the ports
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_spotbatch.backends.aws.checks import check_region
from airflow_provider_spotbatch.backends.aws.clients import Access, Clients
from airflow_provider_spotbatch.backends.aws.fleet import Ec2Fleet, delete_templates, terminate
from airflow_provider_spotbatch.backends.aws.images import DEFAULT_GPU, default_images, taken_gb
from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.launch_template import MachineSetup
from airflow_provider_spotbatch.backends.aws.notices import Ec2Notices
from airflow_provider_spotbatch.backends.aws.prices import extras
from airflow_provider_spotbatch.backends.aws.queue import SqsQueue, queue_prefix
from airflow_provider_spotbatch.backends.aws.quotas import least_vcpus_of
from airflow_provider_spotbatch.backends.aws.regions import Region, shared_region
from airflow_provider_spotbatch.backends.aws.secrets import secret_value
from airflow_provider_spotbatch.backends.aws.setup_plan import EXPIRE_DAYS, MAX_RUNTIME_DAYS
from airflow_provider_spotbatch.backends.aws.user_data import user_data
from airflow_provider_spotbatch.backends.base import BareMachines, Check, Offer, RunMachine
from airflow_provider_spotbatch.backends.local import local_root
from airflow_provider_spotbatch.backends.machine_sizing import (
    MachinePlan,
    MachineType,
    launchable_architectures,
    plan_machines,
)
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import ON_DEMAND, SPOT, SPOT_THEN_ON_DEMAND, Policy
from airflow_provider_spotbatch.job.resources import Resources

LEASE_SECONDS = 30.0

CONCURRENCY = 64
"""Items at once where the user does not say."""

MOST_DISK_GB = 16 * 1024.0
"""The largest volume (EBS User Guide, gp3, before 2025)."""

FORGET_SECONDS = 24 * 3600.0

MAX_RUNTIME_SECONDS = MAX_RUNTIME_DAYS * 24 * 3600.0

_PURCHASES = {SPOT: (SPOT,), ON_DEMAND: (ON_DEMAND,), SPOT_THEN_ON_DEMAND: (SPOT, ON_DEMAND)}


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
        old = [template for template in templates if template["CreateTime"] < before]
        await delete_templates(self._region.clients, old)
        return len(old)

    async def check(self) -> list[Check]:
        return await check_region(self._region, self._setup, self._subnets, self._images_for(Resources()))

    def default_concurrency(self, resources: Resources, items: int) -> int:
        return max(1, min(items, CONCURRENCY))

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        if policy.max_runtime > MAX_RUNTIME_SECONDS:
            raise InvalidInput(
                f"max_runtime is {policy.max_runtime / 86400:g} days; on AWS it may be at most "
                f"{MAX_RUNTIME_SECONDS / 86400:g}: objects of the store are removed after "
                f"{EXPIRE_DAYS} days"
            )
        subnets = await self._region.subnets(self._subnets)
        images = await self._region.images(self._images_for(resources))
        purchases = _PURCHASES[policy.purchase]
        prices = [
            price
            for purchase in purchases
            for price in await self._region.prices(purchase)
            if price.zone in subnets
        ]
        types = await self._region.types()
        beside = extras(images.values(), self._setup.public_address)
        plans = await asyncio.to_thread(
            plan_machines,
            types,
            prices,
            resources,
            concurrency=concurrency,
            purchases=purchases,
            architectures=images,
            most_disk_gb=MOST_DISK_GB - max(map(taken_gb, images.values())),
            extras=beside,
            max_instances=self._max_instances,
        )
        on_demand = await self._on_demand()
        least = {purchase: _least_vcpus(purchase, plans, types) for purchase in purchases}
        pinned = [
            _pinned(
                plan.offer(),
                subnets,
                images,
                {type_: usd + beside.usd_per_hour(plan.disk_gb) for type_, usd in on_demand.items()},
                least[plan.purchase],
            )
            for plan in plans
        ]
        estimated = await self._region.estimated_types()
        return [replace(offer, estimated=bool(estimated.intersection(offer.types))) for offer in pinned]

    async def _on_demand(self) -> dict[str, float]:
        """Type → US dollars per hour, in the zone where it is cheapest."""
        cheapest: dict[str, float] = {}
        for price in await self._region.prices(ON_DEMAND):
            cheapest[price.type] = min(price.usd_per_hour, cheapest.get(price.type, price.usd_per_hour))
        return cheapest

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


def _least_vcpus(purchase: str, plans: Sequence[MachinePlan], types: Iterable[MachineType]) -> dict[str, int]:
    """Class of families → vCPUs of the smallest type in any of the plans: below it is below one machine."""
    usable = {type_ for plan in plans if plan.purchase == purchase for type_ in plan.types}
    return least_vcpus_of(type_ for type_ in types if type_.name in usable)


def _pinned(
    offer: Offer,
    subnets: dict[str, list[str]],
    images: dict[str, dict[str, Any]],
    on_demand: dict[str, float],
    least_vcpus: dict[str, int],
) -> Offer:
    """The offer with where and what its machines are, so that a repeated call asks for the same, and with
    what its types cost on demand, for the account at the end. Its request is then what ``pools`` reads."""
    request = dict(offer.request or {})
    zones = {zone for _, zone, *_ in request["pools"]}
    architectures = {architecture for *_, architecture in request["pools"]}
    request["subnets"] = {zone: subnets[zone] for zone in sorted(zones)}
    request["images"] = {each: images[each] for each in sorted(architectures)}
    request["on_demand"] = {type_: on_demand[type_] for type_ in offer.types if type_ in on_demand}
    request["least_vcpus"] = least_vcpus
    cheapest = min(request["on_demand"].values(), default=0.0)
    return replace(offer, request=request, on_demand_usd_per_hour=cheapest)
