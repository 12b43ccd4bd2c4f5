from __future__ import annotations

import json
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from airflow_provider_spotbatch.environment.installed import (
    installed_requirement,
    installed_versions,
    requirements_of_modules,
)
from airflow_provider_spotbatch.job.errors import InvalidInput


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, *files: str, url: str | None = None) -> None:
    info = site / f"{name.replace('-', '_')}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))


def test_modules_are_traced_to_their_distributions_at_their_versions(site: Path) -> None:
    install(site, "Acme.Shapes", "acme_shapes/__init__.py")
    assert requirements_of_modules(["acme_shapes.round", "json"]) == ("acme-shapes==2.5",)


def test_a_module_in_one_file_is_traced_too(site: Path) -> None:
    install(site, "corp-quick", f"corp_quick{EXTENSION_SUFFIXES[0]}")
    install(site, "corp-plain", "corp_plain.py")
    assert requirements_of_modules(["corp_quick", "corp_plain"]) == ("corp-plain==2.5", "corp-quick==2.5")


def test_a_distribution_that_declares_its_packages_is_believed(site: Path) -> None:
    install(site, "corp-maps", "corp_maps/__init__.py", "build_tool.py")
    (site / "corp_maps-2.5.dist-info" / "top_level.txt").write_text("corp_maps\n")
    assert requirements_of_modules(["corp_maps", "build_tool"]) == ("corp-maps==2.5",)


def test_distributions_of_one_namespace_are_told_apart(site: Path) -> None:
    install(site, "corp-storage", "corpns/storage/__init__.py")
    install(site, "corp-queue", "corpns/queue.py")
    assert requirements_of_modules(["corpns.queue"]) == ("corp-queue==2.5",)
    assert requirements_of_modules(["corpns.storage.blobs", "corpns.storage"]) == ("corp-storage==2.5",)


def test_airflow_and_this_package_are_never_asked_for() -> None:
    assert requirements_of_modules(["airflow.sdk", "airflow_provider_spotbatch.job"]) == ()


def test_what_was_installed_from_a_folder_is_built_from_it(site: Path) -> None:
    install(site, "corp-own", "corp_own.py", url="file:///src/own")
    assert installed_requirement("corp-own") == "corp-own @ file:///src/own"


def test_what_is_not_installed_is_told() -> None:
    with pytest.raises(InvalidInput, match="pip install spotbatch-nowhere"):
        installed_requirement("spotbatch-nowhere")


def test_constraints_name_every_version_that_is_here() -> None:
    assert f"cloudpickle=={metadata.version('cloudpickle')}" in installed_versions()
