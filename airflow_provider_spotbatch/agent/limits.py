"""Limits of one item: its time and its memory. Looked at by sampling; a breach ends that worker only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from airflow_provider_spotbatch.agent import processes
from airflow_provider_spotbatch.agent.slots import Slot
from airflow_provider_spotbatch.agent.worker_process import RunningNow, WorkerProcess
from airflow_provider_spotbatch.job.outcome import MEMORY, TIMEOUT

SAMPLE_SECONDS = 0.2
"""Pause between two looks: a process that grows by 2 GB/s passes its limit by 400 MB; a look costs
some 50 µs for each process of a worker."""


async def enforce(slots: Sequence[Slot], item_timeout: float | None, memory_mb: float) -> None:
    """Watch the slots' items until cancelled. ``item_timeout`` in seconds, ``memory_mb`` in MB."""
    while True:
        await asyncio.sleep(min(SAMPLE_SECONDS, item_timeout or SAMPLE_SECONDS))
        busy = []
        for slot in slots:
            worker = slot.worker
            now = worker.running if worker is not None and worker.alive else None
            if worker is None or now is None:
                continue
            if item_timeout is not None and now.seconds > item_timeout:
                worker.kill(now.item, TIMEOUT, f"ran longer than item_timeout={item_timeout:g} s")
            else:
                busy.append((slot, worker, now))
        if busy:
            samples = await asyncio.to_thread(_sample, [worker for _, worker, _ in busy])
            for (slot, worker, now), used in zip(busy, samples, strict=True):
                _check_memory(slot, worker, now, used, memory_mb)


def _sample(workers: Sequence[WorkerProcess]) -> list[float]:
    """Memory of each worker with all below it, in MB; each remembers who they are."""
    used = []
    for worker in workers:
        pids = processes.descendants(worker.pid)
        for pid in pids:
            if pid not in worker.seen and (process := processes.look_at(pid)) is not None:
                worker.seen[pid] = process
        used.append(processes.resident_mb(pids))
    return used


def _check_memory(slot: Slot, worker: WorkerProcess, now: RunningNow, used: float, limit: float) -> None:
    still = worker.running
    if still is None or still.item != now.item:
        return  # it has ended meanwhile: the sample is nobody's
    slot.peaks[now.item] = round(max(slot.peaks.get(now.item, 0.0), used), 1)
    if used > limit:
        worker.kill(
            now.item,
            MEMORY,
            f"used more than its limit of {limit:,.0f} MB of memory (item_resources.memory_gb)\n"
            f"It had {used:,.0f} MB, with what its processes share counted for each.",
        )
