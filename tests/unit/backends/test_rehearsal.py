"""Rehearsed interruptions: their forms, what befalls a machine, and that it does."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.local_machine import processes_of
from airflow_provider_spotbatch.backends.rehearsal import EVENTS, HOW, Event, Rehearsal, parse_rehearsal
from airflow_provider_spotbatch.job.errors import InvalidInput
from tests.unit.backends.test_local_machine import SLEEPING, OneMachine, until


class TestForms:
    @pytest.mark.parametrize(
        ("text", "per_hour"), [("2/h", 2), ("0.5/h", 0.5), (" 3 / m ", 180), ("0.5/m", 30)]
    )
    def test_a_rate_is_of_each_machine(self, text: str, per_hour: float) -> None:
        assert parse_rehearsal(text) == Rehearsal(per_second=per_hour / 3600)

    def test_a_script_is_a_list_or_its_json(self) -> None:
        script = [{"after": 5, "how": "notice"}, {"after": 1.5, "how": "freeze", "machine": 2, "seconds": 3}]
        expected = Rehearsal((Event(5, "notice"), Event(1.5, "freeze", 2, 3)))
        assert parse_rehearsal(script) == expected
        assert parse_rehearsal(json.dumps(script)) == expected

    @pytest.mark.parametrize(
        "value",
        [
            "often",
            "2",
            "0/h",
            "-1/h",
            "2/s",
            7,
            {"after": 5},
            "{}",
            [5],
            [{"after": 5}],
            [{"after": 5, "how": "explode"}],
            [{"after": -1, "how": "notice"}],
            [{"after": "5", "how": "notice"}],
            [{"after": 5, "how": "notice", "machine": "first"}],
            [{"after": 5, "how": "freeze", "seconds": 0}],
            [{"after": 5, "how": "notice", "when": "now"}],
        ],
    )
    def test_any_other_form_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput, match="rehearse"):
            parse_rehearsal(value)


class TestFate:
    def test_a_script_is_about_the_machines_of_the_first_launch(self) -> None:
        script = Rehearsal((Event(9, "vanish", 1), Event(5, "freeze", 1), Event(1, "notice", 0)))
        chance = random.Random(0)
        assert script.fate(1, 1, chance) == [Event(5, "freeze", 1), Event(9, "vanish", 1)]
        assert script.fate(1, 2, chance) == []
        assert script.fate(2, 1, chance) == []

    def test_a_rate_gives_each_machine_of_every_launch_its_own_time(self) -> None:
        rate = Rehearsal(per_second=1 / 600)
        fates = [rate.fate(launch, 0, random.Random(launch)) for launch in range(1, 2001)]
        first = [fate[0].after for fate in fates]
        assert 500 < sum(first) / len(first) < 700
        assert {fate[-1].how for fate in fates if len(fate) < EVENTS} == {"notice", "vanish"}
        assert {event.how for fate in fates for event in fate} == set(HOW)
        assert all(event.how == "freeze" for fate in fates for event in fate[:-1])

    def test_the_same_machine_has_the_same_fate(self) -> None:
        rate = Rehearsal(per_second=1.0)
        assert rate.fate(3, 1, random.Random("i-1")) == rate.fate(3, 1, random.Random("i-1"))
        assert rate.fate(3, 1, random.Random("i-1")) != rate.fate(3, 1, random.Random("i-2"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., OneMachine]]:
    made: list[OneMachine] = []

    def make(*script: Event, program: str = SLEEPING, **boot: Any) -> OneMachine:
        made.append(OneMachine(tmp_path, program, rehearse=Rehearsal(script), **boot))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


class TestMachine:
    def test_a_notice_is_given_and_its_grace_ends(self, machine: Any) -> None:
        one = machine(Event(0.2, "notice"), grace=0.3)
        until((one.folder / "interrupt").exists)
        end = one.until_gone()
        assert (end.interrupted, end.reason) == (True, "interrupted")

    def test_a_machine_that_vanishes_was_interrupted_and_heard_nothing(self, machine: Any) -> None:
        heard = "import os, time\nwhile not os.path.exists('../interrupt'): time.sleep(0.001)\n"
        one = machine(Event(0.3, "vanish"), program=heard + "open('../heard', 'w')")
        end = one.until_gone()
        assert (end.interrupted, end.reason) == (True, "interrupted without notice")
        assert not (one.folder / "heard").exists()

    def test_a_frozen_machine_wakes_and_goes_on_to_its_next_event(self, machine: Any) -> None:
        one = machine(Event(0.2, "freeze", seconds=0.5), Event(0.9, "vanish"))
        agent = one.agent

        def state() -> str:
            return Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0]

        until(lambda: state() == "T")
        until(lambda: state() == "S")
        assert one.until_gone().reason == "interrupted without notice"

    def test_a_frozen_machine_ends_with_its_lifetime(self, machine: Any) -> None:
        one = machine(Event(0.1, "freeze", seconds=600.0), lifetime=0.6)
        assert one.until_gone().reason == "its lifetime of 0.6 s was over"

    def test_the_machine_carries_it_out_with_its_launcher_gone(self, machine: Any) -> None:
        one = machine(Event(0.3, "vanish"))
        until(lambda: not processes_of(str(one.folder), []))
        assert os.path.exists(one.folder / "ended"), "not found dead: it recorded its own end"

    def test_a_machine_killed_while_frozen_leaves_nothing(self, machine: Any) -> None:
        one = machine(Event(0.1, "freeze", seconds=600.0))
        agent = one.agent
        until(lambda: Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        os.kill(one.own[1], signal.SIGKILL)
        assert not one.until_gone().interrupted
