"""Packing as the operator does it, DAG files as Airflow loads them, and a fresh interpreter."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.packing import Packed, Packing
from airflow_provider_spotbatch.job import codec

LoadDag = Callable[..., ModuleType]

WORKER = Path(__file__).with_name("fresh_worker.py")


def load_dag_file(path: Path) -> ModuleType:
    """Import a file under the mangled name that Airflow gives it."""
    name = f"unusual_prefix_{hashlib.sha1(str(path).encode()).hexdigest()}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def packing(
    function: Any = None,
    *,
    dotted: str | None = None,
    command: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    call: str = "item",
    environment: Environment | None = None,
    bundle: Path | None = None,
) -> Packing:
    return Packing(
        function=function,
        dotted=dotted,
        command=command,
        kwargs=kwargs or {},
        call=call,
        environment=environment or Environment(),
        bundle=None if bundle is None else str(bundle),
        name=getattr(function, "__name__", "work"),
    )


def packed_with(packer: Packing, items: Sequence[Any]) -> tuple[Packed, list[tuple[str, bytes]]]:
    encoded = [packer.encode_item(index, item) for index, item in enumerate(items)]
    return packer.finish(), encoded


def fingerprint(packer: Packing) -> str:
    packed = packer.finish()
    assert packed.unstable == ()
    assert packed.fingerprint is not None
    return packed.fingerprint


class Elsewhere:
    """Runs packed work in an interpreter that shares nothing with this one but what is installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, packed: Packed, encoded: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """The encoded results; fails the test with what the other interpreter printed."""
        self._folder.mkdir(exist_ok=True)
        zips = []
        for sha in packed.environment.code:
            zips.append(self._folder / f"{sha}.zip")
            zips[-1].write_bytes(packed.blobs[sha])
        job = {
            "codec": codec.__file__,
            "kind": packed.work.kind,
            "name": packed.work.name,
            "blob": packed.blobs[packed.work.blob],
            "items": list(encoded),
        }
        (self._folder / "job.pickle").write_bytes(pickle.dumps(job))
        answer = self._folder / "answer.pickle"
        done = subprocess.run(
            [sys.executable, str(WORKER), str(self._folder / "job.pickle"), str(answer)],
            env={
                **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                "PYTHONHASHSEED": "4242",
                "PYTHONPATH": os.pathsep.join(map(str, zips)),
            },
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        results: list[tuple[str, bytes]] = pickle.loads(answer.read_bytes())
        return results


def fingerprint_elsewhere(path: Path, seed: int, function: str = "work") -> str:
    """The fingerprint of a DAG file's function, taken in another process."""
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.environment.packs import fingerprint, load_dag_file, packing\n"
        "path = Path(sys.argv[1])\n"
        "module = load_dag_file(path)\n"
        "print(json.dumps(fingerprint(packing(getattr(module, sys.argv[2]), bundle=path.parent))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), function],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    text: str = json.loads(done.stdout)
    return text
