"""Archives as machines unpack them, of a few small files."""

from __future__ import annotations

import io
import tarfile


def archive(files: dict[str, bytes], executable: bool = False) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as packed:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if executable else 0o644
            packed.addfile(entry, io.BytesIO(data))
    return target.getvalue()


def agent_archive(program: str, python: str) -> bytes:
    """An archive whose agent is ``program``. ``python``: its minor version."""
    package = f"lib/python{python}/site-packages/airflow_provider_spotbatch"
    return archive({f"{package}/agent/__main__.py": program.encode(), f"{package}/__init__.py": b""})
