"""How a generation ends for good before it is removed: no run can begin in it any more, and its number
is never given again.

Results, signatures and a ``MapResult`` know a generation by its number: were it given twice, what a late
machine wrote for the first could be taken for a result of the second.
"""

from __future__ import annotations

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.find_run import numbered_folders
from airflow_provider_spotbatch.job.keys import Generation, Run, job_prefix, removed_number, removed_numbers
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, unverified_body


async def close_generation(store: Store, signer: Signer, run: Run, now: float) -> bool:
    """Take the name of the run that would begin next; False where one has begun meanwhile."""
    record = RunRecord(run.number, Policy(), 0, 0, "", created=now, closed=True)
    return await store.create(run.run, record.to_bytes(signer))


async def is_closed(store: Store, run: Run) -> bool:
    """Whether this is no run but the end of its generation, whichever key signed it."""
    data = await store.read(run.run)
    return data is not None and says_closed(data)


def says_closed(record: bytes) -> bool:
    """Whether a stored ``run.json`` closes its generation; unchecked. One that cannot be read does not: what
    is not understood is never removed."""
    try:
        return bool(unverified_body(record).get("closed"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


async def take_number(store: Store, generation: Generation) -> None:
    """Remember that the generation's number was given, when nothing else of it is left."""
    await store.write(removed_number(generation), b"")


async def last_generation(store: Store, job: str) -> int:
    """The highest number that a generation of the job ever had, removed ones included; 0 for none."""
    removed = await store.list_objects(removed_numbers(job))
    last = max((int(entry.name.rsplit("/", 1)[1]) for entry in removed), default=0)
    for number, _ in reversed(await numbered_folders(store, job_prefix(job))):
        generation = Generation(job, number)
        if generation.number <= last:
            break
        if await store.exists(generation.spec) or await store.list_folders(generation.runs):
            return generation.number
    return last
