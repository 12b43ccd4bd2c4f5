"""Reads what a run left in the store: places from its index, values, failures and items.

Synchronous, for use inside a task, in memory bounded by the constants below.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_spotbatch.job.codec import Resolver, decode
from airflow_provider_spotbatch.job.errors import JobFailed, SignatureMismatch, StoreUnavailable
from airflow_provider_spotbatch.job.index import BLOCK_RECORDS, Place, block_span, open_block, place_at
from airflow_provider_spotbatch.job.items import OFFSET_BYTES, offsets_from_bytes, unpack
from airflow_provider_spotbatch.job.keyring import Keyring
from airflow_provider_spotbatch.job.keys import ChunkId, Run, blob
from airflow_provider_spotbatch.job.outcome import Failure, ResultHead, decode_head, head_size
from airflow_provider_spotbatch.job.signing import Signer, unverified_body
from airflow_provider_spotbatch.job.spec import Spec
from airflow_provider_spotbatch.running_task import globals_of_its_function

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from airflow_provider_spotbatch.backends.settings import Settings

FIRST_READ = 256 * 1024
"""Bytes of a result object read at first: the head of about a thousand items, often their values too."""

WHOLE_OBJECT = 8 * 1024 * 1024
"""A smaller result object is read at once when its values are read one after another."""

KEPT_BYTES = 4 * WHOLE_OBJECT
"""Bytes of result objects kept at hand: values of one chunk follow each other, retries lie between."""

KEPT_BLOCKS = 16
KEPT_OFFSETS = 4

K = TypeVar("K")
V = TypeVar("V")

_used_by: int | None = None
"""The process that first used a store here: obstore hangs in a child forked after that."""


def check_not_forked() -> None:
    """Raise RuntimeError in a process that was forked from one that had used a store."""
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
    elif _used_by != os.getpid():
        raise RuntimeError(
            "results cannot be read in a process that was forked after its parent had read some: the "
            "object store would hang. Use multiprocessing.get_context('spawn')"
        )


class _Kept(OrderedDict[K, V]):
    """The entries used last, as many as weigh no more than ``limit`` together, but always the last."""

    def __init__(self, limit: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        super().__init__()
        self._limit = limit
        self._weigh = weigh

    def find(self, key: K) -> V | None:
        if key in self:
            self.move_to_end(key)
            return self[key]
        return None

    def keep(self, key: K, value: V) -> V:
        self[key] = value
        self.move_to_end(key)
        while len(self) > 1 and sum(map(self._weigh, self.values())) > self._limit:
            self.popitem(last=False)
        return value


@dataclass(frozen=True)
class _ResultObject:
    """A result object as far as it was read: its head, and its first bytes."""

    name: str
    head: ResultHead
    data: bytes

    @property
    def size(self) -> int:
        """Bytes of the whole object."""
        last = len(self.head) - 1
        return self.head.span(last)[1] if last >= 0 else self.head.values_at


class ResultReader:
    """One run's results. Opens the store when first asked, in the process that asks.

    Every method raises StoreUnavailable where an object is not to be had, and SignatureMismatch where
    one was not signed with a key of the connection.
    """

    def __init__(self, run: Run, settings: Callable[[], Settings]) -> None:
        self._run = run
        self._read_settings = settings
        self._blocks: _Kept[int, bytes] = _Kept(KEPT_BLOCKS)
        self._objects: _Kept[ChunkId, _ResultObject] = _Kept(KEPT_BYTES, lambda found: len(found.data))
        self._offsets: _Kept[int, Sequence[int]] = _Kept(KEPT_OFFSETS)

    def place(self, item: int) -> Place:
        """Where the outcome of an item lies: no request while its block is at hand."""
        number, start, stop = block_span(item)
        block = self._blocks.find(number)
        if block is None:
            data = self._range(self._run.index, start, stop)
            block = self._blocks.keep(number, open_block(self._signer, self._run.number, number, data))
        return place_at(block, item % BLOCK_RECORDS)

    def value(self, place: Place, *, in_order: bool) -> Any:
        """The value of an item that succeeded. ``in_order``: others of its chunk are about to follow."""
        kind, data = self._outcome(place, in_order)
        return decode(kind, data, self._resolve)

    def failure(self, place: Place, *, in_order: bool) -> Failure:
        """What is known of an item's failure."""
        return Failure.from_bytes(self._outcome(place, in_order)[1])

    def item(self, index: int) -> Any:
        """The input of an item."""
        table = self._spec.items
        number = table.part_of(index)
        part = table.parts[number]
        offsets = self._offsets.find(number)
        if offsets is None:
            name = self._run.generation.item_offsets(table.submission, number)
            data = self._range(name, 0, (part.count + 1) * OFFSET_BYTES)
            offsets = self._offsets.keep(number, offsets_from_bytes(data))
        name = self._run.generation.item_part(table.submission, number)
        start, stop = offsets[index - part.first], offsets[index - part.first + 1]
        return decode(*unpack(self._signer, index, self._range(name, start, stop)), self._resolve)

    def _outcome(self, place: Place, in_order: bool) -> tuple[str, bytes]:
        if place.chunk is None:
            raise JobFailed(f"an item of job {self._run.generation.job} has no outcome: the job was stopped")
        found = self._objects.find(place.chunk) or self._open(place.chunk)
        start, stop = found.head.span(place.ordinal)
        if in_order and len(found.data) < found.size < WHOLE_OBJECT:
            found = self._objects.keep(place.chunk, self._whole(found))
        at_hand = stop <= len(found.data)
        data = found.data[start:stop] if at_hand else self._range(found.name, start, stop)
        return found.head.row(place.ordinal).kind, found.head.check(place.ordinal, data)

    def _open(self, chunk: ChunkId) -> _ResultObject:
        name = self._run.generation.result(chunk)
        data = self._range(name, 0, FIRST_READ)
        size = head_size(data)
        if size > len(data):
            data += self._range(name, len(data), size)
        return self._objects.keep(chunk, _ResultObject(name, decode_head(self._signer, chunk, data), data))

    def _whole(self, found: _ResultObject) -> _ResultObject:
        rest = self._range(found.name, len(found.data), found.size)
        return _ResultObject(found.name, found.head, found.data + rest)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        import obstore

        if stop <= start:
            return b""
        return self._ask(name, lambda: bytes(obstore.get_range(self._store, name, start=start, end=stop)))

    def _object(self, name: str) -> bytes:
        import obstore

        return self._ask(name, lambda: bytes(obstore.get(self._store, name).bytes()))

    def _ask(self, name: str, request: Callable[[], bytes]) -> bytes:
        from obstore.exceptions import BaseError

        check_not_forked()
        try:
            return request()
        except FileNotFoundError as error:
            generation = self._run.generation
            raise StoreUnavailable(
                f"the results of job {generation.job} (generation {generation.number}) are no longer in "
                f"{self._uri}: {name} is missing. `spotbatch clean` has removed them ('retention_days' of "
                "the connection), or it names another store now. Clear the task to compute them again"
            ) from error
        except (BaseError, OSError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreUnavailable(f"could not read {name} in {self._uri}: {first_line}") from error

    @cached_property
    def _settings(self) -> Settings:
        return self._read_settings()

    @cached_property
    def _opened(self) -> tuple[str, ObjectStore]:
        from airflow_provider_spotbatch.backends import open_backend

        check_not_forked()
        store = open_backend(self._settings).open_store()
        return store.uri, store.inner

    @property
    def _uri(self) -> str:
        return self._opened[0]

    @property
    def _store(self) -> ObjectStore:
        return self._opened[1]

    @cached_property
    def _signed(self) -> tuple[Spec, Signer]:
        """The specification and the signer of its key, looked for among the connection's keys."""
        generation = self._run.generation
        data = self._object(generation.spec)
        keyring = Keyring((self._settings.key, *self._settings.old_keys))
        signer = keyring.signer(generation, unverified_body(data)["key_id"])
        return Spec.from_bytes(signer, data), signer

    @property
    def _spec(self) -> Spec:
        return self._signed[0]

    @property
    def _signer(self) -> Signer:
        return self._signed[1]

    @cached_property
    def _resolve(self) -> Resolver:
        from airflow_provider_spotbatch.environment.travelling import resolver

        return resolver(self._spec.work, self._work_blob, globals_of_its_function())

    def _work_blob(self) -> bytes:
        """The blob that the signed specification names by its hash."""
        name = self._spec.work.blob
        data = self._object(blob(name))
        if hashlib.sha256(data).hexdigest() != name:
            raise SignatureMismatch(f"the stored {blob(name)} was changed after it was written")
        return data
