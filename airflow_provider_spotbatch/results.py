"""What a task returns: a lazy sequence over the store, small enough for an XCom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.outcome import OK
from airflow_provider_spotbatch.result_reader import ResultReader, check_not_forked
from airflow_provider_spotbatch.xcom import allow_from_xcom

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.settings import Settings
    from airflow_provider_spotbatch.job.index import Place
    from airflow_provider_spotbatch.job.run_outcome import Outcome


@dataclass(frozen=True)
class ItemFailure:
    """An item that failed for good; stands in its place in a :class:`MapResult`.

    ``item``: the input; ``cause``: error, timeout, memory, crash, interrupted or lost;
    ``traceback``: text, empty where there was none; ``attempts``: how often it was run.
    """

    index: int
    item: Any
    cause: str
    message: str
    traceback: str
    attempts: int


@dataclass(frozen=True, eq=False, repr=False)
class MapResult(Sequence[Any]):
    """The results of a map, in item order, read from the store when they are asked for.

    ``result[i]`` takes one or two ranged reads; iterating streams in constant memory; a slice is as
    lazy as the whole. A failed item's value is its :class:`ItemFailure`. ``items`` = ``ok`` +
    ``failed``; ``causes`` counts the failed by cause; ``duration`` in seconds; ``cost_usd`` is None
    where nothing is paid.
    """

    __version__: ClassVar[int] = 1

    conn_id: str
    job: str
    generation: int
    run: int
    uri: str
    items: int
    ok: int
    failed: int
    causes: dict[str, int]
    duration: float
    cost_usd: float | None

    @classmethod
    def of(cls, outcome: Outcome, conn_id: str, store_uri: str) -> MapResult:
        """The result of a run that succeeded."""
        generation = outcome.of_run.generation
        return cls(
            conn_id=conn_id,
            job=outcome.job,
            generation=outcome.generation,
            run=outcome.run,
            uri=f"{store_uri.rstrip('/')}/{generation.out}",
            items=outcome.items,
            ok=outcome.ok,
            failed=outcome.failed,
            causes=dict(outcome.causes),
            duration=round(outcome.ended - outcome.started, 3),
            cost_usd=outcome.cost_usd,
        )

    def serialize(self) -> dict[str, Any]:
        """For Airflow's XComs: below 2 KB however many items there are."""
        return {
            "conn_id": self.conn_id,
            "job": self.job,
            "generation": self.generation,
            "run": self.run,
            "uri": self.uri,
            "items": self.items,
            "ok": self.ok,
            "failed": self.failed,
            "causes": self.causes,
            "duration": self.duration,
            "cost_usd": self.cost_usd,
        }

    @staticmethod
    def deserialize(data: dict[str, Any], version: int) -> MapResult:
        """From an XCom. Reads nothing."""
        if version > MapResult.__version__:
            raise TypeError(
                f"this MapResult was written by a newer release (version {version}; this one reads "
                f"{MapResult.__version__}): upgrade airflow-provider-spotbatch"
            )
        return MapResult(**data)

    def __reduce__(self) -> tuple[Any, ...]:
        return MapResult.deserialize, (self.serialize(), self.__version__)

    def __len__(self) -> int:
        return self.items

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return _Slice(self, range(self.items)[index])
        try:
            item = range(self.items)[index]
        except IndexError:
            raise IndexError(f"result {index} of {self.items}") from None
        return self._value(item, in_order=False)

    def __iter__(self) -> Iterator[Any]:
        return self._values(range(self.items))

    def __repr__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"MapResult({self.items} items{failed}, {self.uri})"

    @property
    def failures(self) -> Iterable[ItemFailure]:
        """The failed items in item order, streamed."""
        return _Failures(self)

    def to_list(self) -> list[Any]:
        """All values in memory at once."""
        return list(self)

    def _values(self, items: range) -> Iterator[Any]:
        for item in items:
            yield self._value(item, in_order=True)

    def _value(self, item: int, *, in_order: bool) -> Any:
        check_not_forked()
        place = self._reader.place(item)
        if place.cause == OK:
            return self._reader.value(place, in_order=in_order)
        return self._failure(item, place, in_order=in_order)

    def _failure(self, item: int, place: Place, *, in_order: bool) -> ItemFailure:
        failure = self._reader.failure(place, in_order=in_order)
        return ItemFailure(
            index=item,
            item=self._reader.item(item),
            cause=place.cause or "",
            message=f"{failure.type}: {failure.message}" if failure.type else failure.message,
            traceback=failure.traceback,
            attempts=place.attempts,
        )

    @cached_property
    def _reader(self) -> ResultReader:
        return ResultReader(Run(Generation(self.job, self.generation), self.run), self._settings)

    def _settings(self) -> Settings:
        from airflow_provider_spotbatch.hooks import SpotBatchHook

        return SpotBatchHook(self.conn_id).get_settings()


class _Failures(Iterable[ItemFailure]):
    """The failures of a result; can be iterated more than once."""

    def __init__(self, result: MapResult) -> None:
        self._result = result

    def __iter__(self) -> Iterator[ItemFailure]:
        left = self._result.failed
        for item in range(self._result.items):
            if not left:
                return
            check_not_forked()
            place = self._result._reader.place(item)
            if place.cause != OK:
                left -= 1
                yield self._result._failure(item, place, in_order=True)

    def __repr__(self) -> str:
        return f"{self._result.failed} failures of {self._result!r}"


class _Slice(Sequence[Any]):
    """Part of a result, as lazy as the whole."""

    def __init__(self, result: MapResult, items: range) -> None:
        self._result = result
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return _Slice(self._result, self._items[index])
        return self._result[self._items[index]]

    def __iter__(self) -> Iterator[Any]:
        return self._result._values(self._items)

    def __repr__(self) -> str:
        return f"{self._items!r} of {self._result!r}"


allow_from_xcom(MapResult, ItemFailure)
