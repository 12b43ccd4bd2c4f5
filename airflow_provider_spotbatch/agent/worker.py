"""The worker: runs the user's function on items, one after another, in the user's environment.

Standard library only, and never imported by the package: the agent starts this file by its path with
the user's interpreter, where the package may not be installed. It is the module ``_spotbatch_worker``
there (see ``job/context.py``). It loads ``job/codec.py``, ``job/context.py`` and a private cloudpickle
by their paths, so that the user's environment never meets the agent's.

It talks with the agent in frames over a pair of pipes: u32 length of a JSON header, u64 length of a
body, header, body. A chunk comes in one frame; each item's result leaves in a frame of its own, at
once. What item runs since when lies in a small shared file, for the agent to look at.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import io
import json
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, TextIO

FRAME = struct.Struct("<IQ")
RUNNING = struct.Struct("<dq")
INTERRUPTED_AT = RUNNING.size
ENOUGH_AT = INTERRUPTED_AT + 1
SHARED_BYTES = ENOUGH_AT + 1
"""The shared file: CLOCK_MONOTONIC start of the running item and its index (-1: none), written by the
worker; the flags "interrupted" and "enough" (no further item of this chunk), written by the agent. The
start comes first, so that a reader who sees a new index never sees an old start with it."""

NO_ITEM = -1

PRIVATE_CLOUDPICKLE = "_spotbatch_cloudpickle"  # as in job/codec.py, which is loaded later
DEBUGGER = "_spotbatch_debugger"
PACKAGE = "airflow_provider_spotbatch"
CONTEXT_MODULE = f"{PACKAGE}.job.context"

PREVIEWED_BYTES = 4096
"""A value stored in more bytes is previewed by its type and size: its repr may take long."""

TRACEBACK_CHARACTERS = 32_768
"""Of a longer traceback (deep recursion, long messages) the end is kept."""

POLL_SECONDS = 0.05
"""Pause between looks at the interrupted flag while a function waits for it."""

OOM_SCORE = "500"
"""Where memory runs out the kernel ends workers before anything else: what they did can be done again."""

MEASURED_SECONDS = 0.005
"""The memory of an item that ran shorter is not looked at: that takes 50 µs, and there may be a million of
them, which can hardly fill more than 50 MB in this time."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

current: ItemRun | None = None
"""The running item; what ``item_context`` reads."""


class Memory:
    """The highest resident memory of this process. Not getrusage's, which begins with the agent's own."""

    def __init__(self) -> None:
        self._highest = 0.0

    def peak_mb(self) -> float | None:
        """In MB since this was asked last; None where it is not known to be of that time."""
        try:
            with open("/proc/self/status", "rb") as file:
                status = file.read()
            peak = int(status.split(b"VmHWM:", 1)[1].split(None, 1)[0]) / 1024
        except (OSError, IndexError):
            return None
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the mark goes down to what is held now (proc(5))
        except OSError:
            before, self._highest = self._highest, peak
            return peak if peak > before else None
        return peak


class Channel:
    """Frames to and from the agent."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        os.set_inheritable(source, False)
        os.set_inheritable(sink, False)

    def read(self) -> tuple[dict[str, Any], bytes]:
        header_size, body_size = FRAME.unpack(self._exactly(FRAME.size))
        header: dict[str, Any] = json.loads(self._exactly(header_size))
        return header, self._exactly(body_size)

    def write(self, header: dict[str, Any], body: bytes = b"") -> None:
        text = json.dumps(header, separators=(",", ":")).encode()
        frame = memoryview(FRAME.pack(len(text), len(body)) + text + body)
        while frame:
            frame = frame[os.write(self._sink, frame) :]

    def ask(self, header: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """A question of the running item, and the agent's answer."""
        with self._lock:
            self.write(header, body)
            return self.read()

    def close(self) -> None:
        os.close(self._source)
        os.close(self._sink)
        self._source = self._sink = -1

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._source, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Interrupted:
    """Set by the agent once the machine has received its notice."""

    def __init__(self, shared: mmap.mmap) -> None:
        self._shared = shared

    def is_set(self) -> bool:
        return self._shared[INTERRUPTED_AT] != 0

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)
        return True


class Checkpoint:
    """Bytes of one item that outlive its machine: the agent keeps them in the store."""

    def __init__(self, channel: Channel, index: int, attempt: int) -> None:
        self._channel = channel
        self._of = {"item": index, "attempt": attempt}
        self._pid = os.getpid()

    def save(self, data: bytes) -> None:
        self._ask({"op": "save", **self._of}, bytes(data))

    def load(self) -> bytes | None:
        found, data = self._ask({"op": "load", **self._of}, b"")
        return data if found["found"] else None

    def _ask(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if current is None or current.checkpoint is not self or os.getpid() != self._pid:
            raise RuntimeError(
                "a checkpoint belongs to its item: use it in the item's own process, during it"
            )
        answer, data = self._channel.ask(header, body)
        if answer["error"]:
            raise RuntimeError(answer["error"])
        return answer, data


class ItemRun:
    """What ``item_context`` shows while one item runs."""

    def __init__(
        self,
        index: int,
        attempt: int,
        folder: str,
        cache_dir: str,
        channel: Channel,
        interrupted: Interrupted,
    ) -> None:
        self.index = index
        self.attempt = attempt
        self.cache_dir = cache_dir
        self.interrupted = interrupted
        self.checkpoint = Checkpoint(channel, index, attempt)
        self._folder = folder
        self._scratch: str | None = None

    @property
    def scratch(self) -> str:
        """Made when it is first asked for: most items never do."""
        if self._scratch is None:
            path = os.path.join(self._folder, f"{self.index}-{self.attempt}")
            os.makedirs(path, exist_ok=True)
            self._scratch = path
        return self._scratch

    def close(self) -> None:
        if self._scratch is not None:
            import shutil

            shutil.rmtree(self._scratch, ignore_errors=True)


class Output:
    """File descriptors 1 and 2: one pipe to the agent, with a mark at the end of each item."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        self._mark = b""
        self._streams: list[TextIO] = []
        self.restore()
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc, assignment]
        faulthandler.enable(self._pipe)

    def mark_with(self, nonce: str) -> None:
        self._mark = b"\x1e" + nonce.encode() + b":%d:%d\x1f"

    def restore(self) -> None:
        """Undo what an item did to its standard output: closed, replaced, redirected."""
        os.dup2(self._pipe, 1)
        os.dup2(self._pipe, 2)
        if not self._streams or any(stream.closed for stream in self._streams):
            self._streams = [_text_stream(1), _text_stream(2)]
        sys.stdout, sys.stderr = self._streams

    def end_item(self, index: int, failed: bool) -> None:
        """Everything written since the last mark belongs to this item."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or anything the user put there
                stream.flush()
        os.write(self._pipe, self._mark % (index, failed))


def _text_stream(fd: int) -> TextIO:
    """Written line by line, so that a crash loses no line; whatever is printed can be encoded."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


class OutputHandler(logging.Handler):
    """Log records to whatever standard error is when they come."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)  # noqa: T201 - the item's output
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)


class Work:
    """The user's function (or command), loaded once; called for each item."""

    def __init__(self, description: dict[str, Any], blob: bytes, codec: Any, cloudpickle: Any) -> None:
        self._codec = codec
        self._modules = {PRIVATE_CLOUDPICKLE: cloudpickle, "cloudpickle.cloudpickle": cloudpickle}
        self._modules["cloudpickle"] = cloudpickle
        self._travelling: dict[str, str] = {}
        self._pickler = codec.referring_pickler(cloudpickle.Pickler)
        self.call = self._loaded(description, blob)

    def decode(self, kind: str, payload: bytes) -> Any:
        return self._codec.decode(kind, payload, self._resolve, self._modules)

    def encode(self, value: Any) -> tuple[str, bytes]:
        """Raises TypeError, naming what is to blame, for a value that cannot be stored."""
        if isinstance(value, (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType)):
            raise TypeError(_refused(value))
        try:
            kind, data = self._codec.encode(value, self._pickled)
            return kind, data
        except Exception as error:  # noqa: BLE001 - reduction runs the user's code
            path, part = self._unpicklable(value)
            raise TypeError(
                f"the result, a {type_name(type(value))}, cannot be pickled: "
                f"{path} is a {type_name(type(part))} ({error})"
            ) from None

    def _pickled(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        self._pickler(buffer, self._travelling).dump(value)
        return buffer.getvalue()

    def _unpicklable(self, value: Any) -> tuple[str, Any]:
        """Where in ``value`` the part is that cannot be pickled, as an expression, and that part."""
        path, part = "result", value
        for _ in range(20):
            for step, inner in _parts(part):
                try:
                    self._pickled(inner)
                except Exception:  # noqa: BLE001 - this is the part to blame
                    path, part = path + step, inner
                    break
            else:
                break
        return path, part

    def _resolve(self, module: str, qualname: str) -> Any:
        try:
            found: Any = sys.modules[module]
            for part in qualname.split("."):
                found = getattr(found, part)
        except (KeyError, AttributeError):
            raise LookupError(f"{qualname} of the DAG file {module} did not travel to the machine") from None
        return found

    def _loaded(self, description: dict[str, Any], blob: bytes) -> Callable[[Any], Any]:
        if description["kind"] == "command":
            command = json.loads(blob)["command"]
            return lambda item: run_command(command, item)
        loaded = self.decode("pickle", blob)
        self._install(loaded["modules"])
        dotted = description["kind"] == "dotted"
        function = import_name(description["name"]) if dotted else loaded["function"]
        kwargs = loaded["kwargs"]
        if description["call"] == "spread":
            return lambda item: function(*item["args"], **item["kwargs"])
        return lambda item: function(item, **kwargs)

    def _install(self, modules: Mapping[str, Mapping[str, Any]]) -> None:
        """Make the travelling modules: items and results name their classes by these."""
        for name, members in modules.items():
            module = types.ModuleType(name)
            for qualname, member in members.items():
                if "." not in qualname:  # nested ones are attributes of their classes already
                    setattr(module, qualname, member)
                member.__module__ = name
            sys.modules[name] = module
            self._travelling[name] = name


class Worker:
    """Serves chunks until the agent closes the channel."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._home = os.getcwd()
        self._channel = Channel(settings["source"], settings["sink"])
        os.set_inheritable(settings["shared"], False)
        self._shared = mmap.mmap(settings["shared"], SHARED_BYTES)
        self._interrupted = Interrupted(self._shared)
        self._output = self._open_output()
        self._codec = load_file("_spotbatch_codec", settings["codec"])
        self._cpu_before = 0.0
        self._memory = Memory()
        os.register_at_fork(after_in_child=self._channel.close)

    def serve(self) -> None:
        try:
            self._channel.write({"op": "started"})
            header, blob = self._channel.read()
            self._output.mark_with(header["nonce"])
            work = self._load(header, blob)
            while True:
                header, body = self._channel.read()
                self._run_chunk(work, header, body)
        except EOFError:
            return

    def _open_output(self) -> Output:
        return Output()

    def _load(self, header: dict[str, Any], blob: bytes) -> Work | None:
        sys.path[:0] = header["code"]
        sys.meta_path.append(PackageStandIn(self._settings["context"]))
        try:
            _check_python(header)
            cloudpickle = load_file(PRIVATE_CLOUDPICKLE, self._settings["cloudpickle"])
            work = Work(header["work"], blob, self._codec, cloudpickle)
        except BaseException as error:  # noqa: BLE001 - importing a user's module may raise anything
            self._leave_if_forked()
            self._channel.write({"op": "unloadable"}, _described(error, _load_message(header["work"], error)))
            return None
        _log_to_output()
        self._cpu_before = _cpu_seconds()
        self._memory.peak_mb()
        self._channel.write({"op": "ready"})
        return work

    def _run_chunk(self, work: Work | None, header: dict[str, Any], body: bytes) -> None:
        if work is None:
            raise AssertionError("a chunk was sent to a worker that could not load its function")
        offset = 0
        for index, kind, size in header["items"]:
            if self._shared[ENOUGH_AT]:
                self._channel.write({"op": "enough"})
                return
            self._run_item(work, index, header["attempt"], kind, body[offset : offset + size])
            offset += size

    def _run_item(self, work: Work, index: int, attempt: int, kind: str, payload: bytes) -> None:
        global current
        settings = self._settings
        run = ItemRun(
            index, attempt, settings["scratch"], settings["cache"], self._channel, self._interrupted
        )
        self._output.restore()
        os.chdir(self._home)
        RUNNING.pack_into(self._shared, 0, time.monotonic(), index)
        current = run
        start = time.time()
        result, value = self._outcome(work, kind, payload)
        end = time.time()
        current = None
        run.close()
        self._output.end_item(index, result["cause"] != "ok")
        peak = self._memory.peak_mb() if end - start >= MEASURED_SECONDS else None
        cpu = self._cpu_seconds()
        result.update(op="result", item=index, start=start, end=end, peak=peak, cpu=cpu)
        self._channel.write(result, value)
        RUNNING.pack_into(self._shared, 0, 0.0, NO_ITEM)

    def _outcome(self, work: Work, kind: str, payload: bytes) -> tuple[dict[str, Any], bytes]:
        shown = ""
        stage = "the item cannot be read on the machine: "
        try:
            item = work.decode(kind, payload)
            shown = self._preview(item, kind, payload)
            stage = ""
            value = work.call(item)
            self._leave_if_forked()
            stored_kind, stored = work.encode(value)
            out = self._preview(value, stored_kind, stored)
        except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt
            self._leave_if_forked()
            failure = _described(error, stage + _message(error))
            return {"cause": "error", "kind": "failure", "in": shown, "out": ""}, failure
        return {"cause": "ok", "kind": stored_kind, "in": shown, "out": out}, stored

    def _preview(self, value: Any, kind: str, stored: bytes) -> str:
        if len(stored) <= PREVIEWED_BYTES:
            return str(self._codec.preview(value))
        if isinstance(value, str):
            return str(self._codec.preview(value[:PREVIEWED_BYTES]))
        return f"<{type_name(type(value))}, {len(stored):,} bytes as {kind}>"

    def _leave_if_forked(self) -> None:
        """A child that the function forked came back from it: only its parent speaks for the item."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _cpu_seconds(self) -> float:
        """CPU seconds since this was asked last, those of ended children included."""
        before, self._cpu_before = self._cpu_before, _cpu_seconds()
        return round(self._cpu_before - before, 6)


class PackageStandIn:
    """Answers ``from airflow_provider_spotbatch import item_context`` where nothing else does.

    It stands last among the finders: an installed package is found before it.
    """

    def __init__(self, context: str) -> None:
        self._context = context

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == CONTEXT_MODULE:
            return importlib.util.spec_from_file_location(name, self._context)
        if name in (PACKAGE, f"{PACKAGE}.job"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == PACKAGE:
            context = importlib.import_module(CONTEXT_MODULE)
            module.item_context = context.item_context  # type: ignore[attr-defined]


def run_command(command: list[str], item: Any) -> Any:
    """Run a command for an item; the value is its last line of output that is not empty.

    Raises CommandFailed for an exit code other than 0.
    """
    import subprocess

    text = item if isinstance(item, str) else json.dumps(item)
    arguments = [part.replace("{item}", text) for part in command]
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if process.stdout is None:
        raise AssertionError("a pipe was asked for")
    last = _copy_lines(process)
    process.stdout.close()
    if process.returncode != 0:
        raise CommandFailed(f"{arguments[0]} {_ended(process.returncode)}")
    if last is None:
        return None
    try:
        return json.loads(last)
    except ValueError:
        return last.decode(errors="backslashreplace")


class CommandFailed(Exception):
    """The command of an item ended with another exit code than 0."""


def _copy_lines(process: Any) -> bytes | None:
    """Copy the command's output to the item's until it exits; its last non-empty line.

    A child that the command left behind may keep the pipe open: the command's own end decides.
    """
    import select

    fd = process.stdout.fileno()
    os.set_blocking(fd, False)
    line, last = bytearray(), None
    open_ = True
    while open_:
        exited = process.poll() is not None
        if not select.select([fd], [], [], 0 if exited else POLL_SECONDS)[0]:
            if exited:
                break
            continue
        data = os.read(fd, 65_536)
        open_ = bool(data)
        _write_all(1, data)
        *ended, rest = data.split(b"\n")
        for part in ended:
            line += part
            last = bytes(line) if line.strip() else last
            line.clear()
        line += rest
    process.wait()
    return bytes(line) if line.strip() else last


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.Signals(-code).name})"


def import_name(name: str) -> Any:
    """``pkg.mod:attr`` or ``pkg.mod.attr``, imported."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        module_name, _, attribute = name.rpartition(".")
    found = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def load_file(name: str, path: str) -> Any:
    """A module from its file, under a name of our own."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of a value that its pickle would hold, each with the expression that leads to it."""
    if isinstance(value, dict):
        keys = [(f" key {key!r:.50}", key) for key in value]
        return keys + [(f"[{key!r:.50}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{position}]", part) for position, part in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(" element", part) for part in value]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        return [(f".{name}", part) for name, part in attributes.items()]
    return []


def _refused(value: Any) -> str:
    name = type(value).__name__.replace("_", " ")
    if isinstance(value, types.CoroutineType):
        value.close()  # or Python warns that it was never awaited
        return f"the result is a {name}, which cannot be pickled: call asyncio.run() inside the function"
    return f"the result is a {name}, which cannot be pickled: return list(...) of it instead"


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({error.code!r})"
    try:
        return str(error)
    except Exception as inner:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<its text cannot be shown: {type(inner).__name__}>"


def _load_message(work: dict[str, Any], error: BaseException) -> str:
    name = work["name"] or "the function"
    missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
    if isinstance(error, ModuleNotFoundError) and missing:
        return (
            f"{name} cannot be loaded on the machine: it needs the module {missing!r}, which is not there. "
            "Add its distribution to the environment's packages, or its source to the DAG bundle"
        )
    return f"{name} cannot be loaded on the machine: {type_name(type(error))}: {_message(error)}"


def _described(error: BaseException, message: str) -> bytes:
    """A failure as JSON text: type, message, traceback without this program's own frames."""
    return json.dumps(
        {"type": type_name(type(error)), "message": message, "traceback": _traceback(error)}
    ).encode()


def _traceback(error: BaseException) -> str:
    import traceback

    try:
        described = traceback.TracebackException.from_exception(error)
        _without_own_frames(described)
        text = "".join(described.format())
    except Exception as inner:  # noqa: BLE001 - a traceback is never worth losing the failure
        return f"<the traceback cannot be shown: {type(inner).__name__}>"
    return text if len(text) <= TRACEBACK_CHARACTERS else "…" + text[-TRACEBACK_CHARACTERS:]


def _without_own_frames(described: Any) -> None:
    own = {__file__}
    for name in (PRIVATE_CLOUDPICKLE, "_spotbatch_codec", DEBUGGER):
        own.add(getattr(sys.modules.get(name), "__file__", None) or __file__)
    todo = [described]
    while todo:
        one = todo.pop()
        if one is not None:
            one.stack[:] = [frame for frame in one.stack if frame.filename not in own]
            todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _check_python(header: dict[str, Any]) -> None:
    wanted = ".".join(header["python"].split(".")[:2])
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if header["work"]["kind"] == "function" and wanted and wanted != here:
        raise RuntimeError(
            f"the machine runs Python {here}, and the function was pickled for {wanted}: "
            "bytecode does not travel between versions"
        )


def _log_to_output() -> None:
    """INFO and above go to the item's output, unless the user's modules chose otherwise."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = OutputHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _cpu_seconds() -> float:
    """CPU seconds of this process and its ended children."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _die_with(parent: int) -> None:
    """End when the agent ends, and become the parent of whatever this process's descendants leave."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(settings: str) -> None:
    described = json.loads(settings)
    _die_with(described["parent"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)
    kind = Worker
    if described["debugger"] is not None:
        kind = load_file(DEBUGGER, described["debugger"]["program"]).DebuggedWorker
    kind(described).serve()
