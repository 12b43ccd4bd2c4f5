"""Mistakes are told before anything is launched, with the part at fault."""

from __future__ import annotations

import functools
import io
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.packages import CURRENT_PYTHON
from airflow_provider_spotbatch.job.errors import InvalidInput
from tests.unit.environment.packs import LoadDag, packed_with, packing


def identity(x: Any) -> Any:
    return x


class Reader:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Job:
    def __init__(self) -> None:
        self.reader = Reader()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Job(), r"items\[3\]\.reader\.lock: a thread lock cannot be pickled"),
        ({"a": [1, (2, threading.Lock())]}, r"items\[3\]\['a'\]\[1\]\[1\]: a thread lock"),
        ((x for x in "ab"), r"items\[3\]: a generator cannot be pickled"),
        (functools.partial(identity, threading.Lock()), r"items\[3\] arguments\[0\]: a thread lock"),
    ],
)
def test_an_item_that_cannot_be_pickled_is_named_with_its_part(value: Any, path: str) -> None:
    packer = packing(identity)
    with pytest.raises(InvalidInput, match=f"item 3, of type {type(value).__name__}, .*{path}"):
        packer.encode_item(3, value)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("LOCK = threading.Lock()\ndef work(x): return LOCK", "global 'LOCK': a thread lock"),
        (
            "LOCK = threading.Lock()\ndef helper(x): return LOCK\ndef work(x): return helper(x)",
            "global 'helper', global 'LOCK': a thread lock",
        ),
        (
            "def make():\n    lock = threading.Lock()\n    return lambda x: lock\nwork = make()",
            "closure variable 'lock': a thread lock",
        ),
        ("def work(x, *, lock=threading.Lock()): return x", r"defaults\['lock'\]: a thread lock"),
        (
            "class Box:\n    lock = threading.Lock()\ndef work(x): return Box()",
            r"global 'Box'\.lock: a thread lock",
        ),
        (
            "from airflow.sdk import DAG\nwith DAG('d', schedule=None) as dag: pass\ndef work(x): return dag",
            "global 'dag': .*an Airflow DAG belongs to the DAG and cannot travel",
        ),
        ("import sys\nme = sys.modules[__name__]\ndef work(x): return me", "module object .* cannot travel"),
    ],
)
def test_a_function_that_cannot_be_pickled_is_named_with_its_part(
    dag: LoadDag, source: str, path: str
) -> None:
    module = dag(f"import threading\n{source}\n")
    with pytest.raises(InvalidInput, match=f"cannot be sent to a machine: function .*{path}"):
        packing(module.work)


def test_a_shared_argument_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"argument x\.lock: a thread lock"):
        packing(lambda item, x: item, kwargs={"x": Reader()})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def work(x): yield x", "generator function"),
        ("async def work(x): return x", "async function"),
        ("async def work(x): yield x", "async function"),
        ("import functools\ndef f(a, x): yield x\nwork = functools.partial(f, 1)", "generator function"),
        ("class C:\n    def __call__(self, x): yield x\nwork = C()", "generator function"),
        ("class C:\n    def m(self, x): yield x\nwork = C().m", "generator function"),
        ("def work(): return 1", r"cannot be called as .*\(item\): too many positional arguments"),
        ("def work(x, y): return 1", "missing a required argument: 'y'"),
        ("work = 3", "must be a function"),
    ],
)
def test_a_function_that_no_item_could_be_given_to_is_refused(dag: LoadDag, source: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        packing(dag(source).work)


def test_unknown_shared_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"identity.* cannot be called as identity\(item, colour=…\)"):
        packing(identity, kwargs={"colour": 1})


@pytest.mark.parametrize(
    "source",
    [
        "def work(x):\n    import no_such_module\n",
        "def work(x):\n    from no_such_module.part import thing\n",
        "def helper(x):\n    import no_such_module\ndef work(x):\n    return helper(x)\n",
        "def work(x):\n    def inner():\n        import no_such_module\n    return inner()\n",
        "class Box:\n    def m(self):\n        import no_such_module\ndef work(x):\n    return Box()\n",
        "def work(x):\n    with open(x) as f:\n        import no_such_module\n",
        "def work(x):\n    try:\n        import no_such_module\n    except ValueError:\n        pass\n",
    ],
)
def test_a_module_that_is_nowhere_is_named_before_launch(dag: LoadDag, bundle: Path, source: str) -> None:
    with pytest.raises(InvalidInput, match=r"imports 'no_such_module.*neither installed here nor in the DAG"):
        packing(dag(source).work, bundle=bundle)


@pytest.mark.parametrize(
    "source",
    [
        "def work(x):\n    try:\n        import no_such_module\n    except ImportError:\n        pass\n",
        "def work(x):\n    try: import no_such_module\n    except (KeyError, Exception): pass\n",
        "def work(x):\n    try: import json\n    except ImportError:\n        import no_such_module\n",
        "def work(x):\n    if x:\n        import no_such_module\n",
        "def work(x):\n    with suppress(ImportError):\n        import no_such_module\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import no_such_module\ndef work(x): return x\n",
    ],
)
def test_an_import_that_may_fail_or_be_skipped_is_no_error(dag: LoadDag, bundle: Path, source: str) -> None:
    module = dag(f"from contextlib import suppress\n{source}")
    assert packing(module.work, bundle=bundle).finish().work.kind == "function"


def test_a_missing_module_may_come_with_packages_or_code(dag: LoadDag, bundle: Path, tmp_path: Path) -> None:
    module = dag("def work(x):\n    import no_such_module\n")
    packed = packing(module.work, bundle=bundle, environment=Environment(packages=["no-such"])).finish()
    assert packed.notes == ("work imports no_such_module, which is not installed here",)
    source = tmp_path / "no_such_module.py"
    source.write_text("")
    packed = packing(module.work, bundle=bundle, environment=Environment(code=[str(source)])).finish()
    assert names_in_zip(packed) == ["no_such_module.py"]


def test_a_missing_submodule_of_the_bundle_is_named(dag: LoadDag, bundle: Path) -> None:
    (bundle / "shelf").mkdir()
    (bundle / "shelf" / "__init__.py").write_text("")
    module = dag("def work(x):\n    import shelf.missing\n")
    with pytest.raises(InvalidInput, match=r"'shelf\.missing'"):
        packing(module.work, bundle=bundle)


def names_in_zip(packed: Any) -> list[str]:
    (sha,) = packed.environment.code
    with zipfile.ZipFile(io.BytesIO(packed.blobs[sha])) as archive:
        return archive.namelist()


def test_zips_hold_source_and_data_only_and_are_the_same_every_time(dag: LoadDag, bundle: Path) -> None:
    for name in ("a.py", "data.json", "__pycache__/a.pyc", ".git/config", "sub/b.py", ".hidden"):
        path = bundle / "shelf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (bundle / "shelf" / "__init__.py").write_text("")
    module = dag("def work(x):\n    from shelf import a\n")
    first = packing(module.work, bundle=bundle).finish()
    assert names_in_zip(first) == [
        "shelf/__init__.py", "shelf/a.py", "shelf/data.json", "shelf/sub/b.py",
    ]  # fmt: skip
    (bundle / "shelf" / "a.py").touch()
    second = packing(dag("def work(x):\n    from shelf import a\n").work, bundle=bundle).finish()
    assert second.environment.code == first.environment.code


def test_too_much_to_travel_as_source_names_the_largest(dag: LoadDag, bundle: Path) -> None:
    (bundle / "shelf").mkdir()
    (bundle / "shelf" / "__init__.py").write_text("")
    with open(bundle / "shelf" / "model.bin", "wb") as file:
        file.truncate(11 * 2**20)
    module = dag("def work(x):\n    import shelf\n")
    with pytest.raises(InvalidInput, match=r"take 11\.0 MB \(largest: shelf/model\.bin\)"):
        packing(module.work, bundle=bundle).finish()


def test_folders_of_code_go_to_the_top_and_packages_keep_their_name(tmp_path: Path) -> None:
    for name in ("lib/one.py", "lib/two/__init__.py", "pkg/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    environment = Environment(code=[str(tmp_path / "lib"), str(tmp_path / "pkg")])
    packed = packing(identity, environment=environment).finish()
    assert {"one.py", "two/__init__.py", "pkg/__init__.py"} <= set(names_in_zip(packed))


def test_installed_modules_and_airflow_never_travel(dag: LoadDag, bundle: Path) -> None:
    module = dag(
        """
        import numpy
        from airflow.sdk import Variable
        from airflow_provider_spotbatch import item_context

        def work(x):
            import json
            return numpy.sum(x), Variable, item_context, json
        """
    )
    packed = packing(module.work, bundle=bundle).finish()
    assert packed.environment.code == ()
    assert packed.work.travelling == {"spotbatch_dag_shop": "shop.py"}


def test_another_python_is_for_importable_functions_and_commands_only(dag: LoadDag, bundle: Path) -> None:
    other = Environment(python="3.9")
    with pytest.raises(InvalidInput, match=rf"travels as the bytecode of Python {CURRENT_PYTHON}"):
        packing(dag("def work(x): return x").work, bundle=bundle, environment=other)
    (bundle / "plain.py").write_text("def work(x): return x\n")
    assert packing(dotted="plain.work", bundle=bundle, environment=other).finish().environment.python == "3.9"
    assert packing(command=["echo", "{item}"], environment=other).finish().environment.python == "3.9"


@pytest.mark.parametrize(
    ("dotted", "reason"),
    [
        ("work", "no dotted path"),
        ("no such.thing", "no dotted path"),
        ("no_such_module.work", "neither installed here nor in the DAG bundle"),
        ("json.no_such_function", "has no 'no_such_function'"),
        ("json.decoder", "no function but"),
        ("loud.missing", "has no 'missing'"),
    ],
)
def test_a_dotted_path_is_checked_without_running_its_module(bundle: Path, dotted: str, reason: str) -> None:
    (bundle / "loud.py").write_text("raise RuntimeError('was run')\ndef work(x): return x\n")
    with pytest.raises(InvalidInput, match=reason):
        packing(dotted=dotted, bundle=bundle)
    packed = packing(dotted="loud:work", bundle=bundle).finish()
    assert packed.work.name == "loud.work"
    assert names_in_zip(packed) == ["loud.py"]
    assert "loud" not in sys.modules


@pytest.mark.parametrize("command", ["echo {item}", [], ["echo", 3], b"x"])
def test_a_command_is_a_list_of_strings(command: Any) -> None:
    with pytest.raises(InvalidInput, match="command must be a list of strings"):
        packing(command=command)


def test_a_command_without_the_item_is_noted() -> None:
    packed = packing(command=["date"]).finish()
    assert packed.notes == ("the command has no {item}: it runs the same for every item",)
    assert packed.blobs[packed.work.blob] == b'{"command": ["date"], "kwargs": {}}'


def test_exactly_one_kind_of_work_is_given() -> None:
    with pytest.raises(InvalidInput, match="exactly one"):
        packing(identity, command=["date"])
    with pytest.raises(InvalidInput, match="exactly one"):
        packing()


def test_a_file_that_is_not_there_is_named(bundle: Path) -> None:
    for environment in (Environment(code=["gone"]), Environment(files={"a": "gone"})):
        with pytest.raises(InvalidInput, match=r"'gone' is not there \(looked in .*bundle and"):
            packing(identity, environment=environment, bundle=bundle)


def test_files_become_blobs(bundle: Path) -> None:
    (bundle / "table.csv").write_text("1,2")
    packed = packing(identity, environment=Environment(files={"in.csv": "table.csv"}), bundle=bundle).finish()
    assert packed.blobs[packed.environment.files["in.csv"]] == b"1,2"


def test_dag_files_of_one_name_in_different_folders_are_told_apart(dag: LoadDag, bundle: Path) -> None:
    source = "class Box:\n    pass\ndef work(x): return Box\n"
    one, two = dag(source, "a/shop.py"), dag(source, "b/shop.py")
    packed, _ = packed_with(packing(one.work, bundle=bundle), [two.Box()])
    assert sorted(packed.work.travelling.values()) == ["a/shop.py", "b/shop.py"]
    assert len(packed.work.travelling) == 2


def test_an_item_of_a_class_that_no_name_finds_is_refused(dag: LoadDag, bundle: Path) -> None:
    module = dag("class Box:\n    pass\nbox = Box()\ndel Box\ndef work(x): return x\n")
    packer = packing(module.work, bundle=bundle)
    packer.encode_item(0, module.box)
    with pytest.raises(InvalidInput, match=r"an item is a Box, but shop\.py holds nothing of that name"):
        packer.finish()


def test_blobs_are_the_same_every_time(dag: LoadDag, bundle: Path) -> None:
    source = "class Box:\n    rate = 1\ndef helper(x): return Box\ndef work(x): return helper(x)\n"
    first = packing(dag(source).work, bundle=bundle).finish()
    assert packing(dag(source).work, bundle=bundle).finish().work.blob == first.work.blob
