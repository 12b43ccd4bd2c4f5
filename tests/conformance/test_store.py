"""What this package relies on in an object store, whatever is behind it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from airflow_provider_spotbatch.backends.store import Store
from tests.conformance.place import Place


def opened(place: Place) -> Store:
    return place.backend.open_store()


class TestStore:
    def test_what_is_written_is_read(self, place: Place) -> None:
        async def main() -> None:
            await opened(place).write("jobs/a/b", bytes(range(256)))
            assert await opened(place).read("jobs/a/b") == bytes(range(256))
            await opened(place).write("jobs/a/b", b"")
            assert await opened(place).read("jobs/a/b") == b""

        asyncio.run(main())

    def test_a_file_is_uploaded_and_replaces_what_was_there(self, place: Place, tmp_path: Path) -> None:
        data = bytes(range(256)) * 2**17  # 32 MB: more than one part

        async def main() -> None:
            (tmp_path / "large").write_bytes(data)
            await opened(place).write("blobs/a", b"before")
            await opened(place).upload("blobs/a", tmp_path / "large")
            assert await opened(place).read("blobs/a") == data

        asyncio.run(main())

    def test_what_is_not_there_is_none(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            assert await store.read("no/such") is None
            assert await store.read_range("no/such", 0, 1) is None
            assert not await store.exists("no/such")
            assert await store.list_objects("no") == []

        asyncio.run(main())

    def test_of_many_creates_at_once_one_succeeds(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            told = await asyncio.gather(*(store.create("one", str(n).encode()) for n in range(20)))
            assert told.count(True) == 1
            assert await store.read("one") == str(told.index(True)).encode()
            assert not await opened(place).create("one", b"late")

        asyncio.run(main())

    def test_an_object_is_there_as_soon_as_it_is_created(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            for number in range(20):
                name = f"results/{number:04d}"
                assert await store.create(name, b"x")
                assert await store.exists(name)
                assert [o.name for o in await store.list_objects("results")][-1] == name

        asyncio.run(main())

    def test_a_range_is_read_alone(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            await store.write("part", b"0123456789")
            assert await store.read_range("part", 2, 5) == b"234"
            assert await store.read_range("part", 9, 10) == b"9"
            assert await store.read_range("part", 4, 4) == b""

        asyncio.run(main())

    def test_listings_are_ordered_and_continue_after_a_name(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            names = [f"run/{number:05d}" for number in (10, 2, 33, 4, 1)]
            for name in [*names, "run-of-others/1", "rum/1"]:
                await store.write(name, b"abc")
            found = await store.list_objects("run")
            assert [o.name for o in found] == sorted(names)
            assert {o.size for o in found} == {3}
            after = await store.list_objects("run", after="run/00004")
            assert [o.name for o in after] == ["run/00010", "run/00033"]
            assert await store.list_objects("run", after="run/00033") == []

        asyncio.run(main())

    def test_listings_reach_into_folders(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            for name in ("a/b/c/d", "a/x"):
                await store.write(name, b"")
            assert [o.name for o in await store.list_objects("a")] == ["a/b/c/d", "a/x"]
            assert [o.name for o in await store.list_objects("a/b/c")] == ["a/b/c/d"]

        asyncio.run(main())

    def test_folders_are_listed_without_what_is_below_them(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            for name in ("a/b/c/d", "a/e/f", "a/x", "ab/y"):
                await store.write(name, b"")
            assert await store.list_folders("a") == ["a/b", "a/e"]
            assert await store.list_folders("a/b/c") == []
            assert await store.list_folders("no") == []

        asyncio.run(main())

    def test_a_rewrite_with_other_bytes_changes_the_tag(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            tags = set()
            for number in range(5):
                await store.write("report", f"as long as the others: {number}".encode())
                [entry] = await store.list_objects("")
                tags.add(entry.tag)
            assert len(tags) == 5

        asyncio.run(main())

    def test_times_are_of_the_store(self, place: Place) -> None:
        async def main() -> None:
            await opened(place).write("now", b"")
            [entry] = await opened(place).list_objects("")
            assert abs(entry.modified - time.time()) < 60

        asyncio.run(main())

    def test_deleting_is_harmless_for_what_is_not_there(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            await store.write("a", b"1")
            await store.delete(["a", "never-was"])
            await store.delete(["a"])
            assert not await store.exists("a")
            assert await store.create("a", b"2")

        asyncio.run(main())

    def test_deleting_many_at_once_leaves_none(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            names = [f"many/{number}" for number in range(1200)]
            await asyncio.gather(*(store.write(name, b"") for name in names[::2]))
            await store.write("kept", b"")
            await store.delete(names)
            assert [o.name for o in await store.list_objects("")] == ["kept"]

        asyncio.run(main())

    def test_a_long_listing_comes_in_pages(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            names = {f"long/{number % 7}/{number}" for number in range(1200)}
            await asyncio.gather(*(store.write(name, b"x") for name in [*names, "longer/1"]))
            pages = [page async for page in store.pages("long")]
            assert len(pages) > 1
            assert sorted(entry.name for page in pages for entry in page) == sorted(names)
            assert {entry.size for page in pages for entry in page} == {1}
            assert [page async for page in store.pages("no/such")] == []

        asyncio.run(main())

    def test_an_object_is_found_as_a_listing_shows_it(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            await store.write("folder/one", b"abc")
            assert [await store.find("folder/one")] == await store.list_objects("folder")
            assert await store.find("folder/two") is None

        asyncio.run(main())

    def test_a_folder_is_gone_with_its_last_object(self, place: Place) -> None:
        async def main() -> None:
            store = opened(place)
            for name in ("a/b/c", "a/d/e/f"):
                await store.write(name, b"")
            await store.delete(["a/d/e/f"])
            assert await store.list_folders("a") == ["a/b"]

        asyncio.run(main())
