from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job import spec
from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.items import ItemTable, Part
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Signer, derive
from airflow_provider_spotbatch.job.spec import Spec, Work, WorkerEnvironment


@pytest.fixture
def made(generation: Generation) -> Spec:
    return Spec(
        generation=generation,
        work=Work(spec.FUNCTION, "scans.render", "a" * 64, travelling={"scans": "dags/scans.py"}),
        items=ItemTable("sub-1", 3, (Part(0, 2, 100), Part(2, 1, 50))),
        environment=WorkerEnvironment(
            "3.11",
            code=("b" * 64,),
            files={"model.bin": "c" * 64},
            env={"MODE": "fast"},
            secrets={"TOKEN": "arn:secret"},
            packages=("numpy==2.0",),
            archives={"x86_64": "d" * 64},
            setup="apt-get install blender",
        ),
        fingerprint="f" * 64,
        key_id="0123456789ab",
        created="2024-02-29T12:00:00+00:00",
        identity={"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": -1},
    )


def test_it_reads_back(signer: Signer, made: Spec) -> None:
    assert Spec.from_bytes(signer, made.to_bytes(signer)) == made


def test_one_with_nothing_optional_reads_back(signer: Signer, generation: Generation) -> None:
    bare = Spec(
        generation,
        Work(spec.COMMAND, "blender", "a" * 64),
        ItemTable("s", 0, ()),
        WorkerEnvironment("3.13"),
        None,
        "k",
        "now",
        {},
    )

    assert Spec.from_bytes(signer, bare.to_bytes(signer)) == bare


@pytest.mark.parametrize(
    ("key", "reader"),
    [(b"another", Generation("renders-frame-0123456789abcdef", 3)), (bytes(range(32)), Generation("job", 4))],
    ids=["key", "generation"],
)
def test_it_is_refused_by_another_key_or_in_another_generation(
    signer: Signer, made: Spec, key: bytes, reader: Generation
) -> None:
    with pytest.raises(SignatureMismatch, match="old_keys"):
        Spec.from_bytes(Signer(derive(key, reader), reader), made.to_bytes(signer))


def test_a_changed_one_is_refused(signer: Signer, made: Spec) -> None:
    document = json.loads(made.to_bytes(signer))
    document["body"]["work"]["blob"] = "e" * 64

    with pytest.raises(SignatureMismatch):
        Spec.from_bytes(signer, json.dumps(document).encode())


def test_an_unknown_format_is_refused_though_signed(signer: Signer, made: Spec) -> None:
    body = {**json.loads(made.to_bytes(signer))["body"], "format": 2}

    with pytest.raises(FormatMismatch, match="format 2"):
        Spec.from_bytes(signer, signer.sign_json("spec", "spec.json", body))
