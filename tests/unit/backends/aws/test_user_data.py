from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.launch_template import USER_DATA_BYTES
from airflow_provider_spotbatch.backends.aws.user_data import user_data
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import Generation, Run, job_id

BOOT = Boot(
    backend="aws",
    store="s3://bucket/some/prefix",
    job=job_id("airflow", "a_rather_long_dag_id" * 3, "run", "task", 12),
    generation=3,
    run=4,
    key="c0ffee00" * 8,
    lifetime=86399.2,
    backend_options={"region": "eu-central-1", "endpoint_url": ""},
    store_options={"region": "eu-central-1"},
    archives={
        architecture: {
            part: f"{number}{index}" * 32 for index, part in enumerate(("agent", "packages", "interpreter"))
        }
        for number, architecture in enumerate(("x86_64", "arm64"))
    },
    python_version="3.12",
    setup="ab" * 32,
)


def orders(boot: Boot) -> dict[str, Any]:
    """What the script gives to the boot program."""
    packed = re.search(r"gzip -d >orders.json\n(.*?)\nEND\n", user_data(boot), re.DOTALL)
    assert packed is not None
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return found


def test_it_leaves_a_fifth_of_what_ec2_allows() -> None:
    assert len(user_data(BOOT).encode()) < 0.82 * USER_DATA_BYTES


def test_the_shell_reads_it() -> None:
    subprocess.run(["bash", "-n"], input=user_data(BOOT), text=True, check=True, timeout=30)


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    checked = subprocess.run(
        ["shellcheck", "-"], input=user_data(BOOT), text=True, capture_output=True, timeout=60
    )
    assert checked.stdout == ""


def test_the_timer_comes_before_anything_that_can_fail() -> None:
    lines = user_data(BOOT).splitlines()
    timer = lines.index("power_off_after 86400")
    for later in ("mkdir -m 755 /opt/spotbatch", "cd /opt/spotbatch || power_off_after 0"):
        assert lines.index(later) > timer
    assert any("per-boot/spotbatch" in line for line in lines[timer:])


def test_the_same_boot_data_gives_the_same_script() -> None:
    assert user_data(BOOT) == user_data(replace(BOOT))


def test_the_agent_is_told_what_the_fleet_was() -> None:
    assert Boot.from_text(json.dumps(orders(BOOT)["boot"])) == BOOT


def test_a_failed_boot_is_told_where_the_controller_looks_for_reports() -> None:
    told = orders(BOOT)["report"].replace("{instance}", "i-1")
    assert told == Run(Generation(BOOT.job, 3), 4).report("i-1")


@pytest.mark.parametrize(
    ("store", "options", "url"),
    [
        ("s3://bucket/a/b", {}, "https://bucket.s3.eu-central-1.amazonaws.com/a/b"),
        ("s3://bucket", {}, "https://bucket.s3.eu-central-1.amazonaws.com/"),
        ("s3://my.bucket/a", {}, "https://s3.eu-central-1.amazonaws.com/my.bucket/a"),
        ("s3://bucket/a", {"region": "cn-north-1"}, "https://bucket.s3.cn-north-1.amazonaws.com.cn/a"),
        ("s3://bucket/a", {"endpoint": "http://10.0.0.1:5000/"}, "http://10.0.0.1:5000/bucket/a"),
    ],
)
def test_the_store_is_where_s3_has_it(store: str, options: dict[str, str], url: str) -> None:
    boot = replace(BOOT, store=store, store_options={**BOOT.store_options, **options})
    assert orders(boot)["store"] == {"url": url, "region": boot.store_options["region"]}


def test_an_emulator_is_where_the_sdks_of_items_look_too() -> None:
    here = {"region": "eu-central-1", "endpoint_url": "http://10.0.0.1:5000"}
    assert orders(BOOT)["env"] == {"AWS_DEFAULT_REGION": "eu-central-1"}
    assert orders(replace(BOOT, backend_options=here))["env"] == {
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://10.0.0.1:5000",
        "AWS_ALLOW_HTTP": "true",
    }
