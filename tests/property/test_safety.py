"""What holds after every run, whatever the cloud does and whatever befalls its controllers."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_spotbatch.backends.memory_faults import Faults
from airflow_provider_spotbatch.job.keys import Run
from airflow_provider_spotbatch.job.run_outcome import Outcome
from tests.property.boundaries import Befall, Killed, nothing
from tests.property.simulation import Simulation
from tests.property.stories import befalls, cloud_faults, simulations

FAULTS_SECONDS = 600.0
"""Virtual seconds until the cloud behaves again: from then on a run must converge."""


def misbehave(told: Simulation, faults: Faults) -> None:
    told.use_faults(faults)
    asyncio.get_running_loop().call_later(FAULTS_SECONDS, lambda: setattr(told.cloud, "faults", Faults()))


async def controllers(told: Simulation, run: Run, befalls: list[Befall], pause: float) -> None:
    """One controller after another, each killed or stalled as planned, until the run is over."""
    left = list(befalls)
    while True:
        try:
            await told.drive(run, left.pop(0) if left else nothing)
        except Killed:
            await asyncio.sleep(pause)
        except Exception as error:
            told.say(f"a controller gave up: {error!r}")
            await asyncio.sleep(pause)
        else:
            return


@given(
    told=simulations(),
    faults=cloud_faults(),
    first=st.lists(befalls(), max_size=3),
    second=st.none() | st.lists(befalls(), max_size=2),
    pause=st.sampled_from([1.0, 20.0, 300.0]),
)
def test_whatever_happens_every_item_ends_once_and_nothing_is_left(
    told: Simulation, faults: Faults, first: list[Befall], second: list[Befall] | None, pause: float
) -> None:
    async def story() -> Outcome:
        run = await told.begin_run()
        misbehave(told, faults)
        drivers = [controllers(told, run, first, pause)]
        if second is not None:
            drivers.append(controllers(told, run, second, pause))
        await asyncio.gather(*drivers)
        return await told.finish_at_last(run)

    told.check(told.play(story()))
