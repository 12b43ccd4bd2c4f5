"""Unpack an archive and pack it anew in parts, as one does with a dump of Wikipedia: bzip2 in, gzip out.

The archive is a bzip2 multistream: members packed one after another, with an index of where each one
begins (``offset:number:title``, a line for each page). Any range of whole members can be unpacked alone,
so the items are byte ranges: a machine fetches its own range with one request, and the parts that it
packed make up a valid gzip file when they are joined in order.

Your own data: run it with ``{"folder": "s3://bucket/dump"}`` (or ``gs://…``, ``file:///…``) where a dump
and its index lie, without ``make_archive``. Nothing else changes: obstore reads ranges of an object on S3
as it does of a file, with the rights of the machine. Give an item some tens of MB by ``members``.
"""

from __future__ import annotations

import bz2
import gzip
import tempfile
from typing import Any
from urllib.parse import urlsplit

import obstore
from airflow.sdk import dag, task
from obstore.store import ObjectStore, from_url

FOLDER = "{{ params.folder }}"
ARCHIVE = f"{FOLDER}/pages.xml.bz2"
INDEX = f"{FOLDER}/pages-index.txt"
REPACKED = f"{FOLDER}/articles.xml.gz"
PAGE_END = "</page>\n"


def locate(uri: str) -> tuple[ObjectStore, str]:
    """The bucket of a URI, or the machine's file system, and the name in it."""
    parts = urlsplit(uri)
    return from_url(f"{parts.scheme}://{parts.netloc}/"), parts.path.lstrip("/")


def page(number: int) -> str:
    """Every fourth is a redirect to another one."""
    text = " ".join([f"word {number}"] * 50) if number % 4 else "<redirect/>"
    return f"<page>{text}{PAGE_END}"


@task
def make_archive(archive: str, index: str, pages: int = 200, pages_in_member: int = 10) -> None:
    """Stands for the download of a dump."""
    members: list[bytes] = []
    lines: list[str] = []
    for first in range(0, pages, pages_in_member):
        numbers = range(first, min(first + pages_in_member, pages))
        offset = sum(map(len, members))
        lines += [f"{offset}:{number}:Page {number}\n" for number in numbers]
        members.append(bz2.compress("".join(map(page, numbers)).encode()))
    obstore.put(*locate(archive), b"".join(members))
    obstore.put(*locate(index), "".join(lines).encode())


@task
def list_ranges(archive: str, index: str, members: int = 4) -> list[list[int]]:
    """First byte and end of every so many whole members."""
    lines = bytes(obstore.get(*locate(index)).bytes()).decode().splitlines()
    offsets = sorted({int(line.split(":", 1)[0]) for line in lines})
    starts = offsets[::members]
    ends = [*starts[1:], obstore.head(*locate(archive))["size"]]
    return [[start, end] for start, end in zip(starts, ends, strict=True)]


@task.spot_map(item_retries=2)
def repack(span: list[int], *, archive: str) -> dict[str, Any]:
    """One range: fetched, unpacked, filtered, packed. Runs on whatever machine the connection leads to."""
    start, end = span
    packed = obstore.get_range(*locate(archive), start=start, end=end)
    pages = bz2.decompress(packed).decode().split(PAGE_END)[:-1]
    articles = [page for page in pages if "<redirect/>" not in page]
    print(f"bytes {start:,} to {end:,}: {len(articles)} articles of {len(pages)} pages")
    text = "".join(page + PAGE_END for page in articles)
    return {
        "gzip": gzip.compress(text.encode(), mtime=0),
        "articles": len(articles),
        "words": len(text.split()),
    }


@task
def join(parts: Any, repacked: str) -> dict[str, int]:
    """The parts one after another, each read from the store when its turn has come."""
    totals = {"articles": 0, "words": 0}
    with obstore.open_writer(*locate(repacked)) as archive:
        for part in parts:
            archive.write(part["gzip"])
            for name in totals:
                totals[name] += part[name]
    print(f"{repacked}: {totals['articles']:,} articles, {totals['words']:,} words")
    return totals


@dag(
    schedule=None,
    catchup=False,
    tags=["example"],
    params={"folder": f"file://{tempfile.gettempdir()}/spotbatch/archive_chunks"},
)
def archive_chunks() -> None:
    ranges = list_ranges(ARCHIVE, INDEX)
    make_archive(ARCHIVE, INDEX) >> ranges
    join(repack(ranges, archive=ARCHIVE), REPACKED)


archive_chunks()
