"""Names: job ids, object names, queue names. The layout of the store is this file.

All numbers in names are zero-padded, so that a listing can continue after the last name seen.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import NamedTuple

JOBS, OUT, BLOBS = "jobs", "out", "blobs"
"""What the Airflow side writes, what agents write, and what is named by its content."""

MAX_JOB_ID = 63
_HASH = 16


def job_id(deployment: str, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The id of one task instance's work: readable slug + hash, ``[a-z0-9-]``, at most 63 characters."""
    identity = json.dumps([deployment, dag_id, run_id, task_id, map_index])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{dag_id}-{task_id}".lower()).strip("-")
    slug = slug[: MAX_JOB_ID - _HASH - 1].strip("-")
    return f"{slug}-{digest}" if slug else digest


class ChunkId(NamedTuple):
    """The name of a chunk, known before it runs: run, batch and number within the batch."""

    run: int
    batch: int
    number: int

    def __str__(self) -> str:
        return "%04d-%07d-%05d" % self  # noqa: UP031 - twice as fast, and a tick names 10,000 chunks

    @classmethod
    def parse(cls, text: str) -> ChunkId:
        run, batch, number = text.split("-")
        return cls(int(run), int(batch), int(number))


@dataclass(frozen=True)
class Generation:
    """One specification of a job, and the names of what it stores."""

    job: str
    number: int

    @property
    def prefix(self) -> str:
        """What the Airflow side writes."""
        return f"{job_prefix(self.job)}/{self.number:06d}"

    @property
    def out(self) -> str:
        """What agents write."""
        return f"{out_prefix(self.job)}/{self.number:06d}"

    @property
    def spec(self) -> str:
        return f"{self.prefix}/spec.json"

    @property
    def runs(self) -> str:
        return f"{self.prefix}/runs"

    def item_part(self, submission: str, part: int) -> str:
        """Packed items; the submission's own folder, since an earlier one may have died half-way."""
        return f"{self.prefix}/items/{submission}/{part:05d}"

    def item_offsets(self, submission: str, part: int) -> str:
        return f"{self.prefix}/items/{submission}/{part:05d}.offsets"

    @property
    def results(self) -> str:
        return f"{self.out}/results"

    def result(self, chunk: ChunkId) -> str:
        return f"{self.results}/{chunk}"

    def checkpoints(self, item: int) -> str:
        return f"{self.out}/checkpoints/{item:09d}"

    def checkpoint(self, item: int, run: int, attempt: int, instance: str) -> str:
        """Attempts are counted within a run, so the latest is the last by run and attempt."""
        return f"{self.checkpoints(item)}/{run:04d}-{attempt:04d}-{instance}"

    @property
    def agents(self) -> str:
        """Reports and seals of all runs."""
        return f"{self.out}/agents"

    def log(self, instance: str, number: int) -> str:
        return f"{self.logs(instance)}/{number:06d}"

    def logs(self, instance: str) -> str:
        return f"{self.all_logs}/{instance}"

    @property
    def all_logs(self) -> str:
        return f"{self.out}/logs"


@dataclass(frozen=True)
class Run:
    """One Airflow try that drives a generation, and the names of what it stores."""

    generation: Generation
    number: int

    @property
    def prefix(self) -> str:
        return f"{self.generation.runs}/{self.number:04d}"

    def _own(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    @property
    def run(self) -> str:
        return self._own("run.json")

    @property
    def control(self) -> str:
        return self._own("control.json")

    @property
    def cancel(self) -> str:
        return self._own("cancel.json")

    @property
    def stop(self) -> str:
        return self._own("stop.json")

    @property
    def index(self) -> str:
        return self._own("index.bin")

    @property
    def outcome(self) -> str:
        return self._own("outcome.json")

    @property
    def progress(self) -> str:
        return self._own("progress.json")

    @property
    def batches(self) -> str:
        return self._own("chunks")

    def batch(self, number: int) -> str:
        return f"{self.batches}/{number:07d}.json"

    @property
    def launches(self) -> str:
        return self._own("launches")

    def launch(self, number: int) -> str:
        return f"{self.launches}/{number:05d}.json"

    def launch_again(self, number: int, asking: int) -> str:
        """Claims the right to ask once more for the machines of a record that has no answer."""
        return f"{self.launches}/{number:05d}.again-{asking:03d}.json"

    def launch_result(self, number: int) -> str:
        return f"{self.launches}/{number:05d}.result.json"

    @property
    def losses(self) -> str:
        return self._own("losses")

    def loss(self, instance: str) -> str:
        return f"{self.losses}/{instance}.json"

    @property
    def drivers(self) -> str:
        return self._own("drivers")

    def driver(self, process: str) -> str:
        """Written once by each process that drives the run: who they were, and the store's time then."""
        return f"{self.drivers}/{process}.json"

    @property
    def histories(self) -> str:
        return self._own("history")

    def history(self, number: int) -> str:
        """``number``: the minute since the epoch, by the controller's clock."""
        return f"{self.histories}/{number:06d}.json"

    @property
    def agents(self) -> str:
        return f"{self.generation.agents}/{self.number:04d}"

    def report(self, instance: str) -> str:
        return f"{self.agents}/{instance}.json"

    def seal(self, instance: str, number: int) -> str:
        return f"{self.agents}/{instance}-{number:06d}"

    def queue(self, memory_class: int) -> str:
        """Queue of one memory class; at most 80 characters, as SQS asks."""
        return f"{self.generation.job}-{self.generation.number}-{self.number}-m{memory_class}"

    def queue_deleted(self, memory_class: int) -> str:
        """Says for good that the queue was deleted, where a cloud forgets that."""
        return self._own(f"queues/m{memory_class}.deleted")

    @property
    def tag(self) -> str:
        """What marks this run's machines in a cloud."""
        return f"{self.generation.job}/{self.generation.number}/{self.number}"


def run_of_tag(tag: str) -> Run:
    """The run whose tag this is. Raises ValueError for what is no tag."""
    job, generation, run = tag.split("/")
    return Run(Generation(job, int(generation)), int(run))


def run_of_queue(name: str) -> tuple[Run, int] | None:
    """``(run, memory class)`` of a queue's name; None for a name that is no run's."""
    found = re.fullmatch(r"(.+)-(\d+)-(\d+)-m(\d+)", name)
    if found is None:
        return None
    job, generation, run, memory_class = found.groups()
    return Run(Generation(job, int(generation)), int(run)), int(memory_class)


def launch_entry(name: str) -> tuple[int, str]:
    """Number and kind of an object of a run's launch log: ``json``, ``again-<m>.json`` or ``result.json``."""
    number, _, kind = name.rsplit("/", 1)[1].partition(".")
    return int(number), kind


def job_prefix(job: str) -> str:
    return f"{JOBS}/{job}"


def out_prefix(job: str) -> str:
    return f"{OUT}/{job}"


def removed_numbers(job: str) -> str:
    return f"removed/{job}"


def removed_number(generation: Generation) -> str:
    """Says that a generation was removed, so that its number is never given again. Stays for good."""
    return f"{removed_numbers(generation.job)}/{generation.number:06d}"


def owner(job: str) -> str:
    """Names the deployment that owns the job id."""
    return f"{job_prefix(job)}/owner.json"


CATALOGUE = "index"
"""Entries for lists of jobs, by DAG; each is rewritten when a run begins, so the newest come last by time."""


def catalogue_of(dag_id: str) -> str:
    """Where the entries of a DAG are. Two DAGs may share it: an entry says whose it is."""
    return f"{CATALOGUE}/{re.sub(r'[^A-Za-z0-9_.-]+', '-', dag_id)}"


def catalogue(dag_id: str, job: str) -> str:
    """A job's entry for lists: the names that it has in Airflow, as JSON."""
    return f"{catalogue_of(dag_id)}/{job}"


def probe(name: str) -> str:
    """An object that a check of the store writes, and deletes again."""
    return f"check/{name}"


def blob(sha256: str) -> str:
    return f"{BLOBS}/{sha256}"


def facts(name: str) -> str:
    """What a cloud says of itself (machine types, prices), kept for all jobs for a while."""
    return f"facts/{name}.json"
