from __future__ import annotations

import sys
import types

import pytest

from airflow_provider_spotbatch.job.context import WORKER_MODULE, item_context


@pytest.mark.parametrize("name", ["index", "attempt", "scratch", "cache_dir", "interrupted", "checkpoint"])
def test_reading_it_outside_an_item_says_when_it_exists(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"item_context\.{name} was read outside an item"):
        getattr(item_context, name)


def test_it_shows_the_item_that_the_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = types.ModuleType(WORKER_MODULE)
    worker.current = types.SimpleNamespace(index=5, attempt=2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, WORKER_MODULE, worker)

    assert (item_context.index, item_context.attempt) == (5, 2)


def test_it_is_gone_between_items(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = types.ModuleType(WORKER_MODULE)
    worker.current = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, WORKER_MODULE, worker)

    with pytest.raises(RuntimeError, match="outside an item"):
        _ = item_context.index
