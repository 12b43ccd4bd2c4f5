"""A long item that goes on elsewhere when its machine is taken back, instead of starting again.

``item_context.checkpoint`` keeps bytes of one item in the store: ``save`` returns once they are safe, and
``load`` gives, on whatever machine, what was saved last. A step here is a tenth of a second; save every few
minutes of work, and after each step once ``item_context.interrupted`` is set: seconds are left then.

See it happen on your own machine, with a connection that rehearses: here the first of two machines gets
its notice after 3 seconds, and is gone a second later::

    export AIRFLOW_CONN_SPOTBATCH_DEFAULT='{"conn_type": "spotbatch", "extra": {"instances": 2, "rehearse":
        [{"after": 3, "how": "notice", "machine": 0}, {"after": 4, "how": "vanish", "machine": 0}]}}'
    airflow dags test checkpoints

The task's log tells which machine was interrupted and what replaced it, the report how much was taken
over. Your own work: keep in ``state`` whatever it needs to go on, such as the weights of a model.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_spotbatch import Resources, item_context

SAVE_EVERY = 10
"""Steps between two checkpoints."""

POINTS = 20_000
"""Random points of one step."""


def points_inside(seed: int, step: int) -> int:
    """How many of a step's points lie in the quarter of a circle. The same for the same arguments."""
    chance = random.Random(f"{seed} {step}")
    return sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(POINTS))


@task.spot_map(item_resources=Resources(cpus=1, memory_gb=0.25))
def estimate_pi(seed: int, *, params: dict[str, Any]) -> dict[str, Any]:
    """One long computation, in steps. Runs on whatever machine the connection leads to."""
    saved = item_context.checkpoint.load()
    state = json.loads(saved) if saved else {"step": 0, "inside": 0}
    taken_over = state["step"]
    print(f"going on at step {taken_over}" if saved else "starting")
    while state["step"] < params["steps"]:
        state["inside"] += points_inside(seed, state["step"])
        state["step"] += 1
        time.sleep(0.1)  # a step of real work takes longer
        if state["step"] % SAVE_EVERY == 0 or item_context.interrupted.is_set():
            item_context.checkpoint.save(json.dumps(state).encode())
    pi = 4 * state["inside"] / (state["step"] * POINTS)
    return {"seed": seed, "pi": pi, "taken_over": taken_over, "done_here": state["step"] - taken_over}


@task
def list_seeds(params: dict[str, Any]) -> list[int]:
    return list(params["seeds"])


@task
def report(results: Any) -> list[dict[str, Any]]:
    estimates = list(results)
    for one in estimates:
        print(f"seed {one['seed']}: {one['pi']:.5f}; {one['taken_over']} steps were taken over")
    print(f"pi is about {sum(one['pi'] for one in estimates) / len(estimates):.5f}")
    return estimates


@dag(schedule=None, catchup=False, tags=["example"], params={"steps": 60, "seeds": [1, 2]})
def checkpoints() -> None:
    report(estimate_pi(list_seeds()))


checkpoints()
