"""From arguments to a run in the store: items are streamed in, the generation and run are chosen.

Nothing is launched here and nothing that was stored before is changed; a submission that dies
half-way leaves only a folder of items that nobody names.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.control.bare_machines import store_agent, store_packages
from airflow_provider_spotbatch.control.blobs import missing_blobs, store_blobs
from airflow_provider_spotbatch.control.cancel import cancel
from airflow_provider_spotbatch.control.closing import is_closed, last_generation
from airflow_provider_spotbatch.control.find_run import latest_run
from airflow_provider_spotbatch.control.finish import finish, outcome_of
from airflow_provider_spotbatch.control.metrics import SILENT, Metrics
from airflow_provider_spotbatch.control.site import Site, read_run, read_spec
from airflow_provider_spotbatch.environment.packing import Packed, Packing
from airflow_provider_spotbatch.items import iterate_items
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError, Throttled
from airflow_provider_spotbatch.job.items import ItemTable, Part, PartBuilder, pack
from airflow_provider_spotbatch.job.keys import Generation, Run, catalogue, job_id, owner
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED, Outcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.signing import Signer, key_id
from airflow_provider_spotbatch.job.spec import Spec

UPLOADS = 4
"""Parts uploaded at the same time: up to 64 MB of items in memory."""

OFFERS_PAUSES = (5.0, 10.0, 20.0, 40.0, 60.0, 60.0)
"""Seconds between questions to a cloud that was asked too much, with jitter: some 3 minutes in all."""

Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class JobRequest:
    """What a task asks for. ``items``: any source that ``iterate_items`` takes.

    ``max_tries`` and ``dag_run_started`` tell an Airflow try that came back from a new one.
    ``most_items``: longer results are refused before anything is launched, with ``most_items_why``.
    """

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    max_tries: int
    dag_run_started: str
    packing: Packing
    items: Any
    policy: Policy
    most_items: int | None = None
    most_items_why: str = ""

    @property
    def job(self) -> str:
        return job_id(self.deployment, self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def identity(self) -> dict[str, Any]:
        """What the job is called, for lists and messages."""
        return {
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "map_index": self.map_index,
        }


@dataclass(frozen=True)
class Submitted:
    """``run`` is to be driven; or ``outcome`` is there already and nothing is to be done."""

    run: Run | None = None
    outcome: Outcome | None = None


async def submit(
    site: Site, request: JobRequest, say: Say, metrics: Metrics = SILENT, *, sleep: Sleep = asyncio.sleep
) -> Submitted:
    """Store the job and its run, or find what an earlier try left of it.

    Raises InvalidInput for anything wrong with the request, before anything is launched.
    """
    await _see_what_is_offered(site, request, say, sleep)
    await _own(site.store, request)
    earlier = await latest_run(site.store, request.job)
    if earlier is not None and await is_closed(site.store, earlier):
        say(f"generation {earlier.generation.number} is being removed: the job starts afresh")
        earlier = None
    if earlier is not None:
        outcome = await _same_try(site, earlier, request)
        if outcome is not None:
            say(f"this try has finished already (run {outcome.run}): its result is taken")
            return Submitted(outcome=outcome)
    generation = Generation(request.job, await last_generation(site.store, request.job) + 1)
    table, digest = await _store_items(site, generation, request)
    packed = await asyncio.to_thread(request.packing.finish)
    _tell_packed(packed, say)
    fingerprint = _fingerprint(packed, digest)
    if earlier is not None:
        reused = await _resume(site, earlier, request, fingerprint, say, metrics)
        if reused is not None:
            await _drop_items(site.store, generation, table)
            return reused
    await store_blobs(site.store, packed.blobs, site.wall_clock())
    environment = await store_packages(site, packed, request.policy.resources, say)
    spec = Spec(
        generation=generation,
        work=packed.work,
        items=table,
        environment=environment,
        fingerprint=fingerprint,
        key_id=key_id(site.settings.key),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        identity=request.identity,
    )
    if not await site.store.create(generation.spec, spec.to_bytes(site.signer(generation))):
        raise SpotBatchError(
            f"another try of this task has just submitted {generation.prefix}: this one gives way to it"
        )
    # Again, now that they are named: a clean may have removed one while it was written again.
    await store_blobs(site.store, packed.blobs, site.wall_clock())
    run = await _begin_run(site, Run(generation, 1), spec, request, say, previous=None)
    say(f"job {request.job}, generation {generation.number}: {table.count:,} items")
    return Submitted(run=run)


async def _see_what_is_offered(site: Site, request: JobRequest, say: Say, sleep: Sleep) -> None:
    """Whether machines fit. Waits where too many ask at once, as when a hundred DAGs start by the hour."""
    policy = request.policy
    for pause in OFFERS_PAUSES:
        try:
            await site.backend.offers(policy.resources, policy, policy.concurrency or 1)
            return
        except Throttled as refusal:
            seconds = pause * random.uniform(0.5, 1.5)
            say(f"{refusal} (in {seconds:.0f} s)")
            await sleep(seconds)
    await site.backend.offers(policy.resources, policy, policy.concurrency or 1)


# --- what was there before -----------------------------------------------------------------------


async def _own(store: Store, request: JobRequest) -> None:
    """Claim the job id for this deployment, or find it is ours already."""
    body = json.dumps({"format": 1, "deployment": request.deployment}).encode()
    if await store.create(owner(request.job), body):
        return
    stored = await store.read(owner(request.job))
    theirs = json.loads(stored)["deployment"] if stored else request.deployment
    if theirs != request.deployment:
        raise InvalidInput(
            f"the store {store.uri} holds job {request.job} of another deployment ({theirs!r}; this one is "
            f"{request.deployment!r}). Give each Airflow its own store, or set [spotbatch] deployment"
        )


async def _same_try(site: Site, run: Run, request: JobRequest) -> Outcome | None:
    """The success of this very Airflow try, which came back after it had finished."""
    if run.number == 0:
        return None
    await read_spec(site, run.generation)  # a changed key is an error, never a silent rerun
    record, outcome = await read_run(site, run), await outcome_of(site, run)
    if record is None or outcome is None or outcome.state != SUCCEEDED:
        return None
    same = (record.max_tries, record.dag_run_started) == (request.max_tries, request.dag_run_started)
    return outcome if same else None


async def _resume(
    site: Site, earlier: Run, request: JobRequest, fingerprint: str | None, say: Say, metrics: Metrics
) -> Submitted | None:
    """Go on with the earlier generation where ``reuse`` and the fingerprint allow; its runs end first."""
    spec = await read_spec(site, earlier.generation)
    outcome = await outcome_of(site, earlier) if earlier.number else None
    unfinished = outcome is None
    if unfinished:
        await _end_runs(site, earlier, say, metrics)
        outcome = await outcome_of(site, earlier) if earlier.number else None
    reuse = request.policy.reuse
    if reuse == "never" or spec is None:
        return None
    if fingerprint is None or spec.fingerprint != fingerprint:
        say(
            "the function, its arguments, its environment or the items have changed "
            f"(or have no stable fingerprint): generation {earlier.generation.number} is not resumed"
        )
        return None
    if outcome is not None and outcome.state == SUCCEEDED:
        if unfinished:  # its try ended after the last item and before the outcome: it never succeeded
            say(f"all items of run {outcome.run} were done already: its result is taken")
            return Submitted(outcome=outcome)
        if reuse == "always":
            say(f"reuse='always': the result of generation {earlier.generation.number} is handed on")
            return Submitted(outcome=outcome)
        say("the job had succeeded before: it starts afresh (reuse='failed')")
        return None
    if await missing_blobs(site.store, spec.blobs):
        say(f"generation {earlier.generation.number} has lost code from the store: it is not resumed")
        return None
    run = Run(earlier.generation, earlier.number + 1)
    run = await _begin_run(site, run, spec, request, say, previous=earlier.number or None)
    done = outcome.ok if outcome else 0
    say(
        f"resuming job {request.job} as run {run.number}: "
        f"{done:,} of {spec.items.count:,} items are done already"
    )
    return Submitted(run=run)


async def _end_runs(site: Site, last: Run, say: Say, metrics: Metrics) -> None:
    """Cancel every run that has no outcome, see its machines gone, and write its index."""
    for number in range(1, last.number + 1):
        run = Run(last.generation, number)
        if await site.store.exists(run.outcome) or not await site.store.exists(run.run):
            continue
        if not await cancel(site, run, f"a new try of the task takes over from run {number}", say):
            raise SpotBatchError(
                f"machines of run {run.tag} could not be seen gone: nothing new is started beside them. "
                "They end by their own limits; retry the task later"
            )
        await finish(site, run, say, metrics)


async def _begin_run(
    site: Site, run: Run, spec: Spec, request: JobRequest, say: Say, *, previous: int | None
) -> Run:
    # Rewritten by each run: a listing of the catalogue tells which jobs were begun last.
    await site.store.write(catalogue(request.dag_id, request.job), json.dumps(request.identity).encode())
    policy = request.policy
    archives = await store_agent(site, spec.environment, policy.resources, say)
    if archives:
        policy = replace(policy, resources=replace(policy.resources, architectures=tuple(archives)))
    concurrency = policy.concurrency or site.backend.default_concurrency(policy.resources, spec.items.count)
    record = RunRecord(
        run=run.number,
        policy=policy,
        concurrency=concurrency,
        max_tries=request.max_tries,
        dag_run_started=request.dag_run_started,
        previous=previous,
        created=site.wall_clock(),
        archives=archives,
    )
    if not await site.store.create(run.run, record.to_bytes(site.signer(run.generation))):
        if await is_closed(site.store, run):
            raise SpotBatchError(
                f"generation {run.generation.number} of job {run.generation.job} was removed just now: "
                "the next try of the task begins afresh"
            )
        raise SpotBatchError(
            f"another try of this task has just begun run {run.tag}: this one gives way to it"
        )
    return run


# --- items and blobs -----------------------------------------------------------------------------


async def _store_items(
    site: Site, generation: Generation, request: JobRequest
) -> tuple[ItemTable, bytes | None]:
    """Stream the items into parts; their table, and a digest of them all (None: none is stable)."""
    submission = uuid.uuid4().hex[:12]
    packer = _Packer(request, site.signer(generation))
    parts: list[Part] = []
    uploads: set[asyncio.Task[None]] = set()
    try:
        for builder in packer.parts():
            names = (
                generation.item_part(submission, len(parts)),
                generation.item_offsets(submission, len(parts)),
            )
            parts.append(builder.part)
            uploads.add(asyncio.create_task(_upload(site.store, names, builder)))
            if len(uploads) >= UPLOADS:
                done, uploads = await asyncio.wait(uploads, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*uploads)
    except BaseException:
        for task in uploads:
            task.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        raise
    return ItemTable(submission, packer.count, tuple(parts)), packer.digest


async def _upload(store: Store, names: tuple[str, str], builder: PartBuilder) -> None:
    await store.write(names[0], bytes(builder.data))
    await store.write(names[1], builder.packed_offsets)


class _Packer:
    """Encodes items one after another into parts, and digests them on the way."""

    def __init__(self, request: JobRequest, signer: Signer) -> None:
        self._request = request
        self._signer = signer
        self._digest = hashlib.sha256()
        self._stable = True
        self.count = 0

    def parts(self) -> Iterator[PartBuilder]:
        packing, signer, most = self._request.packing, self._signer, self._request.most_items
        builder = PartBuilder(first=0)
        for index, value in enumerate(iterate_items(self._request.items)):
            if most is not None and index >= most:
                raise InvalidInput(self._request.most_items_why or f"more than {most} items")
            kind, data = packing.encode_item(index, value)
            if self._stable:
                self._add_to_digest(packing.fingerprint_item(kind, data, value))
            builder.add(pack(signer, index, kind, data))
            self.count = index + 1
            if builder.full:
                yield builder
                builder = PartBuilder(first=self.count)
        if builder.count:
            yield builder

    def _add_to_digest(self, item: bytes | None) -> None:
        if item is None:
            self._stable = False
            return
        self._digest.update(len(item).to_bytes(4, "little") + item)

    @property
    def digest(self) -> bytes | None:
        return self._digest.digest() if self._stable else None


async def _drop_items(store: Store, generation: Generation, table: ItemTable) -> None:
    """Remove the items of a submission that turned out to be the earlier generation's."""
    names: list[str] = []
    for number in range(len(table.parts)):
        names += [
            generation.item_part(table.submission, number),
            generation.item_offsets(table.submission, number),
        ]
    await store.delete(names)


def _fingerprint(packed: Packed, items: bytes | None) -> str | None:
    if packed.fingerprint is None or items is None:
        return None
    return hashlib.sha256(packed.fingerprint.encode() + items).hexdigest()


def _tell_packed(packed: Packed, say: Say) -> None:
    for note in packed.notes:
        say(note)
    if packed.unstable:
        say(
            f"this job cannot be resumed after a failure, since these have no stable fingerprint: "
            f"{', '.join(packed.unstable)}"
        )
