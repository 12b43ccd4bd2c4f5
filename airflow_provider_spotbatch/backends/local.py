"""The local backend: several machines played by processes of this one, for trying out and for small jobs.

Everything lies under one folder, the *root* (mode 0700)::

    key            the signing key (mode 0600)
    queue.sqlite   all queues
    store/         the object store, unless the connection names another
    machines/      one folder per machine, see local_fleet.py
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from airflow_provider_spotbatch.backends.base import BareMachines, Check, Offer, RunMachine
from airflow_provider_spotbatch.backends.local_checks import check_root
from airflow_provider_spotbatch.backends.local_fleet import (
    LocalFleet,
    agent_command,
    forget_ended,
    machine_folder,
    machines_of,
    terminate,
)
from airflow_provider_spotbatch.backends.local_queue import LocalQueue, queue_names
from airflow_provider_spotbatch.backends.rehearsal import Rehearsal
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources

LEASE_SECONDS = 10.0
"""How long a chunk of a silent agent stays hidden from the others; agents extend it at a third of that."""

INSTANCES = 2
"""Machines that a run is spread over by default: losing one leaves another."""

NOTICE_POLL_SECONDS = 0.25

_GB = 2**30
_ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


class LocalBackend:
    """See :class:`~airflow_provider_spotbatch.backends.base.Backend`.

    Options of the connection: ``path``, the root (default ``$AIRFLOW_HOME/spotbatch``);
    ``instances``, how many machines a run is spread over (default 2); ``rehearse``, a
    :class:`~airflow_provider_spotbatch.backends.rehearsal.Rehearsal` of interruptions.
    """

    name = "local"
    lease = LEASE_SECONDS
    tick_seconds = 0.25

    def __init__(self, settings: Settings) -> None:
        if sys.platform != "linux":
            raise InvalidInput(
                f"the local backend needs Linux (it reads /proc), and this is {sys.platform}: "
                "run Airflow in a container, or set up a connection to a cloud"
            )
        self.root = local_root(settings.options.get("path"))
        self.store_uri = settings.store or f"file://{self.root}/store"
        self.store_options: dict[str, Any] = settings.store_options
        self.agent_command: list[str] = agent_command()
        self._instances = _instances(settings)
        self._rehearsal: Rehearsal | None = settings.options.get("rehearse")

    def open_store(self) -> Store:
        _make_root(self.root)
        return open_store(self.store_uri, self.store_options)

    def fleet(self, run: Run, boot: Boot) -> LocalFleet:
        return LocalFleet(self.root, run, boot, self.agent_command, self._rehearsal)

    def queue(self, run: Run, memory_class: int) -> LocalQueue:
        return LocalQueue(_queue_file(self.root), run.queue(memory_class), self.lease)

    async def machines(self) -> list[RunMachine]:
        return await asyncio.to_thread(machines_of, self.root, self.store_uri)

    async def terminate(self, instances: Sequence[str]) -> None:
        await asyncio.to_thread(terminate, self.root, instances)

    async def queues(self) -> list[str]:
        return await asyncio.to_thread(queue_names, _queue_file(self.root))

    async def forget_ended(self) -> int:
        return await asyncio.to_thread(forget_ended, self.root)

    async def check(self) -> list[Check]:
        try:
            await asyncio.to_thread(_make_root, self.root)
        except InvalidInput as wrong:
            return [Check("folder", False, str(wrong))]
        here = Check("this machine", True, f"{_cores()} CPUs and {_memory_gb():.1f} GB of memory")
        return [*await asyncio.to_thread(check_root, self.root), here]

    async def bare_machines(self, resources: Resources) -> BareMachines | None:
        return None

    def default_concurrency(self, resources: Resources, items: int) -> int:
        fits = min(_cores() / resources.cpus, _memory_gb() / resources.memory_gb)
        return max(1, min(items, math.floor(fits)))

    async def offers(self, resources: Resources, policy: Policy, concurrency: int) -> list[Offer]:
        await asyncio.to_thread(_check_fits, resources, self.root)
        slots = math.ceil(concurrency / min(self._instances, concurrency))
        return [Offer(name="local", slots=slots, most=math.ceil(concurrency / slots))]

    def boot_options(self) -> dict[str, Any]:
        return {"path": self.root}

    def in_region(self, region: str) -> LocalBackend:
        raise InvalidInput(f"backend {self.name} has no regions: leave {region!r} out")

    def continues_elsewhere(self) -> str | None:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/pid')} {self.store_uri}"


class LocalMachine:
    """One of the local backend's machines, as its agent sees it."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._root = str(boot.backend_options["path"])

    def queue(self, run: Run, memory_class: int) -> LocalQueue:
        return LocalQueue(_queue_file(self._root), run.queue(memory_class), self._boot.lease)

    def notices(self) -> LocalNotices:
        return LocalNotices(machine_folder(self._root, self._boot.instance))

    async def secret(self, reference: str) -> str:
        raise InvalidInput(f"the local backend has no secrets of its own: {reference} cannot be resolved")


class LocalNotices:
    """The notice is a file, ``interrupt``: made by hand, by a test, or by the machine when it receives
    SIGTERM. So is the advice to leave, ``leave``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def wait(self) -> str:
        await self._made("interrupt")
        return "the machine was told that it will be taken back"

    async def wait_for_advice(self) -> str:
        await self._made("leave")
        return "the machine was told that it may be taken back"

    async def _made(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        while not await asyncio.to_thread(os.path.exists, path):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(NOTICE_POLL_SECONDS)


def local_root(path: str | None) -> str:
    """The root of the local backend: ``path`` from the connection, else ``$AIRFLOW_HOME/spotbatch``."""
    if path:
        return os.path.abspath(os.path.expanduser(path))
    home = os.environ.get("AIRFLOW_HOME") or os.path.join("~", "airflow")
    return os.path.abspath(os.path.join(os.path.expanduser(home), "spotbatch"))


def local_key(path: str | None) -> bytes:
    """The signing key under a root (see :func:`local_root`), made when first asked for: 32 bytes.

    Raises InvalidInput if its file cannot be made or holds no key.
    """
    root = local_root(path)
    name = os.path.join(root, "key")
    _make_root(root)
    try:
        if not os.path.exists(name):
            _create_key(name)
        with open(name) as file:
            text = file.read().strip()
    except OSError as error:
        raise InvalidInput(
            f"the local backend keeps its key in {name}: {error.strerror}. "
            "Set 'path' of the connection to a folder that Airflow may write"
        ) from error
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise InvalidInput(
            f"{name} holds no key (64 hex digits): restore it, or remove it to have a new one made; "
            "results signed with the old key cannot be read then"
        )
    return bytes.fromhex(text)


def _make_root(root: str) -> None:
    """Make the root before anything in it, so that it is private from the start."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the local backend keeps everything in {root}, which cannot be made: {error.strerror}. "
            "Set 'path' of the connection to a folder that Airflow may write"
        ) from error


def _create_key(name: str) -> None:
    """Under its name only once it is whole; the first of several processes wins."""
    draft = f"{name}.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(descriptor)
        os.link(draft, name)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def _queue_file(root: str) -> str:
    return os.path.join(root, "queue.sqlite")


def _instances(settings: Settings) -> int:
    asked = settings.options.get("instances", INSTANCES)
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise InvalidInput(
            f"'instances' of the connection {settings.conn_id!r} must be a whole number of at least 1, "
            f"not {asked!r}"
        )
    return asked if settings.max_instances is None else min(asked, settings.max_instances)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GB


def _check_fits(resources: Resources, root: str) -> None:
    """Raise InvalidInput unless this machine can run one such item."""
    if resources.instance_types:
        raise InvalidInput(
            "item_resources.instance_types names machine types of a cloud; the local backend has only "
            "this machine: leave it out, or use a connection to a cloud"
        )
    if resources.gpus or resources.gpu_memory_gb:
        raise InvalidInput(
            "item_resources asks for a GPU; the local backend has none to give: use a connection to a cloud"
        )
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if resources.architectures and own not in resources.architectures:
        raise InvalidInput(
            f"item_resources.architectures asks for {' or '.join(resources.architectures)}; "
            f"this machine is {own}"
        )
    for argument, asked, has, unit in (
        ("cpus", resources.cpus, _cores(), "CPUs"),
        ("memory_gb", resources.memory_gb, _memory_gb(), "GB of memory"),
        ("disk_gb", resources.disk_gb, _free_disk(root) / _GB, "GB of free disk"),
    ):
        if asked > has:
            raise InvalidInput(
                f"one item asks for item_resources.{argument}={asked:g}; the local backend runs on this "
                f"machine, which has {has:.4g} {unit}: ask for less, or use a connection to a cloud"
            )


def _free_disk(path: str) -> int:
    """Bytes free where ``path`` is, or would be made."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free
