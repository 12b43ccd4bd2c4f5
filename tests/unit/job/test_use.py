from __future__ import annotations

import json
import random

import pytest

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.outcome import CRASH, ERROR, MEMORY, OK, ItemOutcome
from airflow_provider_spotbatch.job.use import LEAST_SECONDS, RELATIVE_ERROR, Sketch, Use


def outcome(
    item: int, seconds: float, peak_mb: float | None = None, cpu: float | None = None, cause: str = OK
) -> ItemOutcome:
    return ItemOutcome(item, 1, cause, "json", b"1", 100.0, 100.0 + seconds, peak_mb, cpu)


def varied(count: int, seed: int = 7) -> list[float]:
    chance = random.Random(seed)
    return [chance.lognormvariate(1.0, 2.0) for _ in range(count)]


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch(LEAST_SECONDS)
    for value in values:
        sketch.add(value)
    return sketch


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_quantiles_are_within_the_stated_error(share: float, count: int) -> None:
    values = sorted(varied(count))
    true = values[max(0, -(-round(share * count * 100) // 100) - 1)]

    assert sketch_of(values).quantile(share) == pytest.approx(true, rel=RELATIVE_ERROR * 1.001)


def test_count_and_maximum_are_exact() -> None:
    values = varied(1000)

    assert sketch_of(values).count == 1000
    assert sketch_of(values).maximum == max(values)


def test_parts_merge_to_the_whole() -> None:
    values = varied(300)
    merged = sketch_of(values[:120])
    merged.merge(sketch_of(values[120:]))

    assert merged == sketch_of(values)


def test_values_below_the_least_count_as_nothing() -> None:
    sketch = sketch_of([1e-6, 0.0, 5.0])

    assert sketch.quantile(0.5) == 0.0
    assert sketch.quantile(1.0) == 5.0


def test_no_quantile_passes_the_maximum() -> None:
    for value in varied(100):
        assert sketch_of([value]).quantile(1.0) <= value


def test_an_empty_sketch_has_no_figures() -> None:
    assert (sketch_of([]).count, sketch_of([]).maximum, sketch_of([]).quantile(0.95)) == (0, 0.0, 0.0)


def test_values_beyond_all_reason_stay_in_the_last_bucket() -> None:
    assert len(sketch_of([1e30, 1e40]).buckets) == 1


def test_only_items_that_succeeded_are_measured() -> None:
    use = Use.of_chunk(
        [outcome(0, 2.0, 100.0, 1.0), outcome(1, 0.1, 5.0, 0.1, ERROR), outcome(2, 9.0, cause=CRASH)],
        slot_seconds=12.0,
        memory_limit_mb=2048,
    )

    assert use.items == 1
    assert (use.seconds.maximum, use.memory_mb.maximum) == (2.0, 100.0)
    assert use.left_out == {ERROR: 1, CRASH: 1}


def test_what_a_slot_spent_between_items_is_overhead() -> None:
    use = Use.of_chunk([outcome(0, 2.0), outcome(1, 1.0, cause=ERROR)], 3.5, 2048)

    assert use.overhead_seconds == pytest.approx(0.5)


def test_items_too_short_for_the_clocks_have_no_cpu_share() -> None:
    use = Use.of_chunk([outcome(0, 0.001, cpu=0.002), outcome(1, 2.0, cpu=1.0)], 2.1, 2048)

    assert use.cpus.count == 1
    assert use.cpus.maximum == 0.5
    assert (use.cpu_seconds, use.cpu_of_seconds) == (1.0, 2.0)


def test_items_that_outgrew_their_memory_are_counted_by_the_limit() -> None:
    use = Use.of_chunk([outcome(0, 1.0, 2100.0, cause=MEMORY)], 1.0, 2048.0)
    use.merge(Use.of_chunk([outcome(0, 1.0, 4200.0, cause=MEMORY)], 1.0, 4096.0))

    assert use.outgrew == {2048: 1, 4096: 1}
    assert use.left_out == {MEMORY: 2}


def many(count: int, seed: int = 1) -> Use:
    chance = random.Random(seed)
    return Use.of_chunk(
        [
            outcome(k, chance.lognormvariate(1, 0.5), chance.lognormvariate(6, 0.3), chance.uniform(0, 2))
            for k in range(count)
        ],
        slot_seconds=1e6,
        memory_limit_mb=2048,
    )


def test_use_reads_back_and_merges_as_before_it_was_stored() -> None:
    read = Use.from_json(json.loads(json.dumps(many(200).to_json())))
    read.merge(many(100, seed=2))
    fresh = many(200)
    fresh.merge(many(100, seed=2))

    assert (read.seconds, read.memory_mb, read.cpus) == (fresh.seconds, fresh.memory_mb, fresh.cpus)
    assert read.cpu_seconds == pytest.approx(fresh.cpu_seconds, rel=1e-6)


def test_ordinary_use_is_stored_in_about_a_kilobyte() -> None:
    assert len(json.dumps(many(100_000).to_json(), separators=(",", ":"))) < 1500


def test_the_most_varied_use_is_stored_in_less_than_four_kilobytes() -> None:
    outcomes = [outcome(k, 1.1**k / 1000, 1.1**k, 1.1 ** (2 * k) / 1e5) for k in range(250)]
    stored = json.dumps(Use.of_chunk(outcomes, 0.0, 2048).to_json(), separators=(",", ":"))

    assert len(stored) < 4000


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(FormatMismatch, match="format"):
        Use.from_json({"cpu": 0.5})
