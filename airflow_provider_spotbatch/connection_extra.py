"""The extra of a connection, field by field: each error names the field and what it must be."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_spotbatch.backends.rehearsal import Rehearsal, parse_rehearsal
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.resources import positive
from airflow_provider_spotbatch.provider_info import CONNECTION_FIELDS

LOCAL = "local"


class Extra:
    """The extra of a connection: every field by its name, empty ones as absent, unknown ones refused."""

    def __init__(self, conn_id: str, fields: dict[str, Any]) -> None:
        self._conn_id = conn_id
        self._fields = {name: value for name, value in fields.items() if value not in (None, "")}
        unknown = sorted(set(self._fields) - set(CONNECTION_FIELDS))
        if unknown:
            raise InvalidInput(
                f"connection {conn_id!r} has unknown fields in its extra: {', '.join(unknown)}. "
                f"Known are: {', '.join(sorted(CONNECTION_FIELDS))}"
            )

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "text", value)
        return value

    def number(self, name: str) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        try:
            return positive(name, float(value) if isinstance(value, str) else value)
        except ValueError:
            raise self._wrong(name, "a number above 0", value) from None

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self._wrong(name, "a whole number", value)
        return int(value)

    def flag(self, name: str) -> bool:
        """False where it is not set."""
        value = self._fields.get(name, False)
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def names(self, name: str) -> list[str]:
        """A list, or a text with names apart by commas, spaces or lines."""
        value = self._fields.get(name, [])
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(name, "a list of names", value)
        return value

    def lines(self, name: str) -> list[str]:
        value = self._fields.get(name, [])
        if isinstance(value, str):
            value = value.splitlines()
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise InvalidInput(f"connection {self._conn_id!r}: {name!r} must be a list of texts")
        return [line.strip() for line in value if line.strip()]

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name, {})
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise self._wrong(name, "a JSON object", value) from None
        if not isinstance(value, dict):
            raise self._wrong(name, "a JSON object", value)
        return value

    def rehearsal(self, name: str, backend: str) -> Rehearsal | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if backend != LOCAL:
            raise InvalidInput(
                f"connection {self._conn_id!r}: {name!r} interrupts machines of the local backend, and this "
                f"connection leads to {backend!r}: remove it"
            )
        try:
            return parse_rehearsal(value)
        except InvalidInput as error:
            raise InvalidInput(f"connection {self._conn_id!r}: {error}") from None

    def _wrong(self, name: str, wanted: str, value: Any) -> InvalidInput:
        return InvalidInput(f"connection {self._conn_id!r}: {name!r} must be {wanted}, not {value!r}")
