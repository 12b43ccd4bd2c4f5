"""The task's log: how far the job is, which items failed and why, in words a person can use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from airflow_provider_spotbatch.control.advice import advise, describe_use
from airflow_provider_spotbatch.control.observe import TOLD_FAILURES, ToldFailure
from airflow_provider_spotbatch.control.snapshot import Counts, Machine, Snapshot
from airflow_provider_spotbatch.control.wording import duration, machines, rate_text, some
from airflow_provider_spotbatch.job.launches import LaunchOutcome
from airflow_provider_spotbatch.job.outcome import INTERRUPTED
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.report import RUNNING
from airflow_provider_spotbatch.job.use import Use

FIRST_PAUSE = 2.0
LONGEST_PAUSE = 60.0
"""Progress lines come after 2 s, then ever more rarely, up to one a minute."""

OUTPUT_LINES = 10


class Narrator:
    """Tells one run. ``say`` takes lines; what was told is not told again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._next = 0.0
        self._pause = FIRST_PAUSE
        self._last = ""
        self._told = 0
        self._groups: Counter[str] = Counter()
        self._groups_told: Counter[str] = Counter()
        self._machines: dict[str, str] = {}
        self._first: tuple[float, int] | None = None

    def tell(self, seen: Snapshot, failures: list[ToldFailure]) -> None:
        """Say what is new since the last time."""
        self._tell_machines(seen)
        for failure in failures:
            if failure.cause == INTERRUPTED:
                continue  # it was put off, and has not failed
            self._groups[failure.label] += 1
            if self._told < TOLD_FAILURES:
                self._told += 1
                self._groups_told[failure.label] += 1
                self._say(_in_full(failure, seen.policy.item_retries))
        if seen.now >= self._next or seen.counts.open == 0:
            self._progress(seen)

    def _progress(self, seen: Snapshot) -> None:
        line = progress_line(seen, self._measure(seen))
        if line == self._last:
            return
        self._last = line
        self._next = seen.now + self._pause
        self._pause = min(LONGEST_PAUSE, self._pause * 1.5)
        self._say(line)
        for label, count in self._groups.most_common(10):
            more = count - self._groups_told[label]
            if more:
                self._say(f"  {some(more, 'more failed attempt')}: {label}")
                self._groups_told[label] = count

    def _measure(self, seen: Snapshot) -> float | None:
        """Items that ended per second since the first were seen to end; None while that says little."""
        done = seen.counts.ok + seen.counts.failed
        if self._first is None:
            if seen.pace.items:
                self._first = seen.now, done
            return None
        since, before = self._first
        if seen.now - since < FIRST_PAUSE or done == before:
            return None
        return (done - before) / (seen.now - since)

    def _tell_machines(self, seen: Snapshot) -> None:
        """A line for all machines of which there is the same to tell."""
        at_work: dict[int, list[str]] = {}
        ended: dict[str, list[str]] = {}
        for machine in seen.machines:
            state = "ended" if machine.ended else "at work" if machine.booted else "booting"
            if self._machines.get(machine.id) == state:
                continue
            self._machines[machine.id] = state
            if state == "at work":
                at_work.setdefault(machine.slots, []).append(machine.id)
            elif state == "ended":
                why = machine.reason or ("interrupted" if machine.interrupted else "no reason known")
                ended.setdefault(why, []).append(machine.id)
        for slots, ids in at_work.items():
            are, each = ("is", "") if len(ids) == 1 else ("are", " each")
            self._say(f"{machines(ids)} {are} at work, {some(slots, 'slot')}{each}")
        for why, ids in ended.items():
            self._say(f"{machines(ids)} {'has' if len(ids) == 1 else 'have'} ended: {why}")


def progress_line(seen: Snapshot, rate: float | None = None) -> str:
    """Items by state, rate (items per second), time left, machines, and what is awaited."""
    counts = seen.counts
    running = sum(min(len(m.held), m.slots) for m in seen.machines if not m.ended)
    running = min(running, counts.sent)
    waiting = counts.open - running
    done = f"{counts.ok + counts.failed:,} of {counts.total:,} items done ({counts.failed:,} failed)"
    parts = [f"{done}, {running:,} running, {waiting:,} waiting"]
    if rate and counts.open:
        parts.append(f"about {rate_text(rate)}, {duration(counts.open / rate)} left")
    alive = [machine for machine in seen.machines if not machine.ended]
    parts.append(f"{some(len(alive), 'machine')}, {some(sum(machine.slots for machine in alive), 'slot')}")
    if seen.spent_usd > 0:
        parts.append(f"${seen.spent_usd:.4f} so far")
    last_launch = seen.launches[-1].outcome if seen.launches else None
    waits = awaited(counts, seen.machines, last_launch, seen.next_due)
    if waits:
        parts.append(waits)
    return " · ".join(parts)


def use_lines(use: Use, policy: Policy) -> list[str]:
    """What items used and what to ask for; empty where nothing is known."""
    figures = describe_use(use, policy)
    advice = [f"  advice: {advice.text}" for advice in advise(use, policy)]
    return [
        *(f"  {line}" if place else f"what items used: {line}" for place, line in enumerate(figures)),
        *advice,
    ]


def awaited(
    counts: Counts, machines: Sequence[Machine], last_launch: LaunchOutcome | None, next_due: float | None
) -> str:
    """What keeps the open items from running, and what would cure it; "" where nothing does.

    ``next_due``: seconds to the next retry.
    """
    if not counts.open:
        return ""
    booting = sum(1 for machine in machines if not machine.ended and not machine.booted)
    if booting:
        return f"waiting for {some(booting, 'machine')} to boot"
    for machine in machines:
        if not machine.ended and machine.reported == RUNNING and machine.reason:
            return f"machine {machine.id} waits: {machine.reason}"
    if last_launch is not None and last_launch.refusals and not last_launch.instances:
        refusal = last_launch.refusals[-1]
        return f"waiting for machines: {refusal.message} {refusal.remedy}".rstrip()
    if next_due is not None and counts.retrying == counts.open:
        return f"waiting {max(1, round(next_due))} s before failed items run again"
    if not any(m.held for m in machines if not m.ended) and any(m.held for m in machines if m.ended):
        return "waiting for the queue to give back what lost machines had in hand"
    return ""


def _in_full(told: ToldFailure, item_retries: int) -> str:
    head = (
        f"item {told.item} failed ({told.cause}, attempt {told.attempt} of {item_retries + 1}): {told.label}"
    )
    if told.failure is None:
        return head
    lines = [head]
    if told.failure.traceback:
        lines.append(told.failure.traceback.rstrip())
    elif not told.label.endswith(told.failure.message):
        lines.append(told.failure.message)
    tail = told.failure.output_tail.splitlines()[-OUTPUT_LINES:]
    if tail:
        lines.append("last lines of its output:")
        lines += [f"  | {line}" for line in tail]
    return "\n".join(lines)
