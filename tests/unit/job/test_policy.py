from __future__ import annotations

import json
import math
from typing import Any

import pytest

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("item_retries", -1),
        ("item_retries", 1.5),
        ("item_retries", None),
        ("item_retries", True),
        ("item_retries", "2"),
        ("item_timeout", 0),
        ("item_timeout", -5),
        ("item_timeout", math.nan),
        ("item_timeout", "60"),
        ("concurrency", 0),
        ("concurrency", -1),
        ("concurrency", 2.0),
        ("early_stop", 0),
        ("early_stop", False),
        ("on_item_error", "ignore"),
        ("reuse", "sometimes"),
        ("purchase", "reserved"),
        ("budget_usd", 0),
        ("budget_usd", -1.0),
        ("budget_usd", math.inf),
        ("max_runtime", 0),
        ("max_runtime", None),
        ("poll_interval", 0),
        ("max_failures", -1),
        ("max_failures", 1.0),
        ("max_failures", 0.0),
        ("max_failures", 1.5),
        ("max_failures", -0.5),
        ("max_failures", math.nan),
        ("max_failures", True),
        ("max_failures", "10%"),
    ],
)
def test_a_wrong_argument_is_refused_by_name_with_its_value(argument: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=argument) as refused:
        Policy(**{argument: value})

    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"item_retries": 0},
        {"item_timeout": 0.5},
        {"concurrency": None},
        {"early_stop": None},
        {"max_failures": 0},
        {"max_failures": 0.25},
        {"purchase": "spot-then-on-demand"},
        {"on_item_error": "collect", "reuse": "always"},
        {"resources": Resources(cpus=2, architectures=("arm64",))},
    ],
)
def test_a_right_one_is_kept_and_reads_back(arguments: dict[str, Any]) -> None:
    policy = Policy(**arguments)

    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@pytest.mark.parametrize(
    ("on_item_error", "max_failures", "items", "allowed"),
    [
        ("fail", None, 100, 0),
        ("stop", None, 100, 0),
        ("collect", None, 100, math.inf),
        ("collect", 3, 100, 3),
        ("fail", 3, 100, 3),
        ("stop", 0, 100, 0),
        ("fail", 0.1, 100, 10),
        ("fail", 0.1, 19, 1),
        ("fail", 0.1, 9, 0),
        ("fail", 0.5, 0, 0),
    ],
)
def test_how_many_items_may_fail(
    on_item_error: str, max_failures: float | None, items: int, allowed: float
) -> None:
    policy = Policy(on_item_error=on_item_error, max_failures=max_failures)

    assert policy.failures_allowed(items) == allowed
