"""The agent's folder: what its workers need on this machine's disk, fetched and checked once."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job import codec, context
from airflow_provider_spotbatch.job.errors import SignatureMismatch, SpotBatchError
from airflow_provider_spotbatch.job.keys import blob
from airflow_provider_spotbatch.job.spec import Spec, Work


@dataclass(frozen=True)
class Debugger:
    """For a worker that stops at an exception, on this process's own terminal: the path of
    ``debugger.py``, and the folder in which sources of the DAG bundle are looked for."""

    program: str
    sources: str


@dataclass(frozen=True)
class WorkerSetup:
    """All a worker is started with. ``code``: import paths, first one first; ``files``: name → path.

    ``debugger`` None: the worker's output is captured, and it has no input.
    """

    python: str
    python_version: str
    work: Work
    work_blob: bytes = field(repr=False)
    code: tuple[str, ...]
    files: dict[str, str]
    env: dict[str, str] = field(repr=False)
    folder: str
    cache: str
    codec: str
    context: str
    cloudpickle: str
    debugger: Debugger | None = None


async def prepare(
    spec: Spec, store: Store, folder: Path, python: str, secrets: Mapping[str, str]
) -> WorkerSetup:
    """Fetch what the specification names into ``folder``; ``python``: the interpreter of its workers;
    ``secrets``: the environment's, resolved.

    Raises SpotBatchError, naming what is missing or wrong.
    """
    environment = spec.environment
    cache = folder / "cache"
    await asyncio.to_thread(cache.mkdir, parents=True, exist_ok=True)
    work_blob = await _fetch(store, spec.work.blob)
    code = [await _extracted(store, sha256, folder / "code" / sha256) for sha256 in environment.code]
    files = {
        name: await _kept(store, sha256, folder / "files" / sha256)
        for name, sha256 in environment.files.items()
    }
    return WorkerSetup(
        python=python or sys.executable,
        python_version=environment.python,
        work=spec.work,
        work_blob=work_blob,
        code=tuple(code),
        files=files,
        env={**environment.env, **secrets},
        folder=str(folder),
        cache=str(cache),
        codec=_source(codec.__file__),
        context=_source(context.__file__),
        cloudpickle=_cloudpickle(),
    )


def make_slot_folder(setup: WorkerSetup, slot: int) -> tuple[str, str]:
    """``(working folder, scratch folder)`` of a slot's worker, with fresh copies of the files."""
    home = Path(setup.folder) / "slots" / str(slot)
    work, scratch = home / "work", home / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    for folder in (work, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    for name, path in setup.files.items():
        target = work / name
        if not target.resolve().is_relative_to(work.resolve()):
            raise SpotBatchError(f"the environment's file {name!r} lies outside the working folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return str(work), str(scratch)


async def _fetch(store: Store, sha256: str) -> bytes:
    data = await store.read(blob(sha256))
    if data is None:
        raise SpotBatchError(f"{blob(sha256)} is missing in {store.uri}: clear the task to submit it again")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SignatureMismatch(f"{blob(sha256)} in {store.uri} was changed after it was written")
    return data


async def _extracted(store: Store, sha256: str, target: Path) -> str:
    await asyncio.to_thread(_extract, await _fetch(store, sha256), target)
    return str(target)


def _extract(data: bytes, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(target)  # it drops absolute and parent paths


async def _kept(store: Store, sha256: str, target: Path) -> str:
    await asyncio.to_thread(_keep, await _fetch(store, sha256), target)
    return str(target)


def _keep(data: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _cloudpickle() -> str:
    """cloudpickle's one real file: workers load it under a private name."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise SpotBatchError("cloudpickle is not installed beside the agent: install it there")
    return os.path.join(os.path.dirname(spec.origin), "cloudpickle.py")


def _source(path: str | None) -> str:
    if path is None:
        raise SpotBatchError("the agent must be installed as files, not run from an archive")
    return path
