from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.local_queue import LocalQueue
from airflow_provider_spotbatch.job.errors import FormatMismatch, SpotBatchError

CONSUMER = """
import asyncio, sys
from airflow_provider_spotbatch.backends.local_queue import LocalQueue

async def main():
    queue = LocalQueue(sys.argv[1], "q", 30.0)
    while leases := await queue.receive(5, wait=1.0):
        for lease in leases:
            await queue.extend(lease)
            print(lease.body)
            await queue.ack(lease)

asyncio.run(main())
"""

FULL = """
import asyncio, resource, signal, sys
from airflow_provider_spotbatch.backends.local_queue import LocalQueue
from airflow_provider_spotbatch.job.errors import SpotBatchError

async def main():
    queue = LocalQueue(sys.argv[1], "q", 30.0)
    await queue.send(["kept"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        await queue.send(["x" * 1000] * 1000)
    except SpotBatchError as error:
        print(error)

asyncio.run(main())
"""


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    return output.splitlines()


def test_processes_share_the_work_and_never_a_message(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    asyncio.run(LocalQueue(path, "q", 30.0).send([str(number) for number in range(600)]))
    consumers = [run(CONSUMER, path) for _ in range(4)]
    received = [body for consumer in consumers for body in finished(consumer)]
    assert sorted(map(int, received)) == list(range(600))


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    consumers = [run(CONSUMER, str(tmp_path / "root" / "queue.sqlite")) for _ in range(4)]
    assert [finished(consumer) for consumer in consumers] == [[], [], [], []]


def test_a_consumer_that_is_killed_loses_only_its_lease(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    asyncio.run(LocalQueue(path, "q", 0.3).send(["work"]))
    program = CONSUMER.replace("30.0", "0.3").replace(
        "print(lease.body)", "import os; os.kill(os.getpid(), 9)"
    )
    consumer = run(program, path)
    consumer.communicate(timeout=60)
    assert consumer.returncode == -9
    [lease] = asyncio.run(LocalQueue(path, "q", 0.3).receive(1, wait=10))
    assert (lease.body, lease.deliveries) == ("work", 2)


def test_another_process_that_writes_for_long_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")

    async def main() -> None:
        queue = LocalQueue(path, "q", 30.0)
        await queue.send(["first"])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        sending = asyncio.ensure_future(queue.send(["second"]))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 2.5)  # longer than SQLite itself waits
        other.execute("ROLLBACK")
        other.close()
        await asyncio.wait_for(sending, 20)
        assert len(await queue.receive(10, wait=0)) == 2

    asyncio.run(main())


def test_a_full_disk_is_told_with_the_path_and_nothing_is_half_sent(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    [told] = finished(run(FULL, path))
    assert f"the queue {path} cannot be used" in told
    assert [lease.body for lease in asyncio.run(LocalQueue(path, "q", 30.0).receive(10, wait=0))] == ["kept"]


def test_a_lease_of_an_earlier_boot_is_over(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    queue = LocalQueue(path, "q", 30.0)
    asyncio.run(queue.send(["work"]))
    asyncio.run(queue.receive(1, wait=0))
    file = sqlite3.connect(path)
    with file:  # the monotonic clock was at a hundred days then
        file.execute("UPDATE messages SET visible_at = ?", (time.monotonic() + 8_640_000,))
    file.close()
    [lease] = asyncio.run(queue.receive(1, wait=0))
    assert lease.deliveries == 2


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(SpotBatchError, match=r"queue\.sqlite is damaged"):
        asyncio.run(LocalQueue(str(path), "q", 30.0).send(["a"]))


def test_a_file_of_another_release_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    file = sqlite3.connect(path)
    file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(FormatMismatch, match="format 99"):
        asyncio.run(LocalQueue(path, "q", 30.0).send(["a"]))


def test_the_file_is_private(tmp_path: Path) -> None:
    asyncio.run(LocalQueue(str(tmp_path / "root" / "queue.sqlite"), "q", 30.0).send(["a"]))
    assert (tmp_path / "root" / "queue.sqlite").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700


def test_a_queue_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpotBatchError, match=r"file/queue\.sqlite cannot be opened: "):
        asyncio.run(LocalQueue(str(tmp_path / "file" / "queue.sqlite"), "q", 30.0).send(["a"]))


def test_a_process_that_opens_a_second_queue_keeps_its_hold_on_the_first(tmp_path: Path) -> None:
    """A triggerer drives many jobs: their queues lie in one file, and agents come and go meanwhile."""
    path = str(tmp_path / "queue.sqlite")
    first, second = LocalQueue(path, "first", 5.0), LocalQueue(path, "second", 5.0)
    asyncio.run(first.send(["one"]))
    asyncio.run(second.send(["other"]))
    assert elsewhere(path, "second") == ["other"]
    asyncio.run(first.send(["two"]))
    assert elsewhere(path, "first") == ["one", "two"]
    assert asyncio.run(first.receive(10, 0)) == []


def test_a_forgotten_queue_is_closed_but_not_by_the_thread_that_forgets_it(tmp_path: Path) -> None:
    """The garbage collector runs on an event loop's thread as on any other."""
    path = tmp_path / "queue.sqlite"
    queue = LocalQueue(str(path), "q", 5.0)
    asyncio.run(queue.send(["one"]))
    called = []

    def note(frame: object, event: str, function: object) -> None:
        if event == "c_call" and isinstance(getattr(function, "__self__", None), sqlite3.Connection):
            called.append(function)

    sys.setprofile(note)
    try:
        del queue
        gc.collect()
    finally:
        sys.setprofile(None)
    assert called == []
    deadline = time.monotonic() + 10
    while any(os.path.realpath(file) == str(path) for file in Path("/proc/self/fd").iterdir()):
        assert time.monotonic() < deadline, "the file is still open"
        time.sleep(0.01)


def elsewhere(path: str, queue: str) -> list[str]:
    """What a process of its own receives, which then closes the file."""
    program = """
import asyncio, sys
from airflow_provider_spotbatch.backends.local_queue import LocalQueue

leases = asyncio.run(LocalQueue(*sys.argv[1:], 5.0).receive(10, 0))
print(*(lease.body for lease in leases), sep="\\n")
"""
    return finished(run(program, path, queue))
