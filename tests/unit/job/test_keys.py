from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.job import keys
from airflow_provider_spotbatch.job.keys import ChunkId, Generation, Run, job_id


@given(st.text(), st.text(), st.text(), st.text(), st.integers(-1, 10**6))
def test_a_job_id_is_short_and_safe_whatever_the_names(
    deployment: str, dag: str, run: str, task: str, index: int
) -> None:
    made = job_id(deployment, dag, run, task, index)

    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", made)
    assert len(made) <= 63


def test_a_job_id_tells_dag_and_task() -> None:
    made = job_id("airflow.example.org", "Nightly_Render", "manual__1", "frames.render", -1)

    assert re.fullmatch(r"nightly-render-frames-render-[0-9a-f]{16}", made)


def test_a_job_id_of_names_without_letters_is_the_hash_alone() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", job_id("d", "日本", "r", "___", -1))


def test_a_cut_slug_does_not_end_in_a_dash() -> None:
    made = job_id("d", "a" * 45, "r", "task", -1)

    assert "--" not in made
    assert made.startswith("a" * 45 + "-")


@pytest.mark.parametrize("changed", range(5))
def test_each_part_of_the_identity_makes_another_job(changed: int) -> None:
    identity = ["deployment", "dag", "run", "task", 0]
    other = [*identity]
    other[changed] = 1 if changed == 4 else "another"

    assert job_id(*identity) != job_id(*other)  # type: ignore[arg-type]


def test_parts_of_the_identity_cannot_run_into_each_other() -> None:
    assert job_id("d", "a-b", "r", "c", -1) != job_id("d", "a", "r", "b-c", -1)


def test_a_job_id_is_the_same_in_every_release() -> None:
    assert job_id("host", "dag", "run", "task", -1) == "dag-task-3afd5ebb0a82e319"


@given(st.integers(0, 9999), st.integers(0, 9_999_999), st.integers(0, 99_999))
def test_a_chunk_id_reads_back(run: int, batch: int, number: int) -> None:
    chunk = ChunkId(run, batch, number)

    assert ChunkId.parse(str(chunk)) == chunk


@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 9_999_999), st.integers(0, 99_999))))
def test_chunk_ids_sort_as_their_names_do(numbers: list[tuple[int, int, int]]) -> None:
    chunks = [ChunkId(*three) for three in numbers]

    assert [str(chunk) for chunk in sorted(chunks)] == sorted(map(str, chunks))


def numbered_names(number: int) -> dict[str, str]:
    generation = Generation("job", 1)
    run = Run(generation, 1)
    return {
        "generation": Generation("job", number).prefix,
        "out": Generation("job", number).out,
        "part": generation.item_part("s", number),
        "run": Run(generation, number).prefix,
        "batch": run.batch(number),
        "launch": run.launch(number),
        "history": run.history(number),
        "seal": run.seal("machine", number),
        "log": generation.log("machine", number),
        "checkpoints": generation.checkpoints(number),
        "checkpoint": generation.checkpoint(1, 1, number, "machine"),
    }


@pytest.mark.parametrize("kind", numbered_names(0))
def test_names_list_in_the_order_of_their_numbers(kind: str) -> None:
    made = [numbered_names(number)[kind] for number in (0, 1, 9, 10, 99, 100, 999, 1000)]

    assert made == sorted(made)


def test_what_agents_write_lies_apart_from_what_they_may_not_change() -> None:
    generation = Generation("job", 1)
    run = Run(generation, 2)

    by_agents = [
        generation.result(ChunkId(1, 2, 3)),
        generation.log("m", 1),
        generation.checkpoint(1, 1, 1, "m"),
        run.report("m"),
        run.seal("m", 1),
    ]
    by_airflow = [
        generation.spec,
        generation.item_part("s", 0),
        generation.item_offsets("s", 0),
        run.run,
        run.control,
        run.cancel,
        run.stop,
        run.index,
        run.outcome,
        run.progress,
        run.batch(1),
        run.launch(1),
        run.launch_result(1),
        run.loss("m"),
        run.history(1),
    ]

    assert all(name.startswith("out/job/000001/") for name in by_agents)
    assert all(name.startswith("jobs/job/000001/") for name in by_airflow)
    assert len({*by_agents, *by_airflow}) == len(by_agents) + len(by_airflow)


def test_a_queue_name_fits_what_sqs_allows() -> None:
    longest = job_id("d", "x" * 100, "r", "y" * 100, -1)

    name = Run(Generation(longest, 999_999), 9999).queue(9)

    assert len(name) <= 80
    assert re.fullmatch(r"[A-Za-z0-9_-]+", name)


def test_queue_and_tag_carry_the_run() -> None:
    first, second = Run(Generation("job", 1), 1), Run(Generation("job", 1), 2)

    assert first.queue(0) != second.queue(0)
    assert first.tag != second.tag


def test_a_catalogue_entry_cannot_leave_its_folder() -> None:
    assert keys.catalogue("../other dag", "job") == "index/..-other-dag/job"
