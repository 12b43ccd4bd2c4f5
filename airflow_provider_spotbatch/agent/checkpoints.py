"""Checkpoints: bytes that an item saved, so that it can go on elsewhere. Stored as MAC + bytes."""

from __future__ import annotations

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.signing import MAC_BYTES, Signer


class Checkpoints:
    """Saves for one instance, loads what any instance saved."""

    def __init__(self, store: Store, run: Run, signer: Signer, instance: str) -> None:
        self._store = store
        self._run = run.number
        self._generation = run.generation
        self._signer = signer
        self._instance = instance

    async def save(self, item: int, attempt: int, data: bytes) -> None:
        """Returns once it is durable. Raises StoreUnavailable."""
        name = self._generation.checkpoint(item, self._run, attempt, self._instance)
        await self._store.write(name, self._signer.mac("checkpoint", name, data) + data)

    async def load(self, item: int) -> bytes | None:
        """What the latest attempt saved last, by the store's time where two machines ran one attempt."""
        found = await self._store.list_objects(self._generation.checkpoints(item))
        if not found:
            return None
        latest = max(found, key=lambda entry: (_attempt(entry.name), entry.modified))
        stored = await self._store.read(latest.name)
        if stored is None:
            return None
        mac, data = stored[:MAC_BYTES], stored[MAC_BYTES:]
        self._signer.check(mac, "checkpoint", latest.name, data)
        return data


def _attempt(name: str) -> list[str]:
    """Run and attempt, zero-padded."""
    return name.rsplit("/", 1)[1].split("-", 2)[:2]
