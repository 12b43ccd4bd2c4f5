"""Airflow's REST API, as a user's client calls it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

SECONDS = 30.0

WRITES = 20
"""How often a verb is given until the database takes it: sqlite refuses who writes at the same time."""

PAUSE = 0.3

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(Exception):
    """The API did not answer, or not with what was asked for."""


class Locked(Refused):
    """The database did not take it: nothing was done."""


class Api:
    def __init__(self, base: str) -> None:
        self._base = base
        self._token: str | None = None
        self._one_verb = threading.Lock()

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self._write("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._write("PATCH", path, body)

    def _write(self, method: str, path: str, body: Any) -> Any:
        for _ in range(WRITES):
            with self._one_verb, suppress(Locked):
                return self._call(method, path, body)
            time.sleep(PAUSE)
        raise Refused(f"{method} {path}: the database stays locked")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        if self._token is None:
            self._token = self._ask("GET", "/auth/token")["access_token"]
        return self._ask(method, f"/api/v2/{path}", body)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with _direct.open(request, timeout=SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            kind = Locked if "Database error" in text else Refused
            raise kind(f"{method} {path}: {error.code} {text[:500]}") from None
        except OSError as error:
            raise Refused(f"{method} {path}: {error}") from None
