"""A worker on the caller's terminal, which stops in pdb where the function raised.

Standard library only: ``worker.py`` loads this file by its path, as itself, in the user's environment.
"""

from __future__ import annotations

import bdb
import faulthandler
import gc
import linecache
import os
import pdb
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "_spotbatch_worker" not in sys.modules:
    from airflow_provider_spotbatch.agent import worker
else:  # beside the user's function, where the package may not be installed
    worker = sys.modules["_spotbatch_worker"]


class TerminalOutput(worker.Output):
    """The terminal's own standard streams, as they are; only the marks after items go to the agent."""

    def __init__(self, marks: int) -> None:
        os.set_inheritable(marks, False)
        self._pipe = marks
        self._mark = b""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        faulthandler.enable()

    def restore(self) -> None:
        """There is one item alone, and nothing to undo for the next."""


class DebuggedWorker(worker.Worker):
    """See the module."""

    def _open_output(self) -> worker.Output:
        return TerminalOutput(self._settings["debugger"]["marks"])

    def _load(self, header: dict[str, Any], blob: bytes) -> worker.Work | None:
        work = super()._load(header, blob)
        if work is not None:
            show_sources(header["work"]["travelling"].values(), self._settings["debugger"]["sources"])
            work.call = self._stopping(work.call)
        return work

    def _stopping(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call_and_stop(item: Any) -> Any:
            try:
                return call(item)
            except bdb.BdbQuit:  # left at a breakpoint
                raise
            except BaseException as error:
                self._leave_if_forked()
                stop_at(error)
                raise

        return call_and_stop


def stop_at(error: BaseException) -> None:
    """Show the exception, and let the user look at its frames."""
    _tell(worker._traceback(error))
    pdb.post_mortem(_users_part(error.__traceback__))


def show_sources(paths: Iterable[str], folder: str) -> None:
    """Have pdb and tracebacks list the DAG bundle's files from ``folder``, if they are what ran.

    Their code came without its text, under paths below the bundle.
    """
    for path in paths:
        file = os.path.join(folder, path)
        try:
            with tokenize.open(file) as opened:
                text = opened.read()
            there = set(_codes_in(compile(text, path, "exec", dont_inherit=True)))
        except (OSError, SyntaxError, ValueError):
            _tell(f"{path} cannot be listed: it is not at {file} (--source names its folder)")
            continue
        if not there.issuperset(_loaded_from(path)):
            _tell(f"{path} is not listed: {file} is not what the job was submitted with")
            continue
        for name in (path, os.path.abspath(path)):  # tracebacks ask for the one, pdb for the other
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _loaded_from(path: str) -> Iterator[CodeType]:
    """The code of every function of this process that says it is from this file."""
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            yield each.__code__


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _users_part(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not this program's."""
    own = (__file__, worker.__file__)
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return frames


def _tell(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - the terminal is the user's
