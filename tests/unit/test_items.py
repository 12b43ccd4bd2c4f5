"""Item sources: each streams, keeps types, and says clearly what it refuses."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote

import numpy
import pytest

from airflow_provider_spotbatch.items import Items, iterate_items
from airflow_provider_spotbatch.job.errors import InvalidInput


def numbers() -> Iterator[int]:
    yield from range(3)


class Lazy(Sequence[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return [7, 8][index]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ([], []),
        ([1], [1]),
        ((1, (2, 3)), [1, (2, 3)]),
        (range(2), [0, 1]),
        (numbers, [0, 1, 2]),
        (numbers(), [0, 1, 2]),
        (Lazy(), [7, 8]),
        ({5}, [5]),
        (numpy.array([1, 2]), [1, 2]),
        ({"a": 1}.values(), [1]),
    ],
)
def test_any_iterable_gives_its_elements_as_they_are(source: Any, expected: list[Any]) -> None:
    found = list(iterate_items(source))
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected] or isinstance(
        source, numpy.ndarray
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("abc", r"not the string 'abc': for one item write \['abc'\]"),
        (b"abc", r"not the bytes b'abc'"),
        ({"a": 1}, "not a mapping"),
        (5, "not 5 of type int"),
        (None, "not None of type NoneType"),
        (numpy.float64(1), "of type float64"),
        (int, "of type type"),
        (lambda x: [x], "must be callable without arguments"),
        (lambda: 5, "not 5 of type int"),
    ],
)
def test_what_is_no_collection_of_items_is_refused(source: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        iterate_items(source)


def test_a_set_has_the_same_order_in_every_process() -> None:
    script = (
        "from airflow_provider_spotbatch.items import iterate_items\n"
        "print(list(iterate_items({'a', 'b', 'c', (1, 'x'), 4})))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1


def test_lines_are_read_without_their_ends_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffone\r\n\n  \ntwo words \nthrée".encode())
    expected = ["one", "two words ", "thrée"]
    assert list(iterate_items(Items.lines(str(path)))) == expected
    assert list(iterate_items(Items.lines(path.as_uri()))) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_lines_are_whole_wherever_a_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("one\r\n\ntwø\nthree\n".encode())
    monkeypatch.setattr("airflow_provider_spotbatch.items._READ_BYTES", size)
    assert list(Items.lines(str(path)).iterate()) == ["one", "twø", "three"]


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as reading an object and listing a folder need."""

    objects: ClassVar = {"in/rows.jsonl": b"[1]\n[2]\n", "in/a b.tif": b"", "in/sub/c.tif": b""}

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        key = unquote(path.removeprefix("/bucket").lstrip("/"))
        if "list-type" in query:
            prefix = parse_qs(query)["prefix"][0]
            entries = "".join(
                f"<Contents><Key>{name}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
                "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
                for name, data in sorted(self.objects.items())
                if name.startswith(prefix)
            )
            self._answer(200, f"<ListBucketResult>{entries}</ListBucketResult>".encode())
        elif key in self.objects:
            self._answer(200, self.objects[key])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def bucket() -> Iterator[dict[str, Any]]:
    """Settings that lead obstore to a bucket of our own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {
        "endpoint": f"http://127.0.0.1:{server.server_port}",
        "region": "us-east-1",
        "skip_signature": True,
        "client_options": {"allow_http": True},
    }
    server.shutdown()
    thread.join()
    server.server_close()


def test_objects_of_a_store_are_read_and_listed(bucket: dict[str, Any]) -> None:
    assert list(iterate_items(Items.jsonl("s3://bucket/in/rows.jsonl"), bucket)) == [[1], [2]]
    assert list(iterate_items(Items.listing("s3://bucket/in/*.tif"), bucket)) == ["s3://bucket/in/a b.tif"]
    assert list(iterate_items(Items.listing("s3://bucket/in/**.tif"), bucket)) == [
        "s3://bucket/in/a b.tif",
        "s3://bucket/in/sub/c.tif",
    ]
    with pytest.raises(InvalidInput, match=r"s3://bucket/in/gone: there is no such object"):
        list(iterate_items(Items.lines("s3://bucket/in/gone"), bucket))


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(InvalidInput, match=r"line 2 of .*names\.txt is not UTF-8"):
        list(Items.lines(str(path)).iterate())


def test_jsonl_gives_the_value_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[2]\n"x"\nnull\n')
    assert list(Items.jsonl(str(path)).iterate()) == [{"a": 1}, [2], "x", None]
    path.write_text('1\n{"a": \n')
    with pytest.raises(InvalidInput, match=r"line 2 of .*rows\.jsonl is no JSON value"):
        list(Items.jsonl(str(path)).iterate())


def test_a_listing_matches_names_below_a_folder(tmp_path: Path) -> None:
    for name in ("a/1.tif", "a/2.tif", "a/b/3.tif", "a/4.txt", "c1/5.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    def found(glob: str) -> list[str]:
        return [uri.removeprefix(f"{tmp_path}/") for uri in Items.listing(f"{tmp_path}/{glob}").iterate()]

    assert found("a/*.tif") == ["a/1.tif", "a/2.tif"]
    assert found("a/**/*.tif") == ["a/1.tif", "a/2.tif", "a/b/3.tif"]
    assert found("**.tif") == ["a/1.tif", "a/2.tif", "a/b/3.tif", "c1/5.tif"]
    assert found("c[0-9]/?.tif") == ["c1/5.tif"]
    assert found("a/[!1].tif") == ["a/2.tif"]
    assert found("none/*") == []
    uri = tmp_path.as_uri()
    assert list(Items.listing(f"{uri}/c1/*").iterate()) == [f"{uri}/c1/5.tif"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read from .*gone: No such file"):
        list(Items.lines(str(tmp_path / "gone")).iterate())
    with pytest.raises(InvalidInput, match=r"give /path, file:///path, s3://bucket/key"):
        list(Items.lines("ftp://host/x").iterate())


def test_items_are_rendered_into_a_copy_and_can_be_pickled() -> None:
    items = Items.lines("s3://bucket/{{ ds }}.txt")
    assert items.render(lambda text: text.replace("{{ ds }}", "2024-01-01")) == Items.lines(
        "s3://bucket/2024-01-01.txt"
    )
    assert pickle.loads(pickle.dumps(items)) == items


def test_a_million_lines_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    with open(path, "w") as file:
        file.writelines(f"s3://bucket/folder/object-{i:07d}\n" for i in range(1_000_000))
    lines = iterate_items(Items.lines(str(path)))
    tracemalloc.start()
    assert len(list(itertools.islice(lines, 10))) == 10
    tracemalloc.reset_peak()
    assert len(list(itertools.islice(lines, 50_000))) == 50_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20
    assert sum(1 for _ in lines) == 949_990
