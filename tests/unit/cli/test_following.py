"""Following a job that is removed meanwhile ends with an error, not never."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.cli import build_parser, logs, show
from airflow_provider_spotbatch.job.errors import SpotBatchError
from tests.support.stored_runs import stored_run


@pytest.mark.parametrize(
    "command", [("show", "--watch"), ("show", "--watch", "--json"), ("logs", "--follow")]
)
def test_a_job_that_is_removed_while_it_is_followed_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    monkeypatch.setattr(show, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(logs, "PAUSE_SECONDS", 0.01)
    store = open_store(f"file://{tmp_path}")

    async def followed() -> None:
        run = (await stored_run(store).begin()).run
        line = {"item": 0, "attempt": 1, "time": 1.0, "text": "hello"}
        await store.write(run.generation.log("machine", 0), json.dumps(line).encode() + b"\n")
        arguments = build_parser().parse_args([*command, "job", "--store", store.uri])
        following = asyncio.create_task(arguments.run(arguments))
        while not capsys.readouterr().out:  # noqa: ASYNC110 - printing tells no event
            await asyncio.sleep(0.01)
        await store.delete([run.run])
        with pytest.raises(SpotBatchError, match="job job was removed from"):
            await asyncio.wait_for(following, 20)

    asyncio.run(asyncio.wait_for(followed(), 30))
