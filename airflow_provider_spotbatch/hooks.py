"""The connection: read, checked by name, and handed on as :class:`Settings`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, conf

from airflow_provider_spotbatch.backends import BACKENDS
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.connection_extra import LOCAL, Extra
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError
from airflow_provider_spotbatch.job.policy import PURCHASE, Policy
from airflow_provider_spotbatch.provider_info import CONNECTION_FIELDS, UI_FIELD_BEHAVIOUR

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.base import Check

DEFAULT_CONN_ID = "spotbatch_default"
AWS = "aws"
OWN_KEY = ("local", "memory")
"""Backends that work without a password: nothing of theirs leaves this machine."""

IDLE_SECONDS_LEAST = 45.0
"""A lease (at most 30 s) and the default pause between two looks (15 s)."""

Say = Callable[[str], None]


class SpotBatchHook(BaseHook):
    """Reads a connection of type ``spotbatch``.

    A missing connection named ``spotbatch_default`` stands for the local backend; any other missing
    one is an error.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "spotbatch"
    hook_name = "SpotBatch"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_settings(self) -> Settings:
        """The connection's settings. Raises InvalidInput naming the field that is wrong."""
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            return self._local()
        return read_settings(self.conn_id, connection)

    async def aget_settings(self, *, may_be_missing: bool = True) -> Settings:
        """:meth:`get_settings` for an event loop. Where the connection may not be missing, since a job
        runs where it leads, raises SpotBatchError instead of standing for the local backend."""
        try:
            connection = await self._aget_connection()
        except AirflowNotFoundException as missing:
            if not may_be_missing:
                raise SpotBatchError(
                    f"the connection {self.conn_id!r}, by which the job was started, cannot be read any "
                    "more: it was removed, or Airflow's API server did not answer"
                ) from missing
            return await asyncio.to_thread(self._local)
        from asgiref.sync import sync_to_async

        # Airflow masks the secrets of what is read, by a message that must be sent from its loop: out of
        # any other thread than asgiref's own it would break the triggerer's talk with its supervisor.
        return await sync_to_async(read_settings)(self.conn_id, connection)

    def settings_for(self, policy: Policy, say: Say) -> Settings:
        """:meth:`get_settings` for a job: a fallback to local is said aloud, and refused where the
        job asks for what only a cloud has (purchase, budget, GPUs) or the site forbids it.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            settings = self._local()
            _check_fallback(policy)
            say(
                f"The connection {self.conn_id!r} does not exist: running on the local backend, on this "
                "machine. Create the connection (type spotbatch) to run elsewhere."
            )
            return settings
        return read_settings(self.conn_id, connection)

    def test_connection(self) -> tuple[bool, str]:
        """Every check of ``spotbatch check``: the first that failed, or that all passed."""
        try:
            checks = self.check()
        except Exception as error:  # noqa: BLE001 - the form shows whatever went wrong
            return False, str(error)
        for check in checks:
            if not check.ok:
                return False, f"{check.name}: {check.found} {check.remedy}".rstrip()
        return True, "; ".join(f"{check.name}: {check.found}" for check in checks)

    def check(self) -> list[Check]:
        """What the connection needs, looked at one by one. Not for an event loop."""
        from airflow_provider_spotbatch.control.checks import check_settings, failed_connection

        try:
            settings = self.get_settings()
        except InvalidInput as wrong:
            return [failed_connection(wrong)]
        return asyncio.run(check_settings(settings))

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """The fields of the form, for Airflow 3.1; later releases read them from the provider info."""
        import wtforms  # type: ignore[import-untyped]

        def widget(field: dict[str, Any]) -> Any:
            if field["schema"].get("format") == "password":
                return wtforms.PasswordField
            of_kind = {"integer": wtforms.IntegerField, "boolean": wtforms.BooleanField}
            return of_kind.get(field["schema"]["type"][0], wtforms.StringField)

        return {
            name: widget(field)(field["label"], description=field["description"])
            for name, field in CONNECTION_FIELDS.items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Labels of the form, for Airflow 3.1."""
        return {name.replace("-", "_"): value for name, value in UI_FIELD_BEHAVIOUR.items()}

    async def _aget_connection(self) -> Any:
        """By either of Airflow's ways: ``dag.test()`` answers only the second, and takes a connection of
        the database for missing when asked by the first (InProcessSupervisorComms has no ``asend``)."""
        from asgiref.sync import sync_to_async

        if hasattr(BaseHook, "aget_connection"):
            with contextlib.suppress(AirflowNotFoundException):
                return await BaseHook.aget_connection(self.conn_id)
        return await sync_to_async(self.get_connection)(self.conn_id)

    def _local(self) -> Settings:
        """Settings of the local backend in place of a missing connection, if it may be missing."""
        if self.conn_id != DEFAULT_CONN_ID:
            raise InvalidInput(
                f"the connection {self.conn_id!r} does not exist. Create it (type spotbatch), or leave "
                f"conn_id out to use {DEFAULT_CONN_ID!r}"
            )
        if not conf.getboolean("spotbatch", "local_fallback", fallback=True):
            raise InvalidInput(
                f"the connection {self.conn_id!r} does not exist, and [spotbatch] local_fallback is False: "
                "create the connection (type spotbatch)"
            )
        return read_settings(self.conn_id, None)


def read_settings(conn_id: str, connection: Any) -> Settings:
    """What a connection says; None stands for the local backend with nothing set."""
    if connection is not None and connection.conn_type != SpotBatchHook.conn_type:
        raise InvalidInput(
            f"the connection {conn_id!r} is of type {connection.conn_type!r}; it must be of type 'spotbatch'"
        )
    extra = Extra(conn_id, {} if connection is None else connection.extra_dejson)
    backend = extra.text("backend") or LOCAL
    if backend not in BACKENDS:
        raise InvalidInput(
            f"connection {conn_id!r}: this release knows the backends {', '.join(BACKENDS)}, not {backend!r}"
        )
    path = extra.text("path")
    options = {
        "path": path,
        "instances": extra.whole("instances"),
        "tags": extra.mapping("tags") or None,
        "rehearse": extra.rehearsal("rehearse", backend),
    }
    if backend == AWS:
        from airflow_provider_spotbatch.aws_connection import aws_options

        options |= aws_options(conn_id, extra)
    return Settings(
        conn_id=conn_id,
        backend=backend,
        key=_key(conn_id, backend, None if connection is None else connection.password, path),
        old_keys=tuple(key.encode() for key in extra.lines("old_keys")),
        store=_without_slash(extra.text("store") or ""),
        store_options=extra.mapping("store_options"),
        max_instances=extra.whole("max_instances"),
        max_usd_per_hour=extra.number("max_usd_per_hour"),
        budget_usd=extra.number("budget_usd"),
        idle_timeout=_idle_timeout(conn_id, extra.number("idle_timeout")),
        orphan_after=extra.number("orphan_after") or Settings.orphan_after,
        retention_days=extra.number("retention_days"),
        options={name: value for name, value in options.items() if value is not None},
    )


def _key(conn_id: str, backend: str, password: str | None, path: str | None) -> bytes:
    if password:
        return password.encode()
    if backend in OWN_KEY:
        from airflow_provider_spotbatch.backends.local import local_key

        return local_key(path)
    raise InvalidInput(
        f"the connection {conn_id!r} has no password. It is the key that signs code and results; make one "
        "with: python -c 'import secrets; print(secrets.token_hex(32))'"
    )


def _without_slash(store: str) -> str:
    """One store has one name, which queues and machines are found by."""
    scheme, colon, path = store.partition("://")
    return scheme + colon + (path.rstrip("/") or path)


def _idle_timeout(conn_id: str, asked: float | None) -> float:
    """A lost message is found by an agent that saw its queue empty for a lease, and lives to tell it."""
    if asked is not None and asked < IDLE_SECONDS_LEAST:
        raise InvalidInput(
            f"connection {conn_id!r}: 'idle_timeout' must be at least {IDLE_SECONDS_LEAST:g} s (longer than "
            f"a lease of the queue and a look of the controller), not {asked:g}"
        )
    return Settings.idle_timeout if asked is None else asked


def _check_fallback(policy: Policy) -> None:
    asked = [
        name
        for name, given in (
            (f"purchase={policy.purchase!r}", policy.purchase != PURCHASE[0]),
            (f"budget_usd={policy.budget_usd!r}", policy.budget_usd is not None),
            (f"item_resources with {policy.resources.gpus} GPUs", policy.resources.gpus > 0),
        )
        if given
    ]
    if asked:
        raise InvalidInput(
            f"the task asks for {' and '.join(asked)}, which the local backend cannot give, and the "
            f"connection {DEFAULT_CONN_ID!r} does not exist: create it (type spotbatch)"
        )
