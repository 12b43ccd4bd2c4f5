"""The loop: look, decide, act. It keeps nothing that a new process could not read again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.control.act import Actor
from airflow_provider_spotbatch.control.carry import carry_index
from airflow_provider_spotbatch.control.decide import decide
from airflow_provider_spotbatch.control.estimate import estimate, price_line
from airflow_provider_spotbatch.control.history import tick_to_bytes
from airflow_provider_spotbatch.control.metrics import SILENT, Metrics, RunMetrics, Tally
from airflow_provider_spotbatch.control.narrate import Narrator
from airflow_provider_spotbatch.control.observe import Observer
from airflow_provider_spotbatch.control.plan import Launch, Plan
from airflow_provider_spotbatch.control.site import Site, boot_for, read_run, read_spec
from airflow_provider_spotbatch.control.snapshot import Snapshot
from airflow_provider_spotbatch.control.store_time import store_ahead
from airflow_provider_spotbatch.control.threads import work_out
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import Outcome
from airflow_provider_spotbatch.job.run_record import RunRecord
from airflow_provider_spotbatch.job.spec import Spec

MEMORY_CLASSES = 8
"""Doublings of memory that are tried at most: 256 times what was asked for."""

HISTORY_SECONDS = 60.0

OFFERS_SECONDS = 3600.0
"""How long offers are gone by: backends keep prices for an hour."""


@dataclass(frozen=True)
class Turn:
    """One turn of the loop. ``over``: nothing is left to drive; ``pause``: seconds to the next;
    ``stuck``: machines that could not be seen gone."""

    over: bool
    pause: float
    stuck: tuple[str, ...] = ()


class Controller:
    """Drives one run. Several may drive the same run, and any may be killed at any point.

    ``random`` gives numbers in [0, 1).
    """

    def __init__(
        self,
        site: Site,
        run: Run,
        say: Callable[[str], None],
        metrics: Metrics = SILENT,
        *,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._site = site
        self._run = run
        self._say = say
        self._collector = metrics
        self._random = random
        self._observer: Observer | None = None
        self._actor: Actor | None = None
        self._metrics: RunMetrics | None = None
        self._narrator = Narrator(say)
        self._history_at: float | None = None
        self._offers_at = 0.0

    @property
    def observer(self) -> Observer:
        assert self._observer is not None, "open() first"
        return self._observer

    @property
    def metrics(self) -> RunMetrics:
        assert self._metrics is not None, "open() first"
        return self._metrics

    async def open(self, *, to_launch: bool = True) -> Observer:
        """Read what is fixed for the run: its specification, its policy, what an earlier run finished.

        ``to_launch``: also ask for the machines to be had, which a run that is over does without."""
        if self._observer is not None:
            return self._observer
        site, run = self._site, self._run
        spec = await read_spec(site, run.generation)
        record = await read_run(site, run)
        if spec is None or record is None:
            raise SpotBatchError(
                f"run {run.tag} is not in the store {site.store.uri}: "
                "was it cleaned up while the task waited?"
            )
        progress = await _progress_of(site, run)
        fleet = site.backend.fleet(run, await boot_for(site, run, spec, record))
        offers = await offers_by_class(site, record) if to_launch else {}
        observer = Observer(
            site,
            run,
            spec,
            record,
            fleet,
            offers,
            self._random,
            await store_ahead(site, run),
            spent_before=await _spent_before(site, run),
            spent_told=_spent_by(progress),
            most_memory_class=max(offers) if offers else _most_memory_class(record.policy, progress),
        )
        if record.previous is not None:
            await carry_index(site, Run(run.generation, record.previous), observer.ledger)
        carried = observer.ledger.counts.ok
        self._metrics = RunMetrics(
            self._collector,
            run.tag,
            _tags(site, spec),
            Tally.of_progress(progress, carried, observer.spent_before),
        )
        self._offers_at = site.clock()
        self._actor = Actor(site, run, fleet, observer, self._say, self._metrics)
        self._observer = observer
        return observer

    async def tick(self) -> Turn:
        """Look, decide, act, once."""
        observer = await self.open()
        began = self._site.clock()
        try:
            turn = await self._turn(observer)
        except Exception:
            self.metrics.tick_failed()
            raise
        self.metrics.ticked(self._site.clock() - began)
        return turn

    def leave(self) -> None:
        """This process drives the run no longer, whether or not it is over."""
        if self._metrics is not None:
            self._metrics.leave()

    async def _turn(self, observer: Observer) -> Turn:
        assert self._actor is not None
        await self._renew_offers(observer)
        seen = await observer.look()
        self.metrics.looked(seen, observer.ledger.causes)
        decided_at = self._site.clock()
        plan = await work_out(_entries(seen), lambda: decide(seen))
        failures = list(observer.failures)
        observer.failures.clear()
        self._narrator.tell(seen, failures)
        self._tell_price(seen, plan)
        carried_out = await self._actor.carry_out(plan, decided_at)
        await self._keep_history(seen, plan)
        if not carried_out:
            return Turn(over=False, pause=seen.tick_seconds)
        if plan.over:
            await self._actor.write_progress()  # whoever finishes counts on from there
        return Turn(plan.over, plan.pause, plan.stuck)

    def _tell_price(self, seen: Snapshot, plan: Plan) -> None:
        """Before the first launch: what the machines will cost."""
        if seen.launches or not any(isinstance(action, Launch) for action in plan.actions):
            return
        left = None if seen.budget_usd is None else max(0.0, seen.budget_usd - seen.spent_usd)
        line = price_line(estimate(seen), left)
        if line:
            self._say(line)

    async def _renew_offers(self, observer: Observer) -> None:
        """Prices move. Where new ones cannot be had, the last ones stand."""
        if self._site.clock() - self._offers_at < OFFERS_SECONDS:
            return
        self._offers_at = self._site.clock()
        try:
            renewed = await offers_by_class(self._site, observer.record)
        except SpotBatchError as error:
            self._say(f"prices could not be renewed, the last ones stand: {error}")
            return
        observer.offers = {**observer.offers, **renewed}

    async def _keep_history(self, seen: Snapshot, plan: Plan) -> None:
        """One object per minute at most, so that an incident can be replayed."""
        if self._history_at is not None and seen.now - self._history_at < HISTORY_SECONDS:
            return
        self._history_at = seen.now
        number = int(self._site.wall_clock() // HISTORY_SECONDS)
        data = await work_out(_entries(seen), lambda: tick_to_bytes(seen, plan))
        await self._site.store.write(self._run.history(number), data)


def _entries(seen: Snapshot) -> int:
    """What a decision goes through, and makes: two chunks a slot at the start, then by the work ahead."""
    return len(seen.open_chunks) + len(seen.machines) + len(seen.due) + seen.concurrency


def _most_memory_class(policy: Policy, progress: dict[str, Any] | None = None) -> int:
    """The largest there may be machines for; of a run that was driven, the largest that its drivers found."""
    most = min(MEMORY_CLASSES, policy.item_retries)
    return most if progress is None else int(progress.get("most_memory_class", most))


async def offers_by_class(site: Site, record: RunRecord) -> dict[int, tuple[Offer, ...]]:
    """The machines to be had for items of the asked memory, twice that, and so on while there are any."""
    policy = record.policy
    offers: dict[int, tuple[Offer, ...]] = {}
    for memory_class in range(_most_memory_class(policy) + 1):
        try:
            found = await site.backend.offers(
                policy.resources.in_class(memory_class), policy, record.concurrency
            )
        except InvalidInput:
            if memory_class == 0:
                raise
            break
        offers[memory_class] = tuple(found)
    return offers


async def _spent_before(site: Site, run: Run) -> float:
    """Dollars that earlier runs of the generation cost."""
    spent = 0.0
    for number in range(1, run.number):
        earlier = Run(run.generation, number)
        data = await site.store.read(earlier.outcome)
        if data is not None:  # each run's figure includes those before it
            outcome = Outcome.from_bytes(site.signer(run.generation), number, data)
            spent = max(spent, outcome.cost_usd or 0.0)
        spent = max(spent, _spent_by(await _progress_of(site, earlier)))
    return spent


async def _progress_of(site: Site, run: Run) -> dict[str, Any] | None:
    """The last account that a controller of the run gave, None if there is none."""
    data = await site.store.read(run.progress)
    return json.loads(data) if data is not None else None


def _spent_by(progress: dict[str, Any] | None) -> float:
    """Dollars up to the last account of a run, as its controllers reckoned them."""
    return float(progress["spent_usd"]) if progress is not None else 0.0


def _tags(site: Site, spec: Spec) -> dict[str, str]:
    """What tells the run's metrics from others': few values each, so no ids of runs or machines."""
    return {
        **{name: str(spec.identity[name]) for name in ("dag_id", "task_id") if name in spec.identity},
        "conn_id": site.settings.conn_id,
        "backend": site.backend.name,
    }
