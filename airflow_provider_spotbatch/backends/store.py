"""The object store: obstore, with the few verbs and the time limits that this package uses.

Never open a store at import: obstore does not survive a fork of a process that has used it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_spotbatch.backends.deadline import within
from airflow_provider_spotbatch.job.errors import InvalidInput, StoreDenied, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

REQUEST_SECONDS = 30.0
"""One request: protects a tick and an agent's last words from a server that is silent."""

ATTEMPTS = 4
"""Tries of one request, with backoff, over what obstore itself retries."""


PERMISSIONS = {
    "s3": {
        "write": "s3:PutObject",
        "read": "s3:GetObject and s3:ListBucket",  # without the second, what is not there is denied too
        "look at": "s3:GetObject and s3:ListBucket",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "write": "storage.objects.create and storage.objects.delete",  # the second for a rewrite
        "read": "storage.objects.get and storage.objects.list",
        "look at": "storage.objects.get and storage.objects.list",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
}
"""What must be allowed for each verb, by the scheme of the store's URI."""

CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
"""Codes of S3 that are about the credentials themselves (S3 API reference, "Error responses")."""

RENEW = (
    "Give the connection valid credentials for its store ('aws_conn_id' on AWS): they are missing, have "
    "expired or are wrong"
)

_KEY_DENIED = re.compile(
    r"not authorized to perform: (?P<action>kms:[A-Za-z]+) on resource: (?P<key>[^\s<]+)"
)
"""What S3 says where the bucket has a key of its owner's, and that key may not be used."""

NO_BUCKET = "NoSuchBucket"
"""The code of S3 and of Google Cloud Storage. The library tells it as an object that is not there."""

DELETED_AT_ONCE = 1000
"""Objects in one request of S3, at most."""

PAGE = 1000

UPLOAD_PART = 16 * 2**20
UPLOAD_BYTES_PER_SECOND = 2**20
"""What a link from the Airflow side carries at least: an upload of a file has so much more time."""


@dataclass(frozen=True)
class StoredObject:
    """One entry of a listing. ``tag`` changes with the object's bytes (on S3 with nothing else: it is their
    checksum); ``modified`` is the store's own time, seconds since the epoch."""

    name: str
    size: int
    tag: str
    modified: float


class Store:
    """One prefix of an object store. Names are relative to it.

    Every method raises StoreUnavailable when the store does not answer within its limits.
    """

    def __init__(self, uri: str, inner: ObjectStore, *, seconds: float = REQUEST_SECONDS) -> None:
        self.uri = uri
        self.inner = inner
        self._seconds = seconds
        self._pid = os.getpid()

    async def create(self, name: str, data: bytes) -> bool:
        """Write an object that must not exist yet; False if it does (perhaps by our own retried write)."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            await self._ask(
                "write",
                name,
                lambda: obstore.put_async(self.inner, name, data, mode="create", use_multipart=False),
            )
        except AlreadyExistsError:
            return False
        return True

    async def write(self, name: str, data: bytes) -> None:
        """Write or rewrite an object that has one owner."""
        import obstore

        await self._ask(
            "write",
            name,
            lambda: obstore.put_async(self.inner, name, data, use_multipart=False),
        )

    async def upload(self, name: str, path: Path) -> None:
        """Write or rewrite an object with the content of a file, in parts if it is large."""
        import obstore

        size = await asyncio.to_thread(os.path.getsize, path)
        seconds = self._seconds + size / UPLOAD_BYTES_PER_SECOND
        await self._ask(
            "write",
            name,
            lambda: obstore.put_async(self.inner, name, path, chunk_size=UPLOAD_PART, max_concurrency=4),
            seconds=seconds,
        )

    async def read(self, name: str) -> bytes | None:
        """The whole object, or None if it is not there."""
        import obstore

        async def get() -> bytes:
            answer = await obstore.get_async(self.inner, name)
            return bytes(await answer.bytes_async())

        try:
            return await self._ask("read", name, get)
        except FileNotFoundError:
            return None

    async def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """Bytes ``start`` to ``stop`` (excluded) of an object, or None if it is not there."""
        import obstore

        if stop <= start:
            return b""
        try:
            return bytes(
                await self._ask(
                    "read",
                    name,
                    lambda: obstore.get_range_async(self.inner, name, start=start, end=stop),
                )
            )
        except FileNotFoundError:
            return None

    async def exists(self, name: str) -> bool:
        return await self.find(name) is not None

    async def find(self, name: str) -> StoredObject | None:
        """The object as it stands in a listing, or None if it is not there."""
        import obstore

        try:
            found = await self._ask("look at", name, lambda: obstore.head_async(self.inner, name))
        except FileNotFoundError:
            return None
        return replace(_stored(found), name=name)  # obstore before 0.12 tells it with the store's prefix

    async def list_objects(self, prefix: str, after: str | None = None) -> list[StoredObject]:
        """Objects below ``prefix``, ordered by name, only those after ``after`` if it is given."""
        import obstore

        async def collect() -> Any:
            return await obstore.list(self.inner, prefix, offset=after).collect_async()

        found = await self._ask("list", prefix, collect)
        return sorted(map(_stored, found), key=lambda entry: entry.name)

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        """Objects below ``prefix`` in no order, some hundreds at a time: for listings that may be too
        long for memory. What is written or deleted meanwhile may be in it or not."""
        import obstore

        pages = obstore.list(self.inner, prefix, chunk_size=PAGE)
        while True:
            # Never asked again: whether the listing went on meanwhile, nobody could tell.
            page = await self._ask("list", prefix, partial(_next_page, pages), attempts=1)
            if not page:
                return
            yield [_stored(entry) for entry in page]

    async def list_folders(self, prefix: str) -> list[str]:
        """Full names of the folders right below ``prefix``, in order; nothing below them is listed."""
        import obstore

        async def ask() -> Any:
            return await obstore.list_with_delimiter_async(self.inner, prefix)

        found = await self._ask("list", prefix, ask)
        return sorted(found["common_prefixes"])

    async def delete(self, names: list[str]) -> None:
        """Delete objects; harmless for those that are not there."""
        for start in range(0, len(names), DELETED_AT_ONCE):
            some = names[start : start + DELETED_AT_ONCE]
            if not await self._delete(some):
                for name in some:
                    await self._delete([name])

    async def _delete(self, names: list[str]) -> bool:
        """False where one of them was not there: then others of them may be left."""
        import obstore

        what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        try:
            await self._ask("delete", what, lambda: obstore.delete_async(self.inner, names))
        except FileNotFoundError:
            return False
        return True

    async def _ask(
        self,
        verb: str,
        name: str,
        request: Callable[[], Awaitable[T]],
        *,
        attempts: int = ATTEMPTS,
        seconds: float | None = None,
    ) -> T:
        from obstore.exceptions import AlreadyExistsError, BaseError

        if os.getpid() != self._pid:
            raise RuntimeError(
                "this object store was opened before the process forked, and would hang: "
                "use the 'spawn' start method of multiprocessing"
            )
        for attempt in range(1, attempts + 1):
            try:
                return await within(seconds or self._seconds, request())
            except AlreadyExistsError:
                raise
            except (BaseError, OSError, asyncio.TimeoutError) as error:
                if _told_code(error) == NO_BUCKET:
                    raise InvalidInput(
                        f"there is no bucket of the store {self.uri}: make it, or correct 'store' of the "
                        "connection"
                    ) from error
                if isinstance(error, FileNotFoundError):
                    raise
                if remedy := _remedy(error, self.uri, verb):
                    raise StoreDenied(
                        f"may not {verb} {name} in {self.uri}: {_first_line(error)}", remedy=remedy
                    ) from error
                if attempt == attempts:
                    raise StoreUnavailable(
                        f"could not {verb} {name} in {self.uri} after {attempt} tries: {_first_line(error)}"
                    ) from error
                await asyncio.sleep(random.uniform(0.5, 1.0) * 0.2 * 2**attempt)
        raise AssertionError("unreachable")


def _stored(entry: Any) -> StoredObject:
    return StoredObject(
        entry["path"], entry["size"], entry["e_tag"] or "", entry["last_modified"].timestamp()
    )


async def _next_page(pages: Any) -> Any:
    return await anext(pages, None)


def _told_code(error: BaseException) -> str:
    """The server's own error code, which the library shows but has no field for; "" where there is none."""
    found = re.search("<Code>([A-Za-z]+)</Code>", str(error))
    return found.group(1) if found else ""


def _remedy(error: BaseException, uri: str, verb: str) -> str:
    """What would cure a refusal; "" where the error is none."""
    if _is_about_credentials(error):
        return RENEW
    if key := _KEY_DENIED.search(str(error)):
        return f"Allow {key['action']} on the bucket's own key {key['key']} for the credentials in use"
    return _permission(uri, verb) if _is_denied(error) else ""


def _is_about_credentials(error: BaseException) -> bool:
    """Whether the credentials themselves were refused, or there are none."""
    from obstore.exceptions import UnauthenticatedError

    return isinstance(error, UnauthenticatedError) or _told_code(error) in CREDENTIALS


def _is_denied(error: BaseException) -> bool:
    """Whether a permission is missing. For listings and deletions the library has no type of its own for
    that, only the server's words."""
    from obstore.exceptions import PermissionDeniedError

    if isinstance(error, PermissionDeniedError):
        return True
    return any(words in str(error) for words in ("403 Forbidden", "401 Unauthorized", "AccessDenied"))


def _permission(uri: str, verb: str) -> str:
    """What to allow, to whom the credentials of the store belong."""
    scheme = uri.split("://")[0]
    needed = PERMISSIONS.get(scheme, {}).get(verb)
    if needed is None:
        return f"Let the credentials in use {verb} there"
    return f"Allow {needed} on {uri} for the credentials in use"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def open_store(uri: str, options: dict[str, Any] | None = None, *, seconds: float = REQUEST_SECONDS) -> Store:
    """Open a store by URI: ``file:///…`` (made with mode 0700 if missing), ``s3://bucket/prefix``,
    ``gs://bucket/prefix``, ``memory://cloud`` (of a simulated cloud in this process). ``options`` are
    obstore's settings of that store (region, endpoint …)."""
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if uri.startswith("memory://"):
        from airflow_provider_spotbatch.backends.memory import MemoryCloud

        return MemoryCloud.named(uri[len("memory://") :]).store
    if uri.startswith("file://"):
        path = uri[len("file://") :]
        if not os.path.isabs(path):
            raise InvalidInput(f"the store {uri!r} needs an absolute path: file:///…")
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"the store {uri} cannot be made: {error.strerror}. Choose another path in the connection"
            ) from error
        return Store(uri, LocalStore(path, automatic_cleanup=True), seconds=seconds)
    if not uri.startswith(("s3://", "gs://")):
        raise InvalidInput(
            f"the store {uri!r} must be a URI: file:///…, s3://bucket/prefix or gs://bucket/prefix"
        )
    try:
        return Store(uri, from_url(uri, **(options or {})), seconds=seconds)
    except (BaseError, ValueError) as error:
        raise InvalidInput(f"the store {uri!r} cannot be opened: {_first_line(error)}") from error
