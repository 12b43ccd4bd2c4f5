"""One small value of every stored kind, how it is written and how it is read.

``golden/`` holds what each was written as, named by kind and format version. After a deliberate
change of a format: raise its version, name it here, and write the new file with

    python -m tests.unit.job.stored
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_spotbatch.job import chunks, index, items, launches, outcome, report, spec, use
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.errors import NoCapacity, QuotaExceeded
from airflow_provider_spotbatch.job.keys import ChunkId, Generation
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, derive
from airflow_provider_spotbatch.job.spending import Spending

GOLDEN = Path(__file__).parent / "golden"
GENERATION = Generation("scans-render-0123456789abcdef", 2)
SIGNER = Signer(derive(b"golden", GENERATION), GENERATION)
CHUNK = chunks.Chunk(ChunkId(1, 2, 3), ((0, 2), (5, 6)), attempt=2, memory_class=1)
ENDED = (report.EndedChunk("0001-0000002-00003", 3, 1, 2.5, 321),)
USE = use.Use.of_chunk(
    [
        outcome.ItemOutcome(0, 1, outcome.OK, "json", b"1", 10.0, 11.5, 64.5, 1.25),
        outcome.ItemOutcome(1, 1, outcome.OK, "json", b"1", 0.0, 0.25),
        outcome.ItemOutcome(2, 1, outcome.MEMORY, outcome.FAILURE, b"{}", 0.0, 2.0),
    ],
    slot_seconds=3.75,
    memory_limit_mb=2048,
)
ENVIRONMENT = spec.WorkerEnvironment(
    "3.11",
    code=("b" * 64,),
    env={"MODE": "fast"},
    packages=("numpy==2.0",),
    archives={"x86_64": "c" * 64},
)


@dataclass(frozen=True)
class Stored:
    name: str
    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]

    @property
    def path(self) -> Path:
        return GOLDEN / self.name

    def golden(self) -> bytes:
        data = self.path.read_bytes()
        return gzip.decompress(data) if self.path.suffix == ".gz" else data

    def make_golden(self) -> None:
        data = self.write(self.value)
        self.path.write_bytes(gzip.compress(data, mtime=0) if self.path.suffix == ".gz" else data)


def write_index(places: list[index.Place]) -> bytes:
    return b"".join(index.encode_index(SIGNER, 1, map(index.pack_place, places)))


def read_index(data: bytes) -> list[index.Place]:
    records = index.open_block(SIGNER, 1, 0, data)
    return [index.place_at(records, position) for position in range(3)]


def write_result(outcomes: list[outcome.ItemOutcome]) -> bytes:
    return outcome.encode_result(SIGNER, CHUNK.id, outcomes, {"instance": "i-1"})


def read_result(data: bytes) -> list[outcome.ItemOutcome]:
    head = outcome.decode_head(SIGNER, CHUNK.id, data)
    columns = ("start", "end", "peak_mb", "cpu_seconds", "preview_in", "preview_out")
    return [
        outcome.ItemOutcome(
            row.item,
            row.attempt,
            row.cause,
            row.kind,
            head.check(k, data[slice(*head.span(k))]),
            *(head.details[column][k] for column in columns),
        )
        for k, row in enumerate(head.rows)
    ]


def read_launch_outcome(data: bytes) -> tuple[Any, ...]:
    read = launches.LaunchOutcome.from_bytes(data)
    return read.instances, [refusal.to_json() for refusal in read.refusals]


INSTANCES = (launches.Instance("i-1", 3, launches.RUNNING, 4, 0.25, True, "reclaimed", 0.75),)
REFUSALS = (
    NoCapacity("no such machine now", remedy="wait", code="Insufficient"),
    QuotaExceeded("4 vCPU", below_one_machine=True),
)

STORED = (
    Stored(
        "spec-2.json",
        spec.Spec(
            GENERATION,
            spec.Work(spec.FUNCTION, "scans.render", "a" * 64, travelling={"scans": "scans.py"}),
            items.ItemTable("s1", 3, (items.Part(0, 2, 64), items.Part(2, 1, 32))),
            ENVIRONMENT,
            "f" * 64,
            "0123456789ab",
            "2024-02-29T12:00:00+00:00",
            {"dag_id": "scans", "run_id": "r", "task_id": "render", "map_index": -1},
        ),
        lambda value: value.to_bytes(SIGNER),
        lambda data: spec.Spec.from_bytes(SIGNER, data),
    ),
    Stored(
        "run-1.json",
        RunRecord(2, Policy(item_timeout=60, resources=Resources(cpus=2)), 64, 1, "2024-02-29", 1, 1.5),
        lambda value: value.to_bytes(SIGNER),
        lambda data: RunRecord.from_bytes(SIGNER, 2, data),
    ),
    Stored(
        "run-archives-1.json",
        RunRecord(2, Policy(), 64, 0, "2024-02-29", archives={"arm64": {"agent": "a" * 64}}),
        lambda value: value.to_bytes(SIGNER),
        lambda data: RunRecord.from_bytes(SIGNER, 2, data),
    ),
    Stored(
        "run-closed-1.json",
        RunRecord(3, Policy(), 0, 0, "", created=1.5, closed=True),
        lambda value: value.to_bytes(SIGNER),
        lambda data: RunRecord.from_bytes(SIGNER, 3, data),
    ),
    Stored(
        "outcome-2.json",
        Outcome(
            *("failed", "1 of 3 items failed", True, GENERATION.job, 2, 1, 3, 2, 1, {"error": 1}, 1.0, 2.5),
            cost_usd=0.5,
            spending=Spending(0.25, 0.0625, 0.125, 0.0625, 0.5, 1.5),
        ),
        lambda value: value.to_bytes(SIGNER),
        lambda data: Outcome.from_bytes(SIGNER, 1, data),
    ),
    Stored(
        "control-1.json",
        Control(7, report_every=5.0, spend_for=120.0, drain=True),
        Control.to_bytes,
        Control.from_bytes,
    ),
    Stored(
        "batch-1.json",
        chunks.Batch(2, chunks.RETRY, (CHUNK,)),
        chunks.Batch.to_bytes,
        chunks.Batch.from_bytes,
    ),
    Stored(
        "message-1.json",
        CHUNK,
        lambda value: chunks.to_message(value).encode(),
        lambda data: chunks.from_message(data.decode()),
    ),
    Stored(
        "launch-2.json",
        launches.LaunchRecord(
            3,
            1,
            (4, 4),
            "token",
            "spot",
            {"usd_per_hour": 0.25},
            "10 items wait",
            lifetime_seconds=5400.0,
        ),
        launches.LaunchRecord.to_bytes,
        launches.LaunchRecord.from_bytes,
    ),
    Stored(
        "launch-result-2.json",
        (INSTANCES, [refusal.to_json() for refusal in REFUSALS]),
        lambda _: launches.LaunchOutcome(INSTANCES, REFUSALS).to_bytes(),
        read_launch_outcome,
    ),
    Stored(
        "report-2.json",
        report.Report(
            "i-1",
            3,
            1,
            4,
            9,
            report.RUNNING,
            ended=ENDED,
            sealed=1,
            held=("0001-0000002-00004",),
            running=(report.RunningItem(5, 2, "0001-0000002-00004", 1.5),),
            empty_seconds=2.5,
            items_ok=2,
            items_failed=1,
            item_seconds=2.5,
            boot_log="booted",
            up_seconds=60.0,
            worked_seconds=120.5,
            broken_seconds=4.5,
            use={"cpu": 0.5},
        ),
        report.Report.to_bytes,
        report.Report.from_bytes,
    ),
    Stored(
        "use-1.json",
        USE,
        lambda value: json.dumps(value.to_json()).encode(),
        lambda data: use.Use.from_json(json.loads(data)),
    ),
    Stored("seal-1.json", ENDED, report.seal_to_bytes, report.seal_from_bytes),
    Stored(
        "boot-2.json",
        Boot(
            *("local", "file:///store", GENERATION.job, 2, 1, "00" * 32, "i-1", 3, 4, 1, 4096.0),
            archives={"x86_64": {"agent": "a" * 64, "packages": "b" * 64}},
            python_version="3.12",
            setup="c" * 64,
        ),
        lambda value: value.to_text().encode(),
        lambda data: Boot.from_text(data.decode()),
    ),
    Stored(
        "item-1.bin",
        ("json", b'{"uri":"s3://scans/1"}'),
        lambda value: items.pack(SIGNER, 5, *value),
        lambda data: items.unpack(SIGNER, 5, data),
    ),
    Stored(
        "offsets-1.bin",
        [0, 39, 1 << 40],
        lambda value: items.offsets_to_bytes(items.array("Q", value)),
        lambda data: list(items.offsets_from_bytes(data)),
    ),
    Stored(
        "result-1.bin",
        [
            outcome.ItemOutcome(0, 1, outcome.OK, "json", b"[1,2]", 10.0, 11.5, 64.5, 1.25, "'a'", "[1, 2]"),
            outcome.ItemOutcome(
                1, 2, outcome.ERROR, outcome.FAILURE, outcome.Failure("E", "m", "t", "o").to_bytes(), 1.0, 2.0
            ),
        ],
        write_result,
        read_result,
    ),
    Stored(
        "index-1.bin.gz",
        [
            index.Place("ok", 1, ChunkId(1, 2, 3), 4),
            index.Place("lost", 20, ChunkId(1, 9_999_999, 99_999), 0),
            index.Place(None, 0, None, 0),
        ],
        write_index,
        read_index,
    ),
)


def earlier(name: str, now: str, **lacked: Any) -> Stored:
    """A form that an earlier release wrote, and that is read with defaults for what it lacked."""
    stored = next(each for each in STORED if each.name == now)
    return replace(stored, name=name, value=replace(stored.value, **lacked))


EARLIER = (
    earlier("spec-1.json", "spec-2.json", environment=replace(ENVIRONMENT, archives={})),
    earlier("outcome-1.json", "outcome-2.json", cost_usd=None, spending=None),
    earlier("report-1.json", "report-2.json", up_seconds=0.0, worked_seconds=0.0, broken_seconds=0.0),
    earlier("boot-1.json", "boot-2.json", archives={}, python_version="", setup=""),
    earlier("launch-1.json", "launch-2.json", lifetime_seconds=None),
    Stored(
        "launch-result-1.json",
        ((replace(INSTANCES[0], on_demand_usd_per_hour=0.0),), [refusal.to_json() for refusal in REFUSALS]),
        lambda _: b"",
        read_launch_outcome,
    ),
)

if __name__ == "__main__":
    for stored in STORED:
        if not stored.path.exists():
            stored.make_golden()
