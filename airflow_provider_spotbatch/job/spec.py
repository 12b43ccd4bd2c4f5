"""The specification of a generation: what is run, on what, in which environment. Immutable and signed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.items import ItemTable, Part
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Signer

FORMAT = 1

FUNCTION = "function"
DOTTED = "dotted"
COMMAND = "command"

CALL_ITEM = "item"
CALL_SPREAD = "spread"


@dataclass(frozen=True)
class Work:
    """What is done with each item.

    ``kind`` function: ``blob`` is a pickle of ``{"function", "kwargs", "modules"}`` where modules is
    stable module name → qualified name → class or function of that travelling module;
    dotted: ``name`` is imported on the machine, ``blob`` is a pickle of ``{"kwargs", "modules"}``;
    command: ``blob`` is JSON ``{"command": [...], "kwargs": {}}`` in which ``{item}`` stands for the item.
    ``call`` item: ``function(item, **kwargs)``; spread: the item is ``{"args", "kwargs"}`` of the one call.
    ``travelling``: stable module name → path of its source below the DAG bundle.
    """

    kind: str
    name: str
    blob: str
    call: str = CALL_ITEM
    travelling: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker runs in, as resolved by the Airflow side.

    ``code``: blobs, each a zip of modules to put on the import path; ``files``: name in the item's
    working folder → blob; ``env``: environment variables, stored in clear; ``secrets``: variable →
    reference that the machine resolves; ``packages``: requirement lines; ``archives``:
    architecture → blob of what they were resolved to, where machines come with nothing of ours;
    ``setup``: a script run once per machine.
    """

    python: str
    code: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    setup: str | None = None
    archives: dict[str, str] = field(default_factory=dict)

    @property
    def setup_blob(self) -> str:
        """The blob that holds the setup script where a machine reads it from the store; "" without one."""
        return "" if self.setup is None else hashlib.sha256(self.setup.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "code": list(self.code),
            "packages": list(self.packages),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> WorkerEnvironment:
        stored = {name: value for name, value in stored.items() if name != "archive"}  # never set, of 0.1
        return cls(
            **{
                **stored,
                "code": tuple(stored["code"]),
                "packages": tuple(stored["packages"]),
            }
        )


@dataclass(frozen=True)
class Spec:
    """One generation. ``fingerprint`` None: it has no stable one, so it can never be resumed.

    ``identity``: dag_id, run_id, task_id, map_index, for lists and messages.
    """

    generation: Generation
    work: Work
    items: ItemTable
    environment: WorkerEnvironment
    fingerprint: str | None
    key_id: str
    created: str
    identity: dict[str, Any]

    @property
    def blobs(self) -> set[str]:
        """The sha256 of every blob that a worker needs."""
        environment = self.environment
        setup = {environment.setup_blob} if environment.setup_blob else set()
        named = (*environment.code, *environment.files.values(), *environment.archives.values())
        return {self.work.blob, *named, *setup}

    def to_bytes(self, signer: Signer) -> bytes:
        body = {
            "format": FORMAT,
            "job": self.generation.job,
            "generation": self.generation.number,
            "work": self.work.to_json(),
            "items": {
                "submission": self.items.submission,
                "count": self.items.count,
                "parts": [[part.first, part.count, part.size] for part in self.items.parts],
            },
            "environment": self.environment.to_json(),
            "fingerprint": self.fingerprint,
            "key_id": self.key_id,
            "created": self.created,
            "identity": self.identity,
        }
        return signer.sign_json("spec", "spec.json", body)

    @classmethod
    def from_bytes(cls, signer: Signer, data: bytes) -> Spec:
        body = signer.open_json("spec", "spec.json", data)
        if body["format"] != FORMAT:
            raise FormatMismatch(f"a spec has format {body['format']!r}; this release reads {FORMAT}")
        items = body["items"]
        return cls(
            generation=Generation(body["job"], body["generation"]),
            work=Work(**body["work"]),
            items=ItemTable(
                items["submission"],
                items["count"],
                tuple(Part(*part) for part in items["parts"]),
            ),
            environment=WorkerEnvironment.from_json(body["environment"]),
            fingerprint=body["fingerprint"],
            key_id=body["key_id"],
            created=body["created"],
            identity=body["identity"],
        )
