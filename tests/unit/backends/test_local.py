from __future__ import annotations

import asyncio
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.base import Offer
from airflow_provider_spotbatch.backends.local import LocalBackend, local_key, local_root
from airflow_provider_spotbatch.backends.settings import Settings
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.resources import Resources


def backend(path: Path, **rest: Any) -> LocalBackend:
    options = {"path": str(path), **rest.pop("options", {})}
    return LocalBackend(Settings("mine", "local", b"k", options=options, **rest))


def offer(place: LocalBackend, concurrency: int, **resources: Any) -> Offer:
    [only] = asyncio.run(place.offers(Resources(**resources), Policy(), concurrency))
    return only


class TestRoot:
    def test_it_is_the_connections_path(self, tmp_path: Path) -> None:
        assert local_root(str(tmp_path)) == str(tmp_path)
        assert local_root("~/x") == os.path.expanduser("~/x")

    def test_without_one_it_is_below_the_home_of_airflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
        assert local_root(None) == "/srv/airflow/spotbatch"
        monkeypatch.delenv("AIRFLOW_HOME")
        assert local_root(None) == os.path.expanduser("~/airflow/spotbatch")

    def test_the_store_is_below_it_unless_the_connection_names_another(self, tmp_path: Path) -> None:
        assert backend(tmp_path).store_uri == f"file://{tmp_path}/store"
        assert backend(tmp_path, store="s3://bucket/x").store_uri == "s3://bucket/x"

    def test_opening_the_backend_touches_nothing(self, tmp_path: Path) -> None:
        backend(tmp_path / "root")
        assert not (tmp_path / "root").exists()


class TestKey:
    def test_it_is_made_once_and_private(self, tmp_path: Path) -> None:
        root = str(tmp_path / "root")
        key = local_key(root)
        assert len(key) == 32
        assert local_key(root) == key
        assert Path(root, "key").stat().st_mode & 0o777 == 0o600
        assert Path(root).stat().st_mode & 0o777 == 0o700
        assert os.listdir(root) == ["key"]

    def test_all_who_ask_at_once_get_the_same(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(local_key, [str(tmp_path)] * 32))) == 1

    def test_a_damaged_key_is_never_replaced_in_silence(self, tmp_path: Path) -> None:
        (tmp_path / "key").write_text("half a k")
        with pytest.raises(InvalidInput, match="holds no key"):
            local_key(str(tmp_path))

    def test_a_path_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidInput, match="file/root, which cannot be made: Not a directory"):
            local_key(str(tmp_path / "file" / "root"))


class TestOffers:
    @pytest.mark.parametrize(
        ("concurrency", "instances", "slots", "most"),
        [(1, 2, 1, 1), (2, 2, 1, 2), (3, 2, 2, 2), (8, 2, 4, 2), (4, 3, 2, 2), (5, 1, 5, 1), (2, 9, 1, 2)],
    )
    def test_the_work_is_spread_over_the_instances(
        self, tmp_path: Path, concurrency: int, instances: int, slots: int, most: int
    ) -> None:
        got = offer(backend(tmp_path, options={"instances": instances}), concurrency)
        assert (got.slots, got.most) == (slots, most)

    def test_the_connections_limit_holds(self, tmp_path: Path) -> None:
        assert offer(backend(tmp_path, max_instances=1), 8).most == 1

    @pytest.mark.parametrize("instances", [0, -1, 1.5, "2", True])
    def test_a_wrong_number_of_instances_is_refused(self, tmp_path: Path, instances: Any) -> None:
        with pytest.raises(InvalidInput, match="'instances' of the connection 'mine'"):
            backend(tmp_path, options={"instances": instances})

    @pytest.mark.parametrize(
        ("resources", "says"),
        [
            ({"cpus": 4096}, "cpus=4096.*this machine, which has [0-9]+ CPUs"),
            ({"memory_gb": 1e6}, "memory_gb=1e.06.*which has [0-9.]+ GB of memory"),
            ({"disk_gb": 1e9}, "disk_gb=1e.09.*which has [0-9.]+ GB of free disk"),
            ({"gpus": 1}, "has none to give"),
            ({"instance_types": ("c7i.large",)}, "names machine types of a cloud"),
        ],
    )
    def test_what_this_machine_cannot_give_is_refused(
        self, tmp_path: Path, resources: Any, says: str
    ) -> None:
        with pytest.raises(InvalidInput, match=says):
            offer(backend(tmp_path), 1, **resources)

    def test_only_this_machines_architecture_fits(self, tmp_path: Path) -> None:
        own, other = ("arm64", "x86_64") if platform.machine() == "aarch64" else ("x86_64", "arm64")
        assert offer(backend(tmp_path), 1, architectures=(own,)).slots == 1
        with pytest.raises(InvalidInput, match=f"asks for {other}; this machine is {own}"):
            offer(backend(tmp_path), 1, architectures=(other,))

    def test_as_many_items_run_as_have_their_cores_and_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
        place = backend(tmp_path)
        small = {"memory_gb": 0.01}
        assert place.default_concurrency(Resources(**small), 100) == 8
        assert place.default_concurrency(Resources(cpus=3, **small), 100) == 2
        assert place.default_concurrency(Resources(cpus=0.5, **small), 100) == 16
        assert place.default_concurrency(Resources(**small), 3) == 3
        assert place.default_concurrency(Resources(cpus=9, **small), 100) == 1
        assert place.default_concurrency(Resources(memory_gb=1e6), 100) == 1


def test_other_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidInput, match="needs Linux"):
        backend(tmp_path)


def test_who_may_continue_depends_on_machine_namespace_and_store(tmp_path: Path) -> None:
    identity = backend(tmp_path).continues_elsewhere()
    assert identity == backend(tmp_path).continues_elsewhere()
    assert identity != backend(tmp_path / "other").continues_elsewhere()
    assert identity is not None
    assert os.readlink("/proc/self/ns/pid") in identity
