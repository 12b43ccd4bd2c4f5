"""``item_context`` as a function sees it, and the environment that its worker is given."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_spotbatch
from airflow_provider_spotbatch import item_context
from airflow_provider_spotbatch.job.spec import WorkerEnvironment
from tests.support.jobs import failure_of, function_job, outcomes_of, value_of


def test_index_and_attempt_are_the_items_own(tmp_path: Path) -> None:
    job = function_job(tmp_path, lambda x: [item_context.index, item_context.attempt], ["a", "b"])
    assert [value_of(outcome) for outcome in outcomes_of(job)] == [[0, 1], [1, 1]]


def test_the_scratch_folder_is_fresh_and_goes_with_the_item(tmp_path: Path) -> None:
    def work(x: int) -> list[Any]:
        scratch = item_context.scratch
        found = os.listdir(scratch)
        Path(scratch, "file").touch()
        return [scratch, found, scratch == item_context.scratch]

    values = [value_of(outcome) for outcome in outcomes_of(function_job(tmp_path, work, [0, 1]))]
    assert [value[1:] for value in values] == [[[], True], [[], True]]
    assert values[0][0] != values[1][0]
    assert [Path(value[0]).exists() for value in values] == [False, False]


def test_the_cache_folder_is_kept_between_items(tmp_path: Path) -> None:
    def work(x: int) -> list[str]:
        found = sorted(os.listdir(item_context.cache_dir))
        Path(item_context.cache_dir, str(x)).touch()
        return found

    job = function_job(tmp_path, work, [0, 1, 2])
    assert [value_of(outcome) for outcome in outcomes_of(job)] == [[], ["0"], ["0", "1"]]


def test_a_checkpoint_comes_back_and_is_none_before_the_first(tmp_path: Path) -> None:
    def work(x: int) -> list[Any]:
        before = item_context.checkpoint.load()
        item_context.checkpoint.save(b"first")
        item_context.checkpoint.save(bytes(1_000_000))
        item_context.checkpoint.save(b"last")
        return [before, (item_context.checkpoint.load() or b"").decode()]

    job = function_job(tmp_path, work, [0, 1])
    assert [value_of(outcome) for outcome in outcomes_of(job)] == [[None, "last"], [None, "last"]]


def test_a_checkpoint_of_another_key_is_refused_and_the_item_says_so(tmp_path: Path) -> None:
    job = function_job(tmp_path, lambda x: item_context.checkpoint.load(), [0])
    forged = job.boot.of_generation.checkpoint(0, 1, 1, "i-0")
    asyncio.run(job.store.write(forged, bytes(16) + b"forged"))
    (outcome,) = outcomes_of(job)
    assert "not signed with this connection's key" in failure_of(outcome).message


def test_a_forked_child_has_no_checkpoint(tmp_path: Path) -> None:
    def work(x: int) -> str:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                item_context.checkpoint.save(b"x")
            except RuntimeError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        return os.read(read, 1000).decode()

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    assert "a checkpoint belongs to its item" in value_of(outcome)


def test_an_item_is_not_interrupted_without_a_notice(tmp_path: Path) -> None:
    def work(x: int) -> list[bool]:
        return [item_context.interrupted.is_set(), item_context.interrupted.wait(0.01)]

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    assert value_of(outcome) == [False, False]


@pytest.mark.parametrize("installed", [False, True])
def test_the_package_answers_on_the_machine_installed_or_not(tmp_path: Path, installed: bool) -> None:
    def work(x: int) -> list[Any]:
        import airflow_provider_spotbatch as package
        from airflow_provider_spotbatch.job.context import item_context as same

        return [package.item_context.index, package.item_context is same, hasattr(package, "__version__")]

    checkout = str(Path(airflow_provider_spotbatch.__file__).parents[1])
    environment = WorkerEnvironment(python="", env={"PYTHONPATH": checkout if installed else ""})
    bare = os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    (outcome,) = outcomes_of(function_job(tmp_path, work, [0], environment=environment, python=bare))
    assert value_of(outcome) == [0, True, installed]


def zipped(**sources: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sources.items():
            archive.writestr(f"{name}.py", source)
    return buffer.getvalue()


def test_code_files_and_variables_of_the_environment_are_there(tmp_path: Path) -> None:
    def work(x: int) -> list[Any]:
        import bundle_module

        return [bundle_module.NAME, Path("data/words.txt").read_text(), os.environ["COLOUR"]]

    job = function_job(tmp_path, work, [0])
    code = job.add_blob(zipped(bundle_module="NAME = 'from the bundle'"))
    words = job.add_blob(b"some words")
    job.environment = WorkerEnvironment(
        python="", code=(code,), files={"data/words.txt": words}, env={"COLOUR": "red"}
    )
    (outcome,) = outcomes_of(job)
    assert value_of(outcome) == ["from the bundle", "some words", "red"]


def test_nothing_of_the_agent_is_on_the_workers_import_path(tmp_path: Path) -> None:
    def work(x: int) -> list[str]:
        import sys

        wanted = ("airflow_provider_spotbatch", "obstore", "cloudpickle", "asyncio")
        return [name for name in sys.modules if name.partition(".")[0] in wanted]

    (outcome,) = outcomes_of(function_job(tmp_path, work, [0]))
    assert value_of(outcome) == []
