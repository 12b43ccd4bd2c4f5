"""Items of real jobs, replayed here: as text, as JSON, and in the debugger on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch import Environment
from airflow_provider_spotbatch.backends.store import open_store
from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.control.submit import JobRequest
from airflow_provider_spotbatch.environment.packing import Packing
from airflow_provider_spotbatch.job.keys import Generation, Run, blob
from airflow_provider_spotbatch.job.policy import Policy
from tests.support.jobs import PATIENCE, processes_with
from tests.support.runs import Site, drive, site_in
from tests.unit.environment.packs import load_dag_file

SHOP = """\
import os
import time
from pathlib import Path

from airflow_provider_spotbatch import item_context
from prices import price


class Box:
    def __init__(self, apples):
        self.apples = apples

    def __repr__(self):
        return f"Box({self.apples})"


def share(apples, *, friends):
    return price(friends) / apples


def divided(box, *, friends, **_):
    print(f"dividing {box} in attempt {item_context.attempt}")
    print(chr(27) + "[2J")  # no screen is cleared by what is replayed
    item_context.checkpoint.save(b"of a replay")
    return Box(share(box.apples, friends=friends))


def moody(item, *, moods, **_):
    if Path(moods, item).exists():
        return "well"
    raise OSError("in a bad mood")


def resumed(item, **_):
    found = item_context.checkpoint.load()
    if found is None:
        item_context.checkpoint.save(b"half of it")
        raise RuntimeError("half-way")
    item_context.checkpoint.save(b"all of it")
    return [found.decode(), item_context.checkpoint.load().decode()]


def surroundings(item, **_):
    return [os.environ["COLOUR"], Path("data.txt").read_text(), item_context.index]


def paused(item, **_):
    apples = 1
    breakpoint()
    return apples


def killed(item, **_):
    os.kill(os.getpid(), 9)


KINDS = [divided, moody, resumed, surroundings, paused, killed]


def work(item, **shared):
    kind = divided if isinstance(item, Box) else {each.__name__: each for each in KINDS}[item]
    return kind(item, **shared)


def called(first, *, second):
    raise KeyError(first + second)


def slow(item):
    print("sleeping now")
    time.sleep(60)
"""

FINE, BAD, MOODY, RESUMED, SURROUNDINGS, PAUSED, KILLED = range(7)
"""The items of the job that most tests look at."""


@dataclass
class Shop:
    """A DAG bundle with a DAG file, and a local backend. Jobs are submitted once, and only looked at."""

    site: Site
    bundle: Path
    dag: Any

    @property
    def store(self) -> str:
        return f"file://{self.site.root}/store"

    def run(self, function: str | None, items: list[Any], *, map_index: int = -1, **options: Any) -> str:
        """Run a job to its end; its id."""
        policy = {name: options.pop(name) for name in ("item_timeout", "item_retries") if name in options}
        given = getattr(self.dag, function) if function else None
        request = JobRequest(
            deployment="tests",
            dag_id="shop",
            run_id="monday",
            task_id=function or "command",
            map_index=map_index,
            max_tries=0,
            dag_run_started="",
            packing=Packing(
                **{
                    "function": given,
                    "dotted": None,
                    "command": None,
                    "kwargs": {},
                    "call": "item",
                    "environment": Environment(),
                    "bundle": str(self.bundle),
                    "name": function or "command",
                    **options,
                }
            ),
            items=items,
            policy=Policy(**{"item_retries": 0, **policy}),
        )
        worker = self.site.worker()
        assert worker.submit(request).outcome is None
        drive(worker)
        return request.job

    def objects(self) -> dict[str, tuple[int, float]]:
        """All that is stored: name → size and time."""
        entries = asyncio.run(open_store(self.store).list_objects(""))
        return {entry.name: (entry.size, entry.modified) for entry in entries}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    root = tmp_path_factory.mktemp("shop")
    bundle = root / "bundle"
    bundle.mkdir()
    (bundle / "prices.py").write_text("def price(friends):\n    return 100 * friends\n")
    (bundle / "shop.py").write_text(SHOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(bundle))
        dag = load_dag_file(bundle / "shop.py")
        yield Shop(site_in(root / "site", patch), bundle, dag)
        for name in ("prices", dag.__name__):
            del sys.modules[name]


@dataclass
class Work:
    """The job that most tests look at. ``moods``: a folder that can cheer up its moody item."""

    job: str
    moods: Path


@pytest.fixture(scope="module")
def work(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("work")
    (folder / "data.txt").write_text("as submitted")
    box = shop.dag.Box
    job = shop.run(
        "work",
        [box(4), box(0), "moody", "resumed", "surroundings", "paused", "killed"],
        kwargs={"friends": 3, "moods": str(folder)},
        environment=Environment(env={"COLOUR": "red"}, files={"data.txt": str(folder / "data.txt")}),
    )
    (folder / "data.txt").write_text("changed since")
    return Work(job, folder)


Replayed = tuple[int, str, str]


@pytest.fixture
def replay(shop: Shop, capfd: pytest.CaptureFixture[str]) -> Any:
    """``replay(job, item, *options)``: exit code, standard output, standard error."""

    def run(job: str, item: int, *options: str) -> Replayed:
        capfd.readouterr()
        code = main(["replay", job, "--item", str(item), "--store", shop.store, *options])
        return code, *capfd.readouterr()

    return run


def in_json(replayed: Replayed) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(replayed[1])
    return document


def test_a_failed_item_fails_here_in_the_same_way(replay: Any, work: Work) -> None:
    code, out, _ = replay(work.job, BAD)
    record, here = out.split("dividing Box(0) in attempt 1")
    assert code == 1
    assert "on record: error in attempt 1" in record
    assert "input: Box(0)" in record
    for part in (record, here):
        assert re.search(r'File "shop.py", line \d+, in share', part)
        assert "ZeroDivisionError: division by zero" in part
    assert "It failed in the same way." in here


def test_a_replay_in_json_is_one_document(replay: Any, work: Work) -> None:
    code, out, error = replay(work.job, BAD, "--json")
    document = json.loads(out)
    assert code == 1
    assert error == "dividing Box(0) in attempt 1\n\\x1b[2J\n"
    assert 0 <= document.pop("seconds") < PATIENCE
    assert document.pop("traceback").endswith("ZeroDivisionError: division by zero\n")
    assert document == {
        "item": BAD,
        "ok": False,
        "cause": "error",
        "message": "ZeroDivisionError: division by zero",
        "result": "",
        "same_as_recorded": True,
        "verdict": "It failed in the same way.",
    }


def test_an_item_that_never_failed_is_replayed_too(replay: Any, work: Work) -> None:
    code, out, _ = replay(work.job, FINE)
    assert code == 0
    assert "on record: ok in attempt 1" in out
    assert re.search(r"succeeded here after \d.\d\d s( and \d+ MB)?: Box\(75.0\)", out)
    assert "It succeeded, as on record." in out


def test_a_replay_leaves_nothing_behind(
    replay: Any, shop: Shop, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = shop.objects()
    replay(work.job, FINE)
    assert shop.objects() == before
    assert list(tmp_path.iterdir()) == []
    assert list(processes_with("SPOTBATCH_INSTANCE=replay")) == []


def test_an_item_that_succeeds_here_points_at_the_machine(replay: Any, work: Work) -> None:
    (work.moods / "moody").touch()
    document = in_json(replay(work.job, MOODY, "--json"))
    assert (document["ok"], document["result"], document["same_as_recorded"]) == (True, "'well'", False)
    assert "the cause may be the machine" in document["verdict"]


def test_checkpoints_are_loaded_from_the_store_and_saved_aside(shop: Shop, replay: Any, work: Work) -> None:
    before = shop.objects()
    for _ in range(2):
        assert in_json(replay(work.job, RESUMED, "--json"))["result"] == "['half of it', 'all of it']"
    assert shop.objects() == before


def test_the_environment_goes_with_the_item(replay: Any, work: Work) -> None:
    document = in_json(replay(work.job, SURROUNDINGS, "--json"))
    assert document["result"] == f"['red', 'as submitted', {SURROUNDINGS}]"


def test_before_the_end_of_a_run_its_results_are_the_record(replay: Any, shop: Shop, work: Work) -> None:
    index = shop.site.root / "store" / Run(Generation(work.job, 1), 1).index
    index.rename(f"{index}.hidden")
    codes = [replay(work.job, item)[:2] for item in (FINE, BAD)]
    Path(f"{index}.hidden").rename(index)
    assert [code for code, _ in codes] == [0, 1]
    assert "on record: ok in attempt 1" in codes[0][1]
    assert "It failed in the same way." in codes[1][1]


def test_a_breakpoint_without_pdb_names_the_option(replay: Any, work: Work) -> None:
    code, _, error = replay(work.job, PAUSED)
    assert code == 1
    assert "use --pdb" in error


def test_a_worker_that_dies_is_told(replay: Any, work: Work) -> None:
    document = in_json(replay(work.job, KILLED, "--json"))
    assert (document["cause"], document["same_as_recorded"]) == ("crash", True)
    assert "SIGKILL" in document["message"]


@pytest.mark.parametrize("item", [7, -1])
def test_an_item_that_the_job_does_not_have_is_told(replay: Any, work: Work, item: int) -> None:
    code, _, error = replay(work.job, item)
    assert code == 1
    assert f"has no item {item}: its items are 0 to 6" in error


def test_without_the_key_nothing_is_run(
    replay: Any, shop: Shop, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTBATCH_KEY", "another key")
    code, out, error = replay(work.job, FINE)
    assert (code, out) == (1, "")
    assert "was signed with the key" in error
    monkeypatch.delenv("SPOTBATCH_KEY")
    (shop.site.root / "key").chmod(0o644)
    code, out, error = replay(work.job, FINE)
    (shop.site.root / "key").chmod(0o600)
    assert (code, out) == (1, "")
    assert "it needs the key that signed it" in error


@pytest.mark.parametrize(
    ("what", "told"), [("blob", "was changed after it was written"), ("item", "is not signed")]
)
def test_what_was_tampered_with_is_not_run(replay: Any, shop: Shop, work: Work, what: str, told: str) -> None:
    store, generation = shop.site.root / "store", Generation(work.job, 1)
    spec = json.loads((store / generation.spec).read_text())["body"]
    names = {
        "blob": blob(spec["work"]["blob"]),
        "item": generation.item_part(spec["items"]["submission"], 0),
    }
    target = store / names[what]
    stored = target.read_bytes()
    target.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    code, out, error = replay(work.job, KILLED)
    target.write_bytes(stored)
    assert code == 1
    assert told in error
    assert "failed here" not in out


def test_a_command_is_replayed(shop: Shop, replay: Any) -> None:
    job = shop.run(None, ["one", "two"], command=["sh", "-c", 'echo "got {item}"; test {item} = one'])
    assert in_json(replay(job, 0, "--json"))["result"] == "'got one'"
    code, out, _ = replay(job, 1)
    assert code == 1
    assert "CommandFailed: sh ended with exit code 1" in out
    code, _, error = replay(job, 1, "--pdb")
    assert code == 1
    assert "this job runs a command" in error


def test_one_call_is_replayed_by_job_and_generation(shop: Shop, replay: Any) -> None:
    def call(first: str) -> list[Any]:
        return [{"args": [first], "kwargs": {"second": "b"}}]

    job = shop.run("called", call("a"), call="spread", map_index=3)
    assert shop.run("called", call("c"), call="spread", map_index=3) == job
    assert in_json(replay(job, 0, "--json"))["message"] == "KeyError: 'cb'"
    assert in_json(replay(job, 0, "--json", "--generation", "1"))["message"] == "KeyError: 'ab'"


_ON_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first in its session to open one: it is ours
os.execv(sys.executable, [sys.executable, "-m", "airflow_provider_spotbatch.cli", *sys.argv[1:]])
"""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def until(self, text: str) -> str:
        """What is shown until ``text`` is, that included."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come; there is:\n{self.shown}"
            if select.select([self._master], [], [], left)[0]:
                try:
                    self.shown += os.read(self._master, 65_536).decode()
                except OSError:  # the other side is closed
                    raise AssertionError(f"{text!r} did not come; it ended with:\n{self.shown}") from None
        before, found, self.shown = self.shown.partition(text)
        return before + found

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def interrupt(self) -> None:
        os.write(self._master, b"\x03")

    def ended(self) -> int:
        code = self._process.wait(PATIENCE)
        os.close(self._master)
        return code


def debugged(shop: Shop, job: str, item: int) -> Terminal:
    return Terminal("replay", job, "--item", str(item), "--store", shop.store, "--pdb", cwd=shop.bundle)


def test_pdb_stops_where_the_function_raised(shop: Shop, work: Work) -> None:
    terminal = debugged(shop, work.job, BAD)
    shown = terminal.until("(Pdb) ")
    assert "dividing Box(0) in attempt 1" in shown
    assert "-> return price(friends) / apples" in shown
    for line, expected in (
        ("p apples, friends", "(0, 3)"),
        ("up", "-> return Box(share(box.apples, friends=friends))"),
        ("p box", "Box(0)"),
        ("w", "-> return price(friends) / apples"),
    ):
        terminal.type(line)
        assert expected in terminal.until("(Pdb) ")
    terminal.type("q")
    terminal.until("It failed in the same way.")
    assert terminal.ended() == 1


def test_pdb_stops_at_a_breakpoint_and_goes_on(shop: Shop, work: Work) -> None:
    terminal = debugged(shop, work.job, PAUSED)
    assert "bdb.BdbQuit" in terminal.until("(Pdb) ")  # on its machine nobody answered
    terminal.type("apples = 41 + apples")
    terminal.until("(Pdb) ")
    terminal.type("c")
    assert "42" in terminal.until("It succeeds here")
    assert terminal.ended() == 0


def test_an_item_over_its_time_has_time_in_pdb_and_ctrl_c_stops_it(shop: Shop, replay: Any) -> None:
    job = shop.run("slow", [1], item_timeout=0.3)
    document = in_json(replay(job, 0, "--json"))
    assert (document["cause"], document["same_as_recorded"]) == ("timeout", True)
    terminal = debugged(shop, job, 0)
    terminal.until("ItemTimeout")
    terminal.until("sleeping now")
    terminal.interrupt()
    assert "KeyboardInterrupt" in terminal.until("(Pdb) ")
    terminal.type("p item")
    assert "1\r\n" in terminal.until("(Pdb) ")
    terminal.type("q")
    terminal.until("Another failure: on record is timeout")
    assert terminal.ended() == 1


def test_source_that_has_changed_is_not_listed(shop: Shop, work: Work, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("price(friends) /", "price(friends) //"))
    where = ("--store", shop.store, "--source", str(tmp_path))
    terminal = Terminal("replay", work.job, "--item", str(BAD), "--pdb", *where, cwd=tmp_path)
    shown = terminal.until("(Pdb) ")
    assert "is not what the job was submitted with" in shown
    assert "->" not in shown
    terminal.type("q")
    assert terminal.ended() == 1
