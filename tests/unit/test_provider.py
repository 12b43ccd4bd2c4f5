from __future__ import annotations

import importlib.metadata
import json
import os
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import jsonschema
import pytest
from airflow.providers.common.compat.sdk import conf

from airflow_provider_spotbatch import __version__, get_provider_info
from airflow_provider_spotbatch.hooks import SpotBatchHook

DISTRIBUTION = "airflow-provider-spotbatch"
INFO = get_provider_info()
AIRFLOW = tuple(map(int, importlib.metadata.version("apache-airflow-core").split(".")[:2]))


def installed() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_distribution = pytest.mark.skipif(
    not installed() and "CI" not in os.environ, reason="the distribution is not installed"
)


def test_it_follows_airflows_own_schema() -> None:
    schema: dict[str, Any] = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_the_package_name_is_the_distributions() -> None:
    assert INFO["package-name"] == DISTRIBUTION


def test_every_module_and_class_it_names_can_be_imported() -> None:
    for kind in ("operators", "hooks", "triggers"):
        for entry in INFO[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for decorator in INFO["task-decorators"]:
        assert callable(resolve_name(decorator["class-name"]))
    for connection in INFO["connection-types"]:
        assert resolve_name(connection["hook-class-name"]) is SpotBatchHook


def test_the_connection_type_is_the_hooks() -> None:
    (connection,) = INFO["connection-types"]
    assert (connection["connection-type"], connection["hook-name"]) == (
        SpotBatchHook.conn_type,
        SpotBatchHook.hook_name,
    )


def test_an_option_that_is_not_set_has_its_documented_default() -> None:
    options = INFO["config"]["spotbatch"]["options"]
    assert {name: option["default"] for name, option in options.items()} == {
        "deployment": "",
        "deferrable": "True",
        "local_fallback": "True",
    }
    assert conf.getboolean("spotbatch", "deferrable", fallback=True)


def hooks() -> Any:
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as Manager
    except ImportError:  # before Airflow 3.2
        from airflow.providers_manager import ProvidersManager as Manager
    return Manager().hooks


@needs_distribution
def test_airflow_discovers_it() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk import task

    manager = ProvidersManager()
    assert manager.providers[DISTRIBUTION].version == __version__
    assert callable(task.spot)
    assert callable(task.spot_map)
    assert hooks()["spotbatch"].hook_name == "SpotBatch"
    if AIRFLOW >= (3, 2):  # before, Airflow makes the form where Flask-AppBuilder is installed
        assert "extra__spotbatch__backend" in manager.connection_form_widgets


@needs_distribution
def test_airflow_loads_the_plugin() -> None:
    from airflow import plugins_manager

    load = getattr(plugins_manager, "_get_plugins", None) or plugins_manager.ensure_plugins_loaded
    loaded = load() or (plugins_manager.plugins,)
    assert "spotbatch" in [plugin.name for plugin in loaded[0]]
