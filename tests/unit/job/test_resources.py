from __future__ import annotations

import json
import math
from typing import Any

import pytest

from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.resources import Resources


def test_one_item_needs_one_cpu_and_two_gb_unless_told_otherwise() -> None:
    assert Resources() == Resources(cpus=1, memory_gb=2, gpus=0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("cpus", 0),
        ("cpus", -1),
        ("cpus", True),
        ("cpus", "2"),
        ("cpus", None),
        ("cpus", math.nan),
        ("memory_gb", 0),
        ("memory_gb", math.inf),
        ("gpus", -1),
        ("gpus", 0.5),
        ("gpus", False),
        ("gpu_memory_gb", -1),
        ("gpu_memory_gb", math.nan),
        ("disk_gb", "10"),
        ("architectures", "x86_64"),
        ("architectures", ["sparc"]),
        ("instance_types", "c7g.large"),
    ],
)
def test_a_value_that_no_machine_can_have_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"item_resources\.{argument}"):
        Resources(**{argument: value})


def test_lists_become_tuples_so_that_it_stays_a_value() -> None:
    resources = Resources(architectures=["arm64"], instance_types=["c7g.large"])  # type: ignore[arg-type]

    assert hash(resources) == hash(Resources(architectures=("arm64",), instance_types=("c7g.large",)))


@pytest.mark.parametrize(("memory_class", "memory"), [(0, 1.5), (1, 3.0), (3, 12.0)])
def test_each_memory_class_doubles_the_memory_alone(memory_class: int, memory: float) -> None:
    resources = Resources(cpus=2, memory_gb=1.5, gpus=1, instance_types=("g6.xlarge",))

    assert resources.in_class(memory_class) == Resources(
        cpus=2, memory_gb=memory, gpus=1, instance_types=("g6.xlarge",)
    )


def test_it_reads_back_from_json() -> None:
    resources = Resources(0.5, 4, 1, 16, 100, ("arm64",), ("g5g.xlarge",))

    assert Resources.from_json(json.loads(json.dumps(resources.to_json()))) == resources
