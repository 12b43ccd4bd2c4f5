"""A folder as ``tar.gz`` with the same bytes for the same content, whoever packs it and when."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator

_EPOCH = 315_532_800
"""1980-01-01: some programs take an earlier time for an error."""


def pack_folder(folder: str, target: str) -> None:
    """Pack what is in ``folder``. Owners, times and all of the mode but "executable" are left out."""
    with (
        open(target, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in _names(folder):
            path = os.path.join(folder, name)
            entry = _plain(archive.gettarinfo(path, name), path)
            if entry.isreg():
                with open(path, "rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)


def _names(folder: str) -> Iterator[str]:
    """Everything below, parents first, in the order of names."""
    for path, folders, files in os.walk(folder):
        folders.sort()
        place = os.path.relpath(path, folder)
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        if place != ".":
            yield place
        for name in sorted([*files, *links]):
            yield os.path.normpath(os.path.join(place, name))


def _plain(entry: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = _EPOCH
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
    if entry.islnk():  # a file that has several names in the folder: each gets its content
        entry.type = tarfile.REGTYPE
        entry.linkname = ""
        entry.size = os.stat(path).st_size
    return entry
