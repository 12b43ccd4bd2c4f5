"""The local backend's queue: one SQLite file, shared by every process of the machine.

Write-ahead log with ``synchronous=NORMAL``: a killed process loses nothing that it committed. A
power cut may lose the last commits, but never the file's integrity; no agent survives a power cut
either, and the controller sends lost messages again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_spotbatch.backends.base import Lease
from airflow_provider_spotbatch.job.errors import FormatMismatch, LeaseLost, QueueGone, SpotBatchError

T = TypeVar("T")

FORMAT = 1

POLL_SECONDS = 0.05
"""Pause between two looks of a waiting receive: a read without a lock, some 50 µs each."""

BUSY_SECONDS = 2.0
"""How long SQLite itself waits for another process's transaction; each lasts some milliseconds."""

BUSY_ATTEMPTS = 10
"""Tries of one transaction while others hold the file: SQLite may answer "busy" without waiting."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS deleted_queues (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: it is half of the receipt
    queue TEXT NOT NULL,
    body TEXT NOT NULL,
    visible_at REAL NOT NULL DEFAULT 0,    -- 0: held by nobody
    deliveries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS messages_by_time ON messages (queue, visible_at);
PRAGMA user_version = {FORMAT};
"""

# A receipt is "id.deliveries": it names one delivery, so a later one of the same message voids it.
_SELECT = "SELECT id, body, deliveries FROM messages WHERE queue = ? AND visible_at"
_EXTEND = "UPDATE messages SET visible_at = ? WHERE id = ? AND deliveries = ? AND visible_at > ?"
_RELEASE = "UPDATE messages SET visible_at = 0 WHERE id = ? AND deliveries = ?"
_ACK = "DELETE FROM messages WHERE id = ? AND deliveries = ? AND visible_at > 0"


class LocalQueue:
    """One queue of the file at ``path``. See :class:`~airflow_provider_spotbatch.backends.base.Queue`.

    ``lease`` in seconds. Times in the file are of the system's monotonic clock, which all its
    processes share and nobody sets. After a reboot it starts again: a lease that reaches further
    ahead than any lease may is of an earlier boot, and over.
    """

    def __init__(self, path: str, name: str, lease: float) -> None:
        self.path = path
        self.name = name
        self.lease = lease
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def send(self, bodies: Sequence[str]) -> None:
        await asyncio.to_thread(self._transact, lambda db: self._send(db, bodies))

    async def receive(self, most: int, wait: float) -> list[Lease]:
        deadline = time.monotonic() + wait
        while True:
            leases = await self._receive_now(most)
            left = deadline - time.monotonic()
            if leases or left <= 0:
                return leases
            await asyncio.sleep(min(left, POLL_SECONDS * random.uniform(0.5, 1.0)))

    async def extend(self, lease: Lease) -> None:
        now = time.monotonic()
        if not await self._change(_EXTEND, (now + self.lease, *_key(lease), now)):
            raise LeaseLost(f"the lease {lease.receipt} of the queue {self.name} has lapsed")

    async def release(self, lease: Lease) -> None:
        await self._change(_RELEASE, _key(lease))

    async def ack(self, lease: Lease) -> None:
        await self._change(_ACK, _key(lease))

    async def delete(self) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO deleted_queues VALUES (?)", (self.name,))
            db.execute("DELETE FROM messages WHERE queue = ?", (self.name,))

        await asyncio.to_thread(self._transact, delete)

    async def _receive_now(self, most: int) -> list[Lease]:
        taking = asyncio.ensure_future(asyncio.to_thread(self._take, most))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The thread goes on: what it leased for nobody would be hidden from all until it lapses.
            for lease in await taking:
                await self.release(lease)
            raise

    async def _change(self, statement: str, values: tuple[float, ...]) -> bool:
        """Whether the statement found its message."""
        return await asyncio.to_thread(self._transact, lambda db: db.execute(statement, values).rowcount > 0)

    def _send(self, db: sqlite3.Connection, bodies: Sequence[str]) -> None:
        self._check_not_deleted(db)
        db.executemany(
            "INSERT INTO messages (queue, body) VALUES (?, ?)", ((self.name, body) for body in bodies)
        )

    def _take(self, most: int) -> list[Lease]:
        if not self._patiently(lambda db: self._ready(db, 1)):
            return []
        return self._transact(lambda db: self._lease(db, most))

    def _lease(self, db: sqlite3.Connection, most: int) -> list[Lease]:
        ready = self._ready(db, most)
        until = time.monotonic() + self.lease
        db.executemany(
            "UPDATE messages SET visible_at = ?, deliveries = deliveries + 1 WHERE id = ?",
            ((until, number) for number, _, _ in ready),
        )
        return [
            Lease(receipt=f"{number}.{deliveries + 1}", body=body, deliveries=deliveries + 1)
            for number, body, deliveries in ready
        ]

    def _ready(self, db: sqlite3.Connection, most: int) -> list[tuple[int, str, int]]:
        """Messages that anybody may have now: ``(id, body, deliveries so far)``."""
        self._check_not_deleted(db)
        now = time.monotonic()
        ready: list[tuple[int, str, int]] = []
        for condition, bound in (("<=", now), (">", now + self.lease)):
            if len(ready) < most:
                ready += db.execute(
                    f"{_SELECT} {condition} ? ORDER BY visible_at, id LIMIT ?",
                    (self.name, bound, most - len(ready)),
                ).fetchall()
        return ready

    def _check_not_deleted(self, db: sqlite3.Connection) -> None:
        if db.execute("SELECT 1 FROM deleted_queues WHERE name = ?", (self.name,)).fetchone():
            raise QueueGone(f"the queue {self.name} was deleted: its run is over")

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in one write transaction: all of it or nothing."""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            try:
                outcome = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return outcome

        return self._patiently(transaction)

    def _patiently(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work``, again while other processes are in its way. Blocks: call it in a thread."""
        for attempt in range(1, BUSY_ATTEMPTS + 1):
            try:
                with self._lock:
                    return work(self._open())
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or attempt == BUSY_ATTEMPTS:
                    raise SpotBatchError(
                        f"the queue {self.path} cannot be used: {error}. Check that its disk has room and "
                        "that this user may write there"
                    ) from error
                time.sleep(random.uniform(0.01, 0.02) * 2 ** min(attempt, 5))
            except sqlite3.DatabaseError as error:
                raise SpotBatchError(
                    f"the queue {self.path} is damaged: {error}. Stop its jobs and remove the file: "
                    "they resume from the store"
                ) from error
        raise AssertionError("unreachable")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = _connect(self.path)
            weakref.finalize(self, _close_elsewhere, connection)
            self._connection = connection
        return self._connection


def queue_names(path: str) -> list[str]:
    """The queues of the file at ``path`` that hold messages. Blocks."""
    if not os.path.exists(path):
        return []
    connection = _connect(path)
    try:
        return [name for (name,) in connection.execute("SELECT DISTINCT queue FROM messages ORDER BY queue")]
    finally:
        connection.close()


def _connect(path: str) -> sqlite3.Connection:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _create_private(path)
    except OSError as error:
        raise SpotBatchError(f"the queue {path} cannot be opened: {error.strerror}") from error
    # isolation_level None: transactions are begun and ended in words, here and nowhere else.
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise FormatMismatch(f"the queue {path} has format {found}; this release reads {FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not found:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _close_elsewhere(connection: sqlite3.Connection) -> None:
    """Close in a thread: garbage is collected on whatever thread, an event loop's too, and whoever closes
    last writes the log back."""
    try:
        threading.Thread(target=connection.close).start()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        connection.close()


def _create_private(path: str) -> None:
    """Make the file, for this user alone, unless it is there.

    One that is there is never opened by hand: closing it would drop the locks of this process's other
    connections to it (POSIX locks belong to the process), and another process, believing itself the
    last, would remove the log that they go on writing to.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _key(lease: Lease) -> tuple[int, int]:
    number, deliveries = lease.receipt.split(".")
    return int(number), int(deliveries)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Python 3.10 has only the text
        return "locked" in str(error)
    return code & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED, without their extensions
