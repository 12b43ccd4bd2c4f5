"""Archives that are built on the Airflow side: each kept in a folder of its own, named by what was asked
for, as a ``tar.gz`` named by the sha256 of its bytes, which are the same for the same content."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.environment.build_once import build_once
from airflow_provider_spotbatch.environment.deterministic_tar import pack_folder

_LAYOUT = 1
"""Raise it when archives of what is asked for in the same words get other content."""


@dataclass(frozen=True)
class Archive:
    """A blob as a file: ``sha256`` of its bytes."""

    sha256: str
    path: str


async def built_archive(
    identity: list[Any], fill: Callable[[str], Awaitable[None]], root: str, deadline: float
) -> Archive:
    """The archive of what ``fill`` puts into the folder that it is given (and makes), built below ``root``
    unless it is there. ``identity``: JSON values that tell it from all others."""
    name = hashlib.sha256(json.dumps([_LAYOUT, *identity]).encode()).hexdigest()[:32]
    folder = os.path.join(root, "archives", name)

    async def build(partial: str) -> None:
        content = os.path.join(partial, "content")
        await fill(content)
        await asyncio.to_thread(_pack, content, partial)

    await build_once(folder, deadline, build)
    return await asyncio.to_thread(_found, folder)


def _pack(content: str, folder: str) -> None:
    packed = os.path.join(folder, "packed")
    pack_folder(content, packed)
    shutil.rmtree(content)
    digest = hashlib.sha256()
    with open(packed, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    os.rename(packed, os.path.join(folder, f"{digest.hexdigest()}.tar.gz"))


def _found(folder: str) -> Archive:
    (path,) = Path(folder).glob("*.tar.gz")
    return Archive(path.name[: -len(".tar.gz")], str(path))
