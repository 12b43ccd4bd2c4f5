from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.control.retention import (
    DAY,
    StoredGeneration,
    StoredJob,
    StoredRun,
    may_go,
)

WEEK = 7 * DAY
HOUR = 3600.0
NOW = 1000 * DAY


def job(*runs: StoredRun, newest: float, specified: bool = True) -> StoredJob:
    return StoredJob("job", newest, (StoredGeneration(1, specified, runs),))


def ended(days_ago: float, number: int = 1) -> StoredRun:
    return StoredRun(number, NOW - (days_ago + 1) * DAY, ended=NOW - days_ago * DAY)


def begun(days_ago: float, max_runtime: float = DAY, number: int = 1) -> StoredRun:
    return StoredRun(number, NOW - days_ago * DAY, max_runtime=max_runtime)


def closed(days_ago: float, number: int = 2) -> StoredRun:
    return StoredRun(number, NOW - days_ago * DAY, closed=True)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (job(ended(8), newest=NOW - 8 * DAY), True),
        (job(ended(6), newest=NOW - 6 * DAY), False),
        (job(ended(20), ended(6, 2), newest=NOW - 6 * DAY), False),
        # a run that ended long ago, but items of the next generation are being stored
        (job(ended(20), newest=NOW - HOUR), False),
        # no outcome: it may go on until its max_runtime, and a day of grace
        (job(begun(8.9), newest=NOW - 8.9 * DAY), False),
        (job(begun(9.1), newest=NOW - 9.1 * DAY), True),
        (job(begun(30, max_runtime=60 * DAY), newest=NOW - 30 * DAY), False),
        # its record cannot be read: nothing is known of it
        (job(begun(900, max_runtime=math.inf), newest=NOW - 900 * DAY), False),
        # specified, but its submission died before the run began
        (job(newest=NOW - 6 * DAY), False),
        (job(newest=NOW - 8 * DAY), True),
    ],
)
def test_a_job_goes_once_all_of_it_was_over_for_a_week(stored: StoredJob, expected: bool) -> None:
    assert may_go(stored, NOW, WEEK) == expected


@pytest.mark.parametrize("specified", [True, False])
def test_a_removal_that_was_broken_off_is_ended_whatever_its_age(specified: bool) -> None:
    assert may_go(job(ended(8), closed(0), newest=NOW, specified=specified), NOW, WEEK)


def test_items_that_nobody_named_yet_are_left_to_the_sweep() -> None:
    half_submitted = StoredJob("job", NOW - 900 * DAY, (StoredGeneration(1, specified=False),))
    assert not may_go(half_submitted, NOW, WEEK)


def test_of_a_job_without_generations_the_owner_goes_too() -> None:
    assert not may_go(StoredJob("job", NOW), NOW + WEEK - HOUR, WEEK)
    assert may_go(StoredJob("job", NOW), NOW + WEEK, WEEK)
    assert not may_go(StoredJob("job", NOW), NOW + HOUR, HOUR), "its submission may be packing"


# --- whatever was listed ------------------------------------------------------------------------------

times = st.floats(0, NOW - 200 * DAY) | st.floats(0, NOW)


@st.composite
def runs(draw: st.DrawFn, number: int) -> StoredRun:
    began = draw(times)
    return StoredRun(
        number,
        began,
        ended=draw(st.floats(began, NOW) | st.none()),
        max_runtime=draw(st.floats(1.0, 40 * DAY) | st.just(math.inf)),
    )


@st.composite
def generations(draw: st.DrawFn, number: int) -> StoredGeneration:
    own = [draw(runs(each + 1)) for each in range(draw(st.integers(0, 3)))]
    if own and draw(st.booleans()):
        own[-1] = replace(own[-1], closed=True, ended=None)
    return StoredGeneration(number, draw(st.booleans()), tuple(own))


@st.composite
def jobs(draw: st.DrawFn) -> StoredJob:
    own = tuple(draw(generations(number + 1)) for number in range(draw(st.integers(0, 3))))
    written = [moment for each in own for run in each.runs for moment in (run.began, run.ended or 0.0)]
    return StoredJob("job", max([draw(times), *written]), own)


keeps = st.floats(1.0, 100 * DAY)


@given(jobs(), keeps)
def test_nothing_goes_that_a_run_may_still_write_to_or_that_was_written_within_the_retention(
    stored: StoredJob, keep: float
) -> None:
    if not stored.alive or not may_go(stored, NOW, keep):
        return
    assert stored.newest + keep <= NOW
    for generation in stored.generations:
        for run in generation.runs:
            assert run.closed or run.ended is not None or run.began + run.max_runtime + DAY + keep <= NOW


@given(jobs(), keeps, st.floats(0, 900 * DAY))
def test_what_may_go_now_may_go_later_too(stored: StoredJob, keep: float, later: float) -> None:
    assert may_go(stored, NOW + later, keep) or not may_go(stored, NOW, keep)


@given(jobs(), keeps, st.floats(1.0, 10.0))
def test_a_longer_retention_removes_no_more(stored: StoredJob, keep: float, times: float) -> None:
    assert may_go(stored, NOW, keep) or not may_go(stored, NOW, keep * times)
