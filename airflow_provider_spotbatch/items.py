"""Where items come from: ``Items.lines``, ``Items.jsonl``, ``Items.listing``, and any iterable."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput, StoreUnavailable

LINES = "lines"
JSONL = "jsonl"
LISTING = "listing"

_READ_BYTES = 4 * 1024 * 1024
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Items:
    """Items read from a file or a listing when the task runs, in constant memory.

    ``uri``: ``/path``, ``file:///path``, ``s3://bucket/key`` or ``gs://bucket/key``; templated.
    """

    kind: str
    uri: str

    @classmethod
    def lines(cls, uri: str) -> Items:
        """One item per line of a text file in UTF-8, without its line end; empty lines are left out."""
        return cls(LINES, _checked(uri))

    @classmethod
    def jsonl(cls, uri: str) -> Items:
        """One item per line of a file that holds one JSON value on each; empty lines are left out."""
        return cls(JSONL, _checked(uri))

    @classmethod
    def listing(cls, uri_glob: str) -> Items:
        """The URIs of all objects that match, sorted: ``*`` and ``?`` stay within a folder, ``**`` does
        not."""
        return cls(LISTING, _checked(uri_glob))

    def render(self, render_value: Callable[[Any], Any]) -> Items:
        """A copy with the URI passed through ``render_value``."""
        return replace(self, uri=_checked(render_value(self.uri)))

    def iterate(self, store_options: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """The items, streamed. ``store_options``: obstore's settings of the store (region, endpoint …).

        Raises InvalidInput where the file is not there or a line cannot be read, StoreUnavailable
        where the store refuses or does not answer.
        """
        options = store_options or {}
        if self.kind == LISTING:
            return iter(_listing(self.uri, options))
        lines = _lines(self.uri, options)
        return _json_values(self.uri, lines) if self.kind == JSONL else (line for _, line in lines)


def iterate_items(source: Any, store_options: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """The items of whatever a user may give: any iterable but a text or a mapping, an :class:`Items`,
    or a generator function. Raises InvalidInput for anything else.

    Values keep their types. A set is put in an order that is the same in every process.
    """
    if isinstance(source, Items):
        return source.iterate(store_options)
    if callable(source) and not isinstance(source, type) and not isinstance(source, Iterable):
        return _iterator(_called(source))
    return _iterator(source)


def _called(function: Callable[[], Any]) -> Any:
    name = getattr(function, "__name__", repr(function))
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise InvalidInput(f"items: {name} is async; give a plain generator function")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidInput(f"items: {name} must be callable without arguments: {error}") from error
    return function()


def _iterator(source: Any) -> Iterator[Any]:
    if isinstance(source, (str, bytes, bytearray)):
        what = "string" if isinstance(source, str) else "bytes"
        shown = source if len(source) <= 60 else source[:57]
        raise InvalidInput(
            f"items must be a list or another iterable, not the {what} {shown!r}: "
            f"for one item write [{shown!r}]"
        )
    if isinstance(source, Mapping):
        raise InvalidInput(
            "items must be a list or another iterable, not a mapping: write list(d), list(d.values()) or "
            "list(d.items()) for what is meant"
        )
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        raise InvalidInput("items must not be a data frame: write frame.to_dict('records') for its rows")
    if isinstance(source, (set, frozenset)):
        return iter(_ordered(source))
    try:
        return iter(source)
    except TypeError:
        raise InvalidInput(
            f"items must be a list or another iterable, not {source!r} of type {type(source).__name__}: "
            "for one item write [item]"
        ) from None


def _ordered(source: Iterable[Any]) -> list[Any]:
    from airflow_provider_spotbatch.environment.fingerprint import Unstable, stable_digest

    try:
        return sorted(source, key=stable_digest)
    except Unstable as reason:
        raise InvalidInput(
            f"items is a set of values that have no order of their own ({reason}): give a list"
        ) from reason


def _checked(uri: Any) -> str:
    if not isinstance(uri, (str, os.PathLike)):
        raise InvalidInput(f"Items needs a URI or a path, not {uri!r}")
    return os.fspath(uri)


def _local_path(uri: str) -> str | None:
    if uri.startswith("file://"):
        return uri[len("file://") :]
    return None if "://" in uri else uri


def _lines(uri: str, options: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """``(number from 1, text)`` of the lines that are not empty."""
    for number, raw in enumerate(_raw_lines(_blocks(uri, options)), start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"line {number} of {uri} is not UTF-8: {error}") from error
        if line and not line.isspace():
            yield number, line


def _json_values(uri: str, lines: Iterable[tuple[int, str]]) -> Iterator[Any]:
    for number, line in lines:
        try:
            yield json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"line {number} of {uri} is no JSON value: {error}") from error


def _raw_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n") if rest else block.split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


def _blocks(uri: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    path = _local_path(uri)
    if path is not None:
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed below, once the last block was taken
        except OSError as error:
            raise InvalidInput(f"items cannot be read from {uri}: {error.strerror}") from error
        with file:
            while block := file.read(_READ_BYTES):
                yield block
        return
    import obstore
    from obstore.exceptions import BaseError

    store, key = _remote(uri, options)
    try:
        for chunk in obstore.get(store, key).stream(min_chunk_size=_READ_BYTES):
            yield bytes(chunk)
    except FileNotFoundError as error:
        raise InvalidInput(f"items cannot be read from {uri}: there is no such object") from error
    except BaseError as error:
        raise StoreUnavailable(f"items cannot be read from {uri}: {str(error).splitlines()[0]}") from error


def _remote(uri: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The store of a URI's bucket, and the rest of the URI."""
    from obstore.store import from_url

    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in ("s3", "gs") or not bucket or not key:
        raise InvalidInput(
            f"items cannot be read from {uri!r}: give /path, file:///path, s3://bucket/key or gs://bucket/key"
        )
    return from_url(f"{scheme}://{bucket}", **options), key


def _listing(uri: str, options: Mapping[str, Any]) -> list[str]:
    path = _local_path(uri)
    if path is not None:
        shown = uri[: len(uri) - len(path)]
        names = _local_names(os.path.abspath(path))
        pattern = _pattern(os.path.abspath(path))
    else:
        store, key = _remote(uri, options)
        shown = uri[: len(uri) - len(key)]
        names = _remote_names(store, key)
        pattern = _pattern(key)
    return sorted(shown + name for name in names if pattern.fullmatch(name))


def _fixed_folder(glob: str) -> str:
    """The folder above the first wild card."""
    wild = _WILD.search(glob)
    return glob[: wild.start() if wild else len(glob)].rpartition("/")[0]


def _local_names(glob: str) -> Iterator[str]:
    for folder, _, files in os.walk(_fixed_folder(glob) or "/"):
        yield from (os.path.join(folder, file) for file in files)


def _remote_names(store: Any, glob: str) -> Iterator[str]:
    import obstore
    from obstore.exceptions import BaseError

    try:
        for chunk in obstore.list(store, _fixed_folder(glob) or None):
            yield from (entry["path"] for entry in chunk)
    except BaseError as error:
        raise StoreUnavailable(f"items cannot be listed: {str(error).splitlines()[0]}") from error


def _pattern(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob)
    known = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(part) or _literal(part) for part in parts))


def _literal(part: str) -> str:
    if part.startswith("[") and part.endswith("]"):
        return "[" + part[1:-1].replace("!", "^", 1).replace("\\", "\\\\") + "]"
    return re.escape(part)
