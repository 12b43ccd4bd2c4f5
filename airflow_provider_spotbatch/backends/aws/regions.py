"""What the jobs of one process share of a connection and region: clients, the list of machines, facts."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_spotbatch.backends.aws import images, machine_types, prices, subnets
from airflow_provider_spotbatch.backends.aws.clients import Access, Clients
from airflow_provider_spotbatch.backends.aws.facts import Facts
from airflow_provider_spotbatch.backends.aws.instances import Instances
from airflow_provider_spotbatch.backends.machine_sizing import MachineType, Price
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.job.policy import ON_DEMAND

CREDENTIALS_LIFE = timedelta(minutes=5)
"""The SDK renews credentials at least 10 minutes before they expire: what it hands out holds that long."""


class Region:
    """A region as one connection reaches it."""

    def __init__(self, clients: Clients, store_uri: str, store_options: Mapping[str, Any]) -> None:
        self.clients = clients
        self.instances = Instances(clients, store_uri)
        self._store_uri = store_uri
        self._store_options = store_options
        self._store: Store | None = None
        self._facts = Facts(self.open_store)

    def open_store(self) -> Store:
        """The connection's store, with the same credentials."""
        if self._store is None:
            credentials = {"credential_provider": StoreCredentials(self.clients)}
            self._store = open_store(self._store_uri, {**self._store_options, **credentials})
        return self._store

    async def types(self) -> list[MachineType]:
        return await self._facts.get(
            self._name("types"),
            machine_types.FACTS_SECONDS,
            lambda: machine_types.ask_types(self.clients),
            lambda told: [MachineType(**each) for each in told],
        )

    async def prices(self, purchase: str) -> list[Price]:
        """Of all types and zones, sold in that way."""
        if purchase == ON_DEMAND:
            return (await self._on_demand())[0]
        return await self._facts.get(
            self._name("spot-prices"),
            prices.FACTS_SECONDS,
            lambda: prices.ask_spot(self.clients),
            lambda told: [Price(**each) for each in told],
        )

    async def subnets(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Zone → subnets: those of the connection, or the default ones."""
        return await self._facts.get(
            self._name("subnets", ids),
            subnets.FACTS_SECONDS,
            lambda: subnets.ask_subnets(self.clients, ids),
            dict,
        )

    async def images(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Architecture → what ``ask_images`` tells of it."""
        return await self._facts.get(
            self._name("images", names),
            images.FACTS_SECONDS,
            lambda: images.ask_images(self.clients, names),
            dict,
        )

    async def estimated_types(self) -> frozenset[str]:
        """Types whose on-demand prices are estimates."""
        return (await self._on_demand())[1]

    async def _on_demand(self) -> tuple[list[Price], frozenset[str]]:
        return await self._facts.get(
            self._name("listed-prices"),
            prices.FACTS_SECONDS,
            self._ask_on_demand,
            lambda told: ([Price(**each) for each in told["prices"]], frozenset(told["estimated"])),
        )

    async def _ask_on_demand(self) -> dict[str, Any]:
        zones = await self._facts.get(
            self._name("zones"),
            machine_types.FACTS_SECONDS,
            lambda: machine_types.ask_zones(self.clients),
            dict,
        )
        return await prices.ask_on_demand(self.clients, await self.types(), zones)

    def _name(self, what: str, of: Sequence[str] | None = None) -> str:
        which = "" if of is None else "-" + hashlib.sha256("\n".join(of).encode()).hexdigest()[:12]
        return f"aws/{self.clients.region}/{what}{which}"


class StoreCredentials:
    """The session's credentials, as obstore asks for them: in threads of its own."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def __call__(self) -> dict[str, Any]:
        from obstore.auth.boto3 import Boto3CredentialProvider

        provider = Boto3CredentialProvider(self._clients.session_now(), ttl=CREDENTIALS_LIFE)
        return dict(provider())


_open: weakref.WeakValueDictionary[str, Region] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_region(
    conn_id: str,
    place: Mapping[str, str],
    access: Access,
    store_uri: str,
    store_options: Mapping[str, Any],
) -> Region:
    """The region of a connection, the same for all in this process who have it open, reached as the newest of
    them says: credentials are replaced while jobs run.

    ``place``: ``region`` and ``endpoint_url``.
    """
    name = json.dumps([os.getpid(), conn_id, place, store_uri, store_options], sort_keys=True, default=str)
    with _lock:
        found = _open.get(name)
        if found is None:
            clients = Clients(place["region"], place["endpoint_url"], access)
            found = _open[name] = Region(clients, store_uri, store_options)
        else:
            found.clients.use(access)
        return found
