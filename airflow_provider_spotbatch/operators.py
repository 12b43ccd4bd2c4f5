"""``SpotMapOperator``: one task that stands for a job of many items."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    BaseOperator,
    XComArg,
    conf,
)

from airflow_provider_spotbatch.arguments import (
    has_template,
    is_item_source,
    known_at_parse_time,
    policy_arguments,
    policy_from,
)
from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.hooks import DEFAULT_CONN_ID, SpotBatchHook
from airflow_provider_spotbatch.items import Items
from airflow_provider_spotbatch.job.errors import InvalidInput, SpotBatchError, is_final
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.run_outcome import SUCCEEDED
from airflow_provider_spotbatch.job.spec import CALL_ITEM
from airflow_provider_spotbatch.metrics import airflow_metrics
from airflow_provider_spotbatch.results import MapResult
from airflow_provider_spotbatch.signature import check_parameters, context_values, item_parameter
from airflow_provider_spotbatch.triggers import ELSEWHERE, ERROR, OWNER_KEY, SpotMapTrigger
from airflow_provider_spotbatch.worker import Worker

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_spotbatch.control.submit import JobRequest
    from airflow_provider_spotbatch.environment.packing import Packing
    from airflow_provider_spotbatch.job.resources import Resources
    from airflow_provider_spotbatch.job.run_outcome import Outcome

FAIL = "__fail__"
"""The method that Airflow resumes a task with whose trigger timed out or failed."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Uncalled:
    """A generator function as item source: Airflow calls template fields that can be called.

    Its text has no address in it: Airflow would take each parse for a new version of the DAG.
    """

    function: Callable[..., Any]

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)


class SpotMapOperator(BaseOperator):
    """Run a function or a command on each of many items, on machines of a connection.

    Returns a :class:`~airflow_provider_spotbatch.results.MapResult`. Templated: items, op_kwargs,
    environment, concurrency, purchase, budget_usd, max_runtime, conn_id.

    :param python_callable: called with one item first and ``op_kwargs``; or its dotted path, imported
        on the machine. Parameters named like a context value (ds, ts, run_id, logical_date,
        data_interval_start, data_interval_end, params …) are filled if they are not passed.
    :param command: instead of a callable: a program and its arguments, in which ``{item}`` stands for
        the item. The exit code decides; the last line of its output is the result, JSON if it parses.
    :param items: a list or other iterable, an XComArg, a MapResult, ``Items`` or a generator function.
        Literal strings are rendered only where they contain ``{{`` or ``{%``; values from XCom never.
    :param op_kwargs: keyword arguments shared by all items.
    :param item_retries: how often an item that failed is run again.
    :param item_timeout: seconds (or timedelta) that one run of an item may take.
    :param item_resources: what ONE item needs; default 1 CPU and 2 GB.
    :param concurrency: most items in flight at once, over all machines.
    :param environment: what must be on the machine besides the function.
    :param on_item_error: ``fail`` (run all, then fail if more than ``max_failures`` failed), ``stop``
        (start no more once that is so) or ``collect`` (failed items are values).
    :param max_failures: a count (int) or a fraction below 1 (float); default 0.
    :param early_stop: stop when the first so many outcomes are all the same error; None: never.
    :param reuse: ``failed``, ``always`` or ``never``: what a retry or a clear takes from earlier runs.
    :param purchase: ``spot``, ``on-demand`` or ``spot-then-on-demand``.
    :param budget_usd: most that the machines may cost; default the connection's.
    :param max_runtime: seconds (or timedelta) that one try may take; default 24 h.
    :param conn_id: a connection of type ``spotbatch``.
    :param deferrable: wait in the triggerer; False: in the worker.
    :param poll_interval: longest pause between two looks at the job, in seconds (or timedelta).
    """

    template_fields: Sequence[str] = (
        "items",
        "op_kwargs",
        "environment",
        "concurrency",
        "purchase",
        "budget_usd",
        "max_runtime",
        "conn_id",
    )
    template_fields_renderers = {"items": "py", "op_kwargs": "py"}  # noqa: RUF012 - Airflow's own form
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    ui_color = "#e8f4ea"

    call = CALL_ITEM
    """``item``: the function takes one item; ``spread``: the one item holds all arguments of the call."""

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any] | str | None = None,
        command: Sequence[str] | None = None,
        items: Any = None,
        op_kwargs: Mapping[str, Any] | XComArg | None = None,
        item_retries: int = Policy.item_retries,
        item_timeout: float | timedelta | None = Policy.item_timeout,
        item_resources: Resources | None = None,
        concurrency: int | str | None = Policy.concurrency,
        environment: Environment | None = None,
        on_item_error: str = Policy.on_item_error,
        max_failures: int | float | None = Policy.max_failures,
        early_stop: int | None = Policy.early_stop,
        reuse: str = Policy.reuse,
        purchase: str = Policy.purchase,
        budget_usd: float | str | None = Policy.budget_usd,
        max_runtime: float | str | timedelta = Policy.max_runtime,
        conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = True,
        poll_interval: float | timedelta = Policy.poll_interval,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.command = command
        self.items = _Uncalled(items) if callable(items) else items
        self.op_kwargs = op_kwargs or {}
        self.item_retries = item_retries
        self.item_timeout = item_timeout
        self.item_resources = item_resources
        self.concurrency = concurrency
        self.environment = environment
        self.on_item_error = on_item_error
        self.max_failures = max_failures
        self.early_stop = early_stop
        self.reuse = reuse
        self.purchase = purchase
        self.budget_usd = budget_usd
        self.max_runtime = max_runtime
        self.conn_id = conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._worker: Worker | None = None
        # A mapped one is made when it runs: then execute() checks it, since Airflow fails badly here.
        if not getattr(self, "_BaseOperator__from_mapped", False):
            self._check()

    def execute(self, context: Context) -> Any:
        """Submit, start the first machines, then wait for the end: deferred, or here."""
        with _without_retries():
            policy = self._check(rendered=True)
        settings = SpotBatchHook(self.conn_id).settings_for(policy, self._warn)
        if policy.budget_usd is None:
            policy = dataclasses.replace(policy, budget_usd=settings.budget_usd)
        worker = self._worker = Worker(settings, self._say, metrics=airflow_metrics())
        with _without_retries():
            submitted = worker.submit(self._request(context, policy))
        if submitted.outcome is not None:
            return self._result(submitted.outcome)
        run = submitted.run
        assert run is not None, "what is not finished has a run"
        self._push_owner(context, run)
        with _ending_what_cannot_go_on(worker):
            over = worker.first_tick()
        if not over and self._defers():
            self._wait_in_triggerer(run, worker.continues_elsewhere())
        if not over:
            self._drive(worker)
        return self._result(worker.finish())

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """End the run first where its trigger timed out or failed: nothing else would."""
        if next_method == FAIL:
            owned = self._owned(context)
            if owned is not None:
                error = (next_kwargs or {}).get("error", "the trigger failed")
                self._resumed(owned).end(f"{error} while the task was deferred")
        return super().resume_execution(next_method, next_kwargs, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger's event.

        An event of an earlier try's run is no news of this one's: Airflow finds the tasks of an event
        by its trigger's number, and a metadata database may give a number twice (SQLite does).
        """
        own = self._owned(context)
        if own is not None and _run_of(own) != _run_of(event):
            self._say(f"an event of run {_run_of(event).tag} came late: waiting on for {_run_of(own).tag}")
            self._wait_in_triggerer(_run_of(own), self._resumed(own).continues_elsewhere())
        worker = self._resumed(event)
        if event["state"] == ERROR:
            worker.end(f"the trigger gave up: {event['message']}")
            raise (AirflowException if event.get("retryable", True) else AirflowFailException)(
                f"{event['message']}. Its machines were ended; finished items are kept, a retry runs the rest"
            )
        if event["state"] == ELSEWHERE:
            self._say("the triggerer runs on another machine or in another container: going on in the worker")
            self._drive(worker)
        return self._result(worker.finish())

    def on_kill(self) -> None:
        """End the run's machines: the task was killed, or ran out of time, in the worker."""
        if self._worker is not None:
            self._worker.kill()

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Any = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """As Airflow does, but strings without a template stay as they are, and values render by copy."""
        if isinstance(content, str) and not has_template(content):
            return content
        if isinstance(content, (Environment, Items)):
            return content.render(lambda value: self.render_template(value, context, jinja_env, seen_oids))
        return super().render_template(content, context, jinja_env, seen_oids)

    def _check(self, *, rendered: bool = False) -> Policy:
        """Refuse what is wrong as far as it is known; the policy, without templates yet to be rendered."""
        self._check_work()
        self._check_call()
        known = policy_arguments(self.__dict__)
        return policy_from(
            {name: value for name, value in known.items() if rendered or known_at_parse_time(value)}
        )

    def _check_work(self) -> None:
        """Refuse work that is no work."""
        if (self.python_callable is None) == (self.command is None):
            raise InvalidInput(f"task {self.task_id!r} needs either python_callable or command")
        if self.command is not None:
            words = isinstance(self.command, (list, tuple)) and self.command
            if not words or not all(isinstance(word, str) for word in self.command):
                raise InvalidInput(f"command must be a list of strings, not {self.command!r}")
            if self.op_kwargs:
                raise InvalidInput("op_kwargs means nothing to a command: write what it needs into command")
        elif isinstance(self.python_callable, str):
            if not re.fullmatch(r"\w+([.:]\w+)+", self.python_callable):
                raise InvalidInput(
                    f"python_callable={self.python_callable!r} is no dotted path such as 'package.function'"
                )
        elif not callable(self.python_callable):
            raise InvalidInput(
                f"python_callable must be a function or a dotted path, not {self.python_callable!r}"
            )

    def _check_call(self) -> None:
        """Refuse items that are no items and a function that cannot be called so."""
        if self.items is None:
            raise InvalidInput(f"task {self.task_id!r} needs items")
        source = self._item_source
        if known_at_parse_time(source) and not is_item_source(source):
            raise InvalidInput(f"items must be a list or another iterable, not {source!r}")
        if callable(self.python_callable):
            first = item_parameter(self.python_callable)
            if not isinstance(self.op_kwargs, XComArg):
                if first in self.op_kwargs:
                    raise InvalidInput(f"op_kwargs holds {first!r}, which takes the item")
                check_parameters(self.python_callable, [*([first] if first else []), *self.op_kwargs])

    def _call(self, context: Context) -> tuple[Any, dict[str, Any]]:
        """The items, and the keyword arguments that all share."""
        if not isinstance(self.op_kwargs, Mapping):
            raise InvalidInput(f"op_kwargs must be a dict, not {self.op_kwargs!r}")
        shared = dict(self.op_kwargs)
        if callable(self.python_callable):
            first = item_parameter(self.python_callable)
            given = [*([first] if first else []), *shared]
            shared.update(context_values(self.python_callable, given, context))
        return self._item_source, shared

    @property
    def _item_source(self) -> Any:
        return self.items.function if isinstance(self.items, _Uncalled) else self.items

    def _request(self, context: Context, policy: Policy) -> JobRequest:
        from airflow_provider_spotbatch.control.submit import JobRequest

        items, shared = self._call(context)
        most = self._most_items(context)
        ti = context["ti"]
        return JobRequest(
            deployment=deployment(),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            max_tries=ti.max_tries,
            dag_run_started=str(context["dag_run"].start_date),
            packing=self._packing(context, shared),
            items=_here(items),
            policy=policy,
            most_items=most,
            most_items_why=(
                f"a task is mapped over the result of {self.task_id!r}, and Airflow maps over at most "
                f"{most} values ([core] max_map_length): pass fewer items, or do not map over the result"
            ),
        )

    def _packing(self, context: Context, shared: dict[str, Any]) -> Packing:
        from airflow_provider_spotbatch.environment.packing import Packing

        work = self.python_callable
        return Packing(
            function=None if isinstance(work, str) else work,
            dotted=work if isinstance(work, str) else None,
            command=self.command,
            kwargs=shared,
            call=self.call,
            environment=self.environment or Environment(),
            bundle=_bundle(context),
            name=self._work_name,
        )

    @property
    def _work_name(self) -> str:
        """What the log calls the work."""
        if self.command is not None:
            return os.path.basename(self.command[0])
        return getattr(self.python_callable, "__name__", None) or str(self.python_callable)

    def _most_items(self, context: Context) -> int | None:
        """Airflow refuses a longer result to a mapped downstream, after the work is done: so ask now."""
        if context["ti"].is_mapped or next(iter(self.iter_mapped_dependants()), None) is None:
            return None
        return int(conf.getint("core", "max_map_length", fallback=1024))

    def _defers(self) -> bool:
        return self.deferrable and conf.getboolean("spotbatch", "deferrable", fallback=True)

    def _wait_in_triggerer(self, run: Run, elsewhere: str | None) -> None:
        """Does not return: Airflow resumes the task with :meth:`execute_complete`."""
        self.defer(
            trigger=SpotMapTrigger(
                conn_id=self.conn_id,
                job=run.generation.job,
                generation=run.generation.number,
                run=run.number,
                elsewhere=elsewhere,
            ),
            method_name="execute_complete",
            timeout=self.execution_timeout,
        )

    def _drive(self, worker: Worker) -> None:
        with _ending_what_cannot_go_on(worker):
            worker.drive()

    def _push_owner(self, context: Context, run: Run) -> None:
        """Tell triggers, old and new, which task instance drives which run."""
        ti = context["ti"]
        generation = run.generation
        ti.xcom_push(
            key=OWNER_KEY,
            value={
                "owner": str(ti.id),
                "job": generation.job,
                "generation": generation.number,
                "run": run.number,
            },
        )

    def _owned(self, context: Context) -> Mapping[str, Any] | None:
        """Which run this try drives, as it told before it was deferred."""
        ti = context["ti"]
        owned: Mapping[str, Any] | None = ti.xcom_pull(
            key=OWNER_KEY, task_ids=self.task_id, map_indexes=-1 if ti.map_index is None else ti.map_index
        )
        return owned

    def _resumed(self, ids: Mapping[str, Any]) -> Worker:
        """The worker's hold on the run that an event or XCom names."""
        settings = SpotBatchHook(self.conn_id).get_settings()
        self._worker = Worker(settings, self._say, _run_of(ids), airflow_metrics())
        return self._worker

    def _result(self, outcome: Outcome) -> Any:
        if outcome.state == SUCCEEDED:
            assert self._worker is not None
            return self._value(MapResult.of(outcome, self.conn_id, self._worker.store_uri))
        raise (AirflowException if outcome.retryable else AirflowFailException)(outcome.message)

    def _value(self, result: MapResult) -> Any:
        """What the task returns."""
        return result

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    def _warn(self, line: str) -> None:
        self.log.warning("%s", line)


def _run_of(ids: Mapping[str, Any]) -> Run:
    """The run that an event or XCom names."""
    return Run(Generation(ids["job"], ids["generation"]), ids["run"])


def deployment() -> str:
    """The name of this Airflow deployment in job ids."""
    named = conf.get("spotbatch", "deployment", fallback="")
    base_url = conf.get("api", "base_url", fallback="") or ""
    return named or urlsplit(base_url).hostname or "localhost"


def _bundle(context: Context) -> str | None:
    """The folder of the DAG bundle: modules in it travel with the function."""
    bundle = getattr(context["ti"], "bundle_instance", None)
    if bundle is not None and getattr(bundle, "path", None):
        return str(bundle.path)
    return os.path.dirname(context["dag"].fileloc) or None


def _here(items: Any) -> Any:
    """Airflow's own lazy sequences as lists: they ask the supervisor, from this thread only."""
    return list(items) if type(items).__module__.startswith("airflow.") else items


@contextmanager
def _without_retries() -> Iterator[None]:
    """Where running the same again cures nothing, the task fails for good."""
    try:
        yield
    except SpotBatchError as error:
        if not is_final(error):
            raise
        raise AirflowFailException(str(error)) from error


@contextmanager
def _ending_what_cannot_go_on(worker: Worker) -> Iterator[None]:
    """The same for a run that has begun: no retry comes that would end what it started."""
    with _without_retries():
        try:
            yield
        except SpotBatchError as error:
            if is_final(error):
                worker.end(str(error))
            raise
