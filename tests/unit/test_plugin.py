from __future__ import annotations

import subprocess
import sys

from airflow_provider_spotbatch.plugin import SpotBatchPlugin


def test_its_name_is_the_entry_point_s() -> None:
    assert SpotBatchPlugin.name == "spotbatch"


def test_a_process_that_loads_only_the_plugin_can_read_a_result_from_an_xcom() -> None:
    code = """
import sys
try:
    from airflow.sdk import serde
except ImportError:  # before Airflow 3.2
    from airflow.serialization import serde
from airflow_provider_spotbatch.plugin import SpotBatchPlugin
SpotBatchPlugin.on_load()
assert "obstore" not in sys.modules, "the plugin loads the store's library"
data = dict(conn_id="c", job="j", generation=1, run=1, uri="file:///s", items=3, ok=3, failed=0, causes={},
            duration=1.0, cost_usd=None)
stored = {"__classname__": "airflow_provider_spotbatch.results.MapResult", "__version__": 1, "__data__": data}
print(len(serde.deserialize(stored)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["3"], done.stderr
