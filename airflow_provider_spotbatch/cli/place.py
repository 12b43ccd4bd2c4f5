"""Where a command looks: an Airflow connection, or a store alone."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.cli.output import note
from airflow_provider_spotbatch.control.site import Site, open_site
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keyring import Keyring

DEFAULT_CONN_ID = "spotbatch_default"

KEY_VARIABLE = "SPOTBATCH_KEY"

REQUEST_SECONDS = 10.0
"""One request to a store given by URI: somebody sits and waits."""

_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
"""By this variable Airflow tells that a process, such as its own command line, may ask its database."""

_LEVEL = "AIRFLOW__LOGGING__LOGGING_LEVEL"
"""Airflow's providers log when they are used, long after the connection was read, on standard output."""


@dataclass(frozen=True)
class Place:
    """A store and the keys to read it with. ``settings`` None: there is no connection, only a store."""

    store: Store
    keyring: Keyring
    settings: Settings | None = None

    @property
    def site(self) -> Site:
        """Everything that the connection leads to. Raises InvalidInput where there is none."""
        if self.settings is None:
            raise InvalidInput("this command needs a connection, not only a store: use --conn-id")
        return open_site(self.settings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--conn-id",
        default=DEFAULT_CONN_ID,
        metavar="NAME",
        help=f"the Airflow connection (default {DEFAULT_CONN_ID})",
    )
    where.add_argument(
        "--store",
        metavar="URI",
        help=f"a store without Airflow: file:///…, s3://… or gs://…; its key is read from ${KEY_VARIABLE}, "
        "for a local backend's own store from the file 'key' beside it",
    )


async def open_place(arguments: argparse.Namespace) -> Place:
    """What ``--conn-id`` or ``--store`` names. Says so where nothing read from it can be checked."""
    if arguments.store is None:
        settings = await asyncio.to_thread(read_connection, arguments.conn_id)
        site = await asyncio.to_thread(open_site, settings)
        return Place(site.store, Keyring((settings.key, *settings.old_keys)), settings)
    store = await asyncio.to_thread(_existing_store, arguments.store)
    keyring = Keyring(await asyncio.to_thread(_keys, arguments.store))
    if not keyring:
        note(f"signatures were not checked: there is no key for {arguments.store} (set {KEY_VARIABLE})")
    return Place(store, keyring)


def read_connection(conn_id: str) -> Settings:
    """The connection as Airflow's own command line sees it: environment, secrets backends, database."""
    with _as_airflows_command_line():
        from airflow_provider_spotbatch.hooks import SpotBatchHook

        return SpotBatchHook(conn_id).get_settings()


@contextmanager
def _as_airflows_command_line() -> Iterator[None]:
    """May ask Airflow's database, and hears nothing of what Airflow says to its own developers. What Airflow
    logs goes to standard error: programs read standard output, which loggers made here would take."""
    for library in ("alembic", "botocore"):
        logging.getLogger(library).setLevel(logging.WARNING)
    os.environ.setdefault(_LEVEL, "WARNING")  # read when Airflow is imported
    before = os.environ.get(_CONTEXT)
    os.environ[_CONTEXT] = "server"
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            del os.environ[_CONTEXT]
        else:
            os.environ[_CONTEXT] = before


def _existing_store(uri: str) -> Store:
    """The store, which must be there: a look at it must not make it."""
    if uri.startswith("file://") and not os.path.isdir(uri[len("file://") :]):
        raise InvalidInput(f"there is no store {uri}: no such folder")
    return open_store(uri, seconds=REQUEST_SECONDS)


def _keys(uri: str) -> tuple[bytes, ...]:
    given = os.environ.get(KEY_VARIABLE)
    if given:
        return (given.encode(),)
    if not uri.startswith("file://"):
        return ()
    key = Path(uri[len("file://") :]).resolve().parent / "key"
    try:
        mode = key.stat().st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            note(f"{key} is not used as a key: others than its owner may read it")
            return ()
        return (bytes.fromhex(key.read_text().strip()),)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as wrong:
        note(f"{key} is not used as a key: {wrong}")
        return ()
