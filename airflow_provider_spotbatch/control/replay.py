"""What a replay of one item needs: its documents, what is on record of it, and how the two compare.

The item itself is run by ``agent/replay.py``. Nothing is written to the store.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.item_record import ItemRecord, read_item_record
from airflow_provider_spotbatch.control.run_summary import RunDocuments, read_documents
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON, local_interpreter
from airflow_provider_spotbatch.job.errors import InvalidInput, SignatureMismatch
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.outcome import FAILURE, INTERRUPTED, LOST, OK, Failure, ItemOutcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.spec import COMMAND, Spec

_ARCHITECTURES = {"aarch64": "arm64", "AMD64": "x86_64"}


@dataclass(frozen=True)
class Replay:
    """One item of a run, about to be run here. ``recorded`` None: no outcome of it is stored yet.

    ``differences``: in what this machine differs from those that the job asked for.
    """

    item: int
    documents: RunDocuments
    recorded: ItemRecord | None
    differences: tuple[str, ...]

    @property
    def spec(self) -> Spec:
        """The specification without what only the job's machines can resolve."""
        spec = self.documents.spec
        return replace(spec, environment=replace(spec.environment, secrets={}, setup=None))

    @property
    def is_command(self) -> bool:
        return self.spec.work.kind == COMMAND

    @property
    def memory_mb(self) -> float:
        """What the item might use where it ran last: twice as much with each time it had outgrown that."""
        memory_class = 0 if self.recorded is None else self.recorded.memory_class
        return self.documents.record.policy.resources.in_class(memory_class).memory_gb * 1024

    async def interpreter(self, folder: str) -> str:
        """Path of an interpreter with the job's packages, which are installed below ``folder``.

        Raises InvalidInput where it cannot be had here.
        """
        secrets = self.documents.spec.environment.secrets
        unset = [name for name in secrets if name not in os.environ]
        if unset:
            raise InvalidInput(
                f"item {self.item} needs the secrets {', '.join(unset)}, which only the job's machines can "
                "resolve: set environment variables of these names, and replay it again"
            )
        try:
            return await local_interpreter(self.spec.environment, folder)
        except InvalidInput as error:
            raise InvalidInput(f"item {self.item} cannot be run here: {error}") from error


async def open_replay(store: Store, keyring: Keyring, run: Run, item: int) -> Replay:
    """Read what is needed of a run, all signatures checked.

    Raises InvalidInput for an item that the job does not have, SignatureMismatch without the right key.
    """
    if sys.platform != "linux":
        raise InvalidInput(
            f"an item is run as on the job's machines, which needs Linux, and this is {sys.platform}: "
            "replay it in a container"
        )
    if not keyring:
        raise SignatureMismatch(
            "a replay runs the job's code, which must be known to be yours: it needs the key that signed it"
        )
    documents = await read_documents(store, keyring, run)
    count = documents.spec.items.count
    if not 0 <= item < count:
        known = f"its items are 0 to {count - 1:,}" if count else "it has no items"
        raise InvalidInput(f"job {run.generation.job} has no item {item}: {known}")
    return Replay(
        item=item,
        documents=documents,
        recorded=await read_item_record(store, documents.signer, run, item),
        differences=differences(documents.spec, documents.record, os.environ.keys()),
    )


def differences(spec: Spec, record: RunRecord, variables: Collection[str]) -> tuple[str, ...]:
    """In what this machine differs from the job's. ``variables``: the environment variables set here."""
    environment = spec.environment
    found = []
    if environment.python and environment.python != CURRENT_PYTHON:
        found.append(
            f"the job runs on Python {environment.python} and this command on {CURRENT_PYTHON}: "
            f"a Python {environment.python} of this machine is used"
        )
    asked = record.policy.resources.architectures
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if asked and own not in asked:
        found.append(f"the job asks for machines of {' or '.join(asked)}; this one is {own}")
    if environment.setup is not None:
        found.append("the environment's setup script, which runs as root, is not run here")
    given = [name for name in environment.secrets if name in variables]
    if given:
        found.append(f"the secrets {', '.join(given)} are taken from this command's environment variables")
    return tuple(found)


@dataclass(frozen=True)
class Verdict:
    """How the item ended here. ``same_as_recorded`` None: there is no outcome to compare with."""

    ok: bool
    failure: Failure | None
    same_as_recorded: bool | None
    message: str


def compare(recorded: ItemRecord | None, outcome: ItemOutcome) -> Verdict:
    """Hold the outcome against what is on record. Failures are alike by cause and type."""
    ok = outcome.cause == OK
    failure = Failure.from_bytes(outcome.value) if outcome.kind == FAILURE else None
    if recorded is None:
        return Verdict(ok, failure, None, "No outcome of this item is on record.")
    then = recorded.failure
    if then is None:
        message = "It succeeded, as on record." if ok else "It fails here; it succeeded on its machine."
        return Verdict(ok, failure, ok, message)
    if failure is None:
        return Verdict(ok, None, False, _succeeds_here(recorded.cause))
    if (recorded.cause, then.type) != (outcome.cause, failure.type):
        return Verdict(ok, failure, False, f"Another failure: on record is {recorded.cause}, {then.label}")
    if then.message == failure.message:
        return Verdict(ok, failure, True, "It failed in the same way.")
    return Verdict(
        ok, failure, True, f"It failed in the same way, with another message; on record is: {then.label}"
    )


def _succeeds_here(recorded_cause: str) -> str:
    if recorded_cause in (INTERRUPTED, LOST):
        return "It succeeds here: its machines were taken away before it could end."
    return (
        "It succeeds here: the cause may be the machine (memory, time, an interruption), chance, or data "
        "that has changed since."
    )
