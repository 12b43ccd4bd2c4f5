"""Stored objects that are cut off, foreign, or of a newer release: one clear error, for one job alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.store import Store, open_store
from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.control.cancel import unfinished_runs
from airflow_provider_spotbatch.control.clean import look_at
from airflow_provider_spotbatch.control.closing import last_generation
from airflow_provider_spotbatch.control.find_run import find_run
from airflow_provider_spotbatch.control.retention import may_go
from airflow_provider_spotbatch.job.keys import ChunkId, Run, catalogue, job_prefix
from airflow_provider_spotbatch.job.report import EndedChunk
from tests.support.stored_runs import KEY, StoredRun, stored_run

FOREVER = 1e12


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("SPOTBATCH_KEY", KEY.decode())
    return open_store(f"file://{tmp_path}")


def begun(store: Store) -> StoredRun:
    return asyncio.run(stored_run(store).begin())


Name = Callable[[Run], str]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (lambda run: run.generation.spec, "show"),
        (lambda run: run.generation.spec, "logs"),
        (lambda run: run.run, "show"),
        (lambda run: run.outcome, "show"),
        (lambda run: run.progress, "show"),
        (lambda run: run.cancel, "show"),
        (lambda run: run.stop, "show"),
        (lambda run: run.launch(1), "show"),
        (lambda run: run.launch_result(1), "show"),
        (lambda run: f"{run.launches}/notes.txt", "show"),
        (lambda run: run.loss("machine"), "show"),
        (lambda run: run.history(1), "show"),
        (lambda run: run.report("machine"), "show"),
        (lambda run: run.report("machine"), "failures"),
        (lambda run: run.seal("machine", 1), "failures"),
    ],
)
@pytest.mark.parametrize("data", [b'{"format": 1, "bo', b"[1]"], ids=repr)
def test_what_cannot_be_read_is_named_in_one_line(
    store: Store, capsys: pytest.CaptureFixture[str], name: Name, command: str, data: bytes
) -> None:
    run = begun(store).run
    asyncio.run(store.write(name(run), data))

    assert main([command, "job", "--store", store.uri]) == 1
    shown = capsys.readouterr().err
    assert "cannot be read" in shown
    assert name(run) in shown
    assert len(shown.splitlines()) == 1


def test_a_result_that_cannot_be_read_is_named(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    async def damaged(stored: StoredRun) -> str:
        chunk = ChunkId(1, 1, 0)
        await stored.report("machine", [EndedChunk(str(chunk), 1, 1, 1.0, 10)])
        await store.write(stored.run.generation.result(chunk), b"half")
        return stored.run.generation.result(chunk)

    name = asyncio.run(damaged(begun(store)))
    assert main(["failures", "job", "--store", store.uri]) == 1
    assert f"the stored object {name} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("entry", [b"", b"[1, 2]", b"\xff"])
def test_an_entry_of_the_catalogue_that_cannot_be_read_hides_no_job(
    store: Store, capsys: pytest.CaptureFixture[str], entry: bytes
) -> None:
    begun(store)
    asyncio.run(stored_run(store, "other").begin())
    asyncio.run(store.write(catalogue("dag", "job"), entry))

    assert main(["jobs", "--json", "--store", store.uri]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {job["job"]: job["state"] for job in listed} == {"job": "unfinished", "other": "unfinished"}
    assert main(["show", "o", "--store", store.uri]) == 1
    assert "part of 2 job ids" in capsys.readouterr().err


def test_a_damaged_run_keeps_its_job_and_does_not_stop_a_clean(store: Store) -> None:
    run = begun(store).run
    asyncio.run(store.write(run.run, b"\xff{{"))

    assert not may_go(asyncio.run(look_at(store, "job")), FOREVER, 1.0)
    assert asyncio.run(unfinished_runs(store, "job")) == [run]


def test_folders_of_others_are_no_generations_and_no_runs(store: Store) -> None:
    async def looked(run: Run) -> None:
        await store.write(f"{job_prefix('job')}/copy of 000001/spec.json", b"")
        await store.write(f"{run.generation.runs}/old/run.json", b"")
        assert await find_run(store, "job") == run
        assert await unfinished_runs(store, "job") == [run]
        assert await last_generation(store, "job") == 1

    asyncio.run(looked(begun(store).run))
