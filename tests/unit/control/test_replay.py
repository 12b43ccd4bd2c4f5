"""What a replay says of an item: how it ended here against the record, and what it cannot have here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider_spotbatch.control.item_record import ItemRecord
from airflow_provider_spotbatch.control.replay import Replay, compare, differences
from airflow_provider_spotbatch.control.run_summary import RunDocuments
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.items import ItemTable
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.outcome import FAILURE, Failure, ItemOutcome
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spec import FUNCTION, Spec, Work, WorkerEnvironment

GENERATION = Generation("job", 1)
DIVISION = Failure("ZeroDivisionError", "division by zero")


def recorded(cause: str, failure: Failure | None, memory_class: int = 0) -> ItemRecord:
    return ItemRecord(3, cause, 2, failure, 0.0, 1.0, None, "", "", "i-1", "host", memory_class)


def ended(cause: str, failure: Failure | None) -> ItemOutcome:
    kind, value = ("json", b"1") if failure is None else (FAILURE, failure.to_bytes())
    return ItemOutcome(3, 1, cause, kind, value, 0.0, 1.0)


def replay_of(record: ItemRecord | None = None, **environment: object) -> Replay:
    spec = Spec(
        GENERATION,
        Work(FUNCTION, "work", "0" * 64),
        ItemTable("first", 4, ()),
        WorkerEnvironment(**{"python": CURRENT_PYTHON, **environment}),  # type: ignore[arg-type]
        None,
        "key",
        "2026-01-01T00:00:00+00:00",
        {},
    )
    run = RunRecord(1, Policy(resources=Resources(memory_gb=1.5)), 1, 0, "")
    return Replay(3, RunDocuments(Run(GENERATION, 1), spec, run, Signer(b"key", GENERATION)), record, ())


@pytest.mark.parametrize(
    ("then", "now", "same", "message"),
    [
        (None, ended("error", DIVISION), None, "No outcome"),
        (recorded("ok", None), ended("ok", None), True, "It succeeded, as on record."),
        (recorded("ok", None), ended("error", DIVISION), False, "it succeeded on its machine"),
        (recorded("error", DIVISION), ended("error", DIVISION), True, "It failed in the same way."),
        (
            recorded("error", Failure("OSError", "disk 7")),
            ended("error", Failure("OSError", "disk 9")),
            True,
            "with another message; on record is: OSError: disk 7",
        ),
        (recorded("error", Failure("OSError", "disk")), ended("error", DIVISION), False, "Another failure"),
        (recorded("memory", Failure("OutOfMemory", "")), ended("error", DIVISION), False, "record is memory"),
        (recorded("timeout", Failure("ItemTimeout", "")), ended("ok", None), False, "may be the machine"),
        (recorded("lost", Failure("Lost", "")), ended("ok", None), False, "machines were taken away"),
    ],
)
def test_an_end_is_held_against_the_record(
    then: ItemRecord | None, now: ItemOutcome, same: bool | None, message: str
) -> None:
    verdict = compare(then, now)
    assert (verdict.ok, verdict.same_as_recorded) == (now.cause == "ok", same)
    assert message in verdict.message


def test_the_memory_is_what_the_item_had_on_its_machine() -> None:
    assert replay_of().memory_mb == 1.5 * 1024
    assert replay_of(recorded("memory", DIVISION, memory_class=2)).memory_mb == 6 * 1024


def test_secrets_are_taken_from_the_environment_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = replay_of(secrets={"TOKEN": "arn:secret"})
    with pytest.raises(InvalidInput, match=r"item 3 needs the secrets TOKEN.*set environment variables"):
        asyncio.run(replay.interpreter(str(tmp_path)))
    monkeypatch.setenv("TOKEN", "given")
    assert asyncio.run(replay.interpreter(str(tmp_path)))
    assert replay.spec.environment.secrets == {}
    (told,) = differences(replay.documents.spec, replay.documents.record, {"TOKEN"})
    assert "TOKEN" in told
    assert "given" not in told


def test_a_python_that_is_not_here_is_named(tmp_path: Path) -> None:
    replay = replay_of(python="3.99")
    with pytest.raises(InvalidInput, match=r"item 3 cannot be run here: .*no Python 3\.99"):
        asyncio.run(replay.interpreter(str(tmp_path)))
    (told,) = differences(replay.documents.spec, replay.documents.record, ())
    assert told.startswith(f"the job runs on Python 3.99 and this command on {CURRENT_PYTHON}")


def test_a_setup_script_is_told_and_left_out() -> None:
    replay = replay_of(setup="apt-get install blender")
    assert replay.spec.environment.setup is None
    (told,) = differences(replay.documents.spec, replay.documents.record, ())
    assert "is not run here" in told
