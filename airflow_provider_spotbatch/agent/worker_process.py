"""One worker process as the agent sees it: started, spoken with, ended with all it started."""

from __future__ import annotations

import asyncio
import io
import json
import mmap
import os
import secrets
import signal
import struct
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.agent import processes
from airflow_provider_spotbatch.agent.checkpoints import Checkpoints
from airflow_provider_spotbatch.agent.chunk_input import ItemInput
from airflow_provider_spotbatch.agent.folder import WorkerSetup, make_slot_folder
from airflow_provider_spotbatch.agent.frames import FrameReader, pack_frame
from airflow_provider_spotbatch.agent.output import LineSink, WorkerOutput
from airflow_provider_spotbatch.job.errors import SpotBatchError
from airflow_provider_spotbatch.job.outcome import CRASH, ERROR, Failure

START_SECONDS = 60.0
"""An interpreter that is not up by then will not come up (a cold network disk takes some seconds)."""

LOAD_SECONDS = 900.0
"""Loading the user's function: large models are loaded at import; beyond that it hangs."""

PIPE_SECONDS = 2.0
"""How long the pipes of an ended worker are read on: a process in the kernel's hands may keep them open."""

INSTANCE = "SPOTBATCH_INSTANCE"
WORKER_TAG = "SPOTBATCH_WORKER"
"""Environment variables of every process of an instance, and of every process of one worker."""

# As in worker.py.
_RUNNING = struct.Struct("<dq")
_INTERRUPTED_AT = _RUNNING.size
_ENOUGH_AT = _INTERRUPTED_AT + 1
_SHARED_BYTES = _ENOUGH_AT + 1
_NO_ITEM = -1

_PROGRAM = """
import sys
if sys.path[:1] == [""]: del sys.path[0]  # "-c" puts the working folder there
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("_spotbatch_worker", sys.argv[1])
worker = module_from_spec(spec)
sys.modules[spec.name] = worker
spec.loader.exec_module(worker)
worker.main(sys.argv[2])
"""


class WorkerUnstartable(SpotBatchError):
    """No worker can be started on this machine: nothing of the user's was run yet."""


@dataclass(frozen=True)
class Death:
    """Why a worker is gone. ``cause``: of the item that it was running; ``item``: the one it was meant
    for, None for whichever it was; ``output``: the last lines that the worker printed."""

    cause: str
    message: str
    item: int | None = None
    output: str = ""


@dataclass(frozen=True)
class LoadFailure:
    """The user's function cannot be had on this machine: so every item ends."""

    cause: str
    failure: Failure


@dataclass(frozen=True)
class RunningNow:
    """The item that a worker is in. ``seconds`` since it began."""

    item: int
    seconds: float


ResultHandler = Callable[[dict[str, Any], bytes], None]


class WorkerProcess:
    """Make one with :meth:`start`. It runs one chunk at a time, and is not used again once it is dead."""

    def __init__(self, process: Process, shared: mmap.mmap, tag: str, checkpoints: Checkpoints) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.load_failure: LoadFailure | None = None
        self._process = process
        self._identity = processes.look_at(process.pid)
        self._shared = shared
        self._tag = tag
        self._checkpoints = checkpoints
        self._started: asyncio.Future[None] = loop.create_future()
        self._loaded: asyncio.Future[None] = loop.create_future()
        self._chunk_done: asyncio.Future[None] = loop.create_future()
        self._left = 0
        self._on_result: ResultHandler | None = None
        self._verdict: Death | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self.seen: dict[int, processes.Process] = {}
        self.output: WorkerOutput
        self._frames: FrameReader
        self._input: asyncio.WriteTransport
        self._ending = asyncio.Event()
        self._dead: asyncio.Task[Death]

    @classmethod
    async def start(
        cls, setup: WorkerSetup, instance: str, slot: int, checkpoints: Checkpoints, sink: LineSink
    ) -> WorkerProcess:
        """A worker that has loaded the function, or knows why it cannot (``load_failure``).

        Raises WorkerUnstartable where the machine is to blame. Cancelled, it leaves no process.
        """
        nonce = secrets.token_hex(8)
        launch = asyncio.create_task(cls._launch(setup, instance, slot, nonce, checkpoints, sink))
        try:
            worker = await asyncio.shield(launch)
        except asyncio.CancelledError:
            await (await launch).end()
            raise
        try:
            await worker._load(setup, nonce)
        except BaseException:
            await worker.end()
            raise
        return worker

    @classmethod
    async def _launch(
        cls,
        setup: WorkerSetup,
        instance: str,
        slot: int,
        nonce: str,
        checkpoints: Checkpoints,
        sink: LineSink,
    ) -> WorkerProcess:
        work_folder, scratch = await asyncio.to_thread(make_slot_folder, setup, slot)
        shared_fd = os.memfd_create("spotbatch-worker")
        os.ftruncate(shared_fd, _SHARED_BYTES)
        shared = mmap.mmap(shared_fd, _SHARED_BYTES)
        _RUNNING.pack_into(shared, 0, 0.0, _NO_ITEM)
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_output, theirs_output = os.pipe()
        captured = setup.debugger is None
        settings = {
            "source": theirs_in,
            "sink": theirs_out,
            "shared": shared_fd,
            "parent": os.getpid(),
            "codec": setup.codec,
            "context": setup.context,
            "cloudpickle": setup.cloudpickle,
            "scratch": scratch,
            "cache": setup.cache,
            "debugger": None if captured else {**vars(setup.debugger), "marks": theirs_output},
        }
        try:
            # Not in a thread: a worker dies with the thread that started it (PR_SET_PDEATHSIG).
            process = await asyncio.create_subprocess_exec(
                setup.python,
                "-c",
                _PROGRAM,
                str(Path(__file__).with_name("worker.py")),
                json.dumps(settings),
                stdin=DEVNULL if captured else None,
                stdout=theirs_output if captured else None,
                stderr=theirs_output if captured else None,
                pass_fds=(theirs_in, theirs_out, shared_fd, *(() if captured else (theirs_output,))),
                start_new_session=captured,  # a session of its own has no terminal
                cwd=work_folder,
                env={**os.environ, **setup.env, INSTANCE: instance, WORKER_TAG: nonce},
            )
        except OSError as error:
            for fd in (ours_in, ours_out, ours_output):
                os.close(fd)
            raise WorkerUnstartable(f"{setup.python} cannot be started: {error.strerror}") from error
        finally:
            for fd in (theirs_in, theirs_out, theirs_output, shared_fd):
                os.close(fd)
        worker = cls(process, shared, f"{WORKER_TAG}={nonce}", checkpoints)
        await worker._connect(ours_in, ours_out, ours_output, nonce, sink)
        return worker

    @property
    def alive(self) -> bool:
        return not self._dead.done() and self._verdict is None

    @property
    def running(self) -> RunningNow | None:
        start, item = _RUNNING.unpack_from(self._shared)
        return None if item == _NO_ITEM else RunningNow(item, max(0.0, time.monotonic() - start))

    def interrupt(self) -> None:
        """Set the flag that ``item_context.interrupted`` shows."""
        self._shared[_INTERRUPTED_AT] = 1

    async def run(self, items: Sequence[ItemInput], attempt: int, on_result: ResultHandler) -> Death | None:
        """Run items one after another, until :meth:`enough` is said; each result goes to ``on_result``.

        None, or why the worker died before the end.
        """
        self._shared[_ENOUGH_AT] = 0
        self._chunk_done = asyncio.get_running_loop().create_future()
        self._left = len(items)
        self._on_result = on_result
        self.output.begin([item.index for item in items], attempt)
        table = [[item.index, item.kind, len(item.payload)] for item in items]
        self._send({"op": "chunk", "attempt": attempt, "items": table}, b"".join(i.payload for i in items))
        try:
            await _first(self._chunk_done, self._dead)
            if self._chunk_done.done():
                await self.output.caught_up(PIPE_SECONDS)
                return None
            return await self._dead
        finally:
            self._on_result = None

    def enough(self) -> None:
        """Run no further item of this chunk. One that has begun by now still runs to its end."""
        self._shared[_ENOUGH_AT] = 1

    def kill(self, item: int, cause: str, message: str) -> None:
        """End this item, and the worker with it, for a reason of ours."""
        if self.alive:
            self._verdict = Death(cause, message, item)
            self._ending.set()

    async def end(self) -> Death:
        """End the worker and everything it started; returns once all is gone."""
        if self.alive:
            self._verdict = Death(CRASH, "the agent ended the worker")
            self._ending.set()
        return await asyncio.shield(self._dead)

    async def _connect(self, ours_in: int, ours_out: int, output: int, nonce: str, sink: LineSink) -> None:
        loop = asyncio.get_running_loop()
        _, self._frames = await loop.connect_read_pipe(
            lambda: FrameReader(self._on_frame), io.FileIO(ours_out, "r")
        )
        _, self.output = await loop.connect_read_pipe(
            lambda: WorkerOutput(nonce, sink), io.FileIO(output, "r")
        )
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, io.FileIO(ours_in, "w"))
        self._dead = asyncio.create_task(self._die())

    async def _load(self, setup: WorkerSetup, nonce: str) -> None:
        if not await self._reached(self._started, START_SECONDS):
            death = await self.end()
            message = f"{setup.python} cannot run a worker: {death.message}\n{death.output}"
            raise WorkerUnstartable(message.rstrip())
        header = {
            "op": "load",
            "nonce": nonce,
            "code": list(setup.code),
            "python": setup.python_version,
            "work": setup.work.to_json(),
        }
        self._send(header, setup.work_blob)
        if not await self._reached(self._loaded, LOAD_SECONDS):
            death = await self.end()
            message = (
                f"the process ended while it loaded {setup.work.name or 'the function'} on the machine: "
            )
            failure = Failure("WorkerCrashed", message + death.message, output_tail=death.output)
            self.load_failure = LoadFailure(CRASH, failure)

    async def _reached(self, stage: asyncio.Future[None], seconds: float) -> bool:
        await _first(stage, self._dead, timeout=seconds)
        if not stage.done() and self.alive:
            self._verdict = Death(CRASH, f"the process was ended after {seconds:.0f} s of silence")
            self._ending.set()
        return stage.done()

    async def _die(self) -> Death:
        """Wait for the worker's end, of itself or by us; then end what it started, and read what it left."""
        exited = asyncio.create_task(self._process.wait())
        ordered = asyncio.create_task(self._ending.wait())
        await asyncio.wait({exited, ordered}, return_when=asyncio.FIRST_COMPLETED)
        ordered.cancel()
        if self._identity is not None:
            await asyncio.to_thread(processes.end_all, self._identity, self._tag, list(self.seen.values()))
        code = await exited
        await asyncio.wait({self._frames.closed, self.output.closed}, timeout=PIPE_SECONDS)
        output = self.output.tail(None)
        self.output.finish()
        for part in (self._frames, self.output, self._input):
            part.close()
        return replace(self._verdict or Death(CRASH, _exit_message(code)), output=output)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if not self._input.is_closing():
            self._input.write(pack_frame(header, body))

    def _on_frame(self, header: dict[str, Any], body: bytes) -> None:
        op = header["op"]
        if op == "result":
            if self._on_result is not None:
                self._on_result(header, body)
                self._left -= 1
                if self._left == 0:
                    self._chunk_done.set_result(None)
        elif op in ("save", "load"):
            answer = asyncio.create_task(self._answer(header, body))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif op == "enough":
            self._chunk_done.set_result(None)
        elif op == "started":
            self._started.set_result(None)
        else:
            if op == "unloadable":
                self.load_failure = LoadFailure(ERROR, Failure(**json.loads(body)))
            self._loaded.set_result(None)

    async def _answer(self, header: dict[str, Any], body: bytes) -> None:
        data: bytes | None = b""
        error = ""
        try:
            if header["op"] == "save":
                await self._checkpoints.save(header["item"], header["attempt"], body)
            else:
                data = await self._checkpoints.load(header["item"])
        except SpotBatchError as problem:
            error = f"the checkpoint of item {header['item']}: {problem}"
        self._send({"op": "checkpoint", "error": error, "found": data is not None}, data or b"")


async def _first(*awaited: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Return once one of them is done, or time is over."""
    await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def _exit_message(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}, and gave no result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = ": perhaps the system ran out of memory" if -code == signal.SIGKILL else ""
    return f"the process was ended by signal {-code} ({name}){hint}"
