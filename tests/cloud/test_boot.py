"""Machines of the box boot the user data that the backend makes: what the agent finds, and every way in
which a boot can fail. A stand-in plays the agent; whole jobs are in test_jobs.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.backends.aws.user_data import user_data
from airflow_provider_spotbatch.environment.deterministic_tar import pack_folder
from airflow_provider_spotbatch.job.boot import Boot
from airflow_provider_spotbatch.job.keys import blob
from airflow_provider_spotbatch.job.report import Report
from tests.cloud.cloudbox.account import Account, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.images import ARCHITECTURE, DEBIAN_12, DEBIAN_13, Image
from tests.cloud.cloudbox.roots import root_of
from tests.support.machine_archives import agent_archive, archive

PYTHON = {DEBIAN_12: "3.11", DEBIAN_13: "3.13"}

LOOKS_AROUND = """
import json, os, sys
boot = json.load(sys.stdin)
print("FOUND", json.dumps({
    "boot": boot,
    "python": sys.version.split()[0],
    "uid": os.getuid(),
    "groups": os.getgroups(),
    "home": oct(os.stat(os.environ["HOME"]).st_mode & 0o777),
    "files": [name for name in os.listdir("/opt/spotbatch")],
    "region": os.environ["AWS_DEFAULT_REGION"],
    "readable": [path for path in ("/opt/spotbatch/boot.log", "/var/lib/cloud/instance/scripts/part-001")
        if os.access(path, os.R_OK)],
}), flush=True)
sys.exit(7)
"""

ENDS = "import sys; sys.exit(0)"
LIVES_ON = "import time; print('the agent is up', flush=True); time.sleep(600)"
CRASHES_WHEN_TOLD = """
import os, time
while not os.path.exists("/tmp/crash"): time.sleep(0.05)
os.abort()
"""


class Boots:
    """Machines that boot, and what is left of it in the store."""

    def __init__(self, box: Cloudbox, account: Account) -> None:
        self._box = box
        self._account = account
        self.boot = Boot(
            backend="aws",
            store=f"s3://{account.bucket}/boots",
            job=f"job-{time.monotonic_ns()}",
            generation=1,
            run=2,
            key="ab" * 32,
            launch=3,
            slots=4,
            lifetime=300.0,
            backend_options={"region": box.region, "endpoint_url": box.endpoint_url},
            store_options={"region": box.region, "endpoint": box.endpoint_url},
        )

    def keep(self, data: bytes) -> str:
        """Store a blob; its name."""
        name = hashlib.sha256(data).hexdigest()
        self.put(blob(name), data)
        return name

    def put(self, name: str, data: bytes) -> None:
        self._box.client("s3").put_object(Bucket=self._account.bucket, Key=f"boots/{name}", Body=data)

    def machine(
        self,
        program: str = LOOKS_AROUND,
        image: Image = DEBIAN_12,
        *,
        parts: dict[str, str] | None = None,
        profile: bool = True,
        first: str = "",
        **boot: Any,
    ) -> str:
        """A machine whose agent is ``program``; ``parts`` are added to those of its
        archives; ``first`` is run before all that the product does."""
        python = boot.pop("python_version", PYTHON[image])
        archives = {"agent": self.keep(agent_archive(program, python)), **(parts or {})}
        told = replace(self.boot, **{"archives": {ARCHITECTURE: archives}, "python_version": python, **boot})
        given = {"IamInstanceProfile": {"Name": self._account.instance_profile}} if profile else {}
        run = self._box.client("ec2").run_instances(
            ImageId=image.id,
            InstanceType="m5.large",
            MinCount=1,
            MaxCount=1,
            UserData=user_data(told).replace("\n", "\n" + first, 1),
            InstanceInitiatedShutdownBehavior="terminate",
            **given,
        )
        instance: str = run["Instances"][0]["InstanceId"]
        return instance

    def report(self, instance: str) -> Report | None:
        """The machine's report, once it has ended."""
        shown = self._box.wait_until_state(instance, "terminated")
        assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
        s3 = self._box.client("s3")
        try:
            found = s3.get_object(Bucket=self._account.bucket, Key=f"boots/{self.name(instance)}")
        except s3.exceptions.NoSuchKey:
            return None
        return Report.from_bytes(found["Body"].read())

    def name(self, instance: str) -> str:
        return self.boot.of_run.report(instance)

    def failure(self, instance: str) -> Report:
        report = self.report(instance)
        assert report is not None, "it told nothing"
        assert (report.instance, report.launch, report.slots, report.state) == (instance, 3, 4, "ended")
        return report


@pytest.fixture(scope="session")
def boot_account(running_box: Cloudbox) -> Account:
    return make_account(running_box, "boot-tests")


@pytest.fixture
def boots(box: Cloudbox, boot_account: Account) -> Boots:
    return Boots(box, boot_account)


class TestTheAgent:
    @pytest.mark.parametrize("image", [DEBIAN_12, DEBIAN_13], ids=lambda image: image.suite)
    def test_it_runs_unprivileged_in_a_private_folder(self, boots: Boots, image: Image) -> None:
        instance = boots.machine(image=image)
        report = boots.failure(instance)
        assert report.reason == "the agent ended with exit code 7"
        [line] = [line for line in report.boot_log.splitlines() if line.startswith("FOUND ")]
        found = json.loads(line.removeprefix("FOUND "))
        assert found["python"].startswith(PYTHON[image])
        assert found["uid"] > 0
        assert 0 not in found["groups"]
        assert found["home"] == "0o700"
        assert found["region"] == boots.boot.backend_options["region"]
        assert "orders.json" not in found["files"]
        assert found["readable"] == []
        told = Boot.from_text(json.dumps(found["boot"]))
        assert (told.instance, told.key) == (instance, boots.boot.key)
        assert told.python == "/opt/spotbatch/packages/bin/python"

    def test_the_machine_ends_with_it(self, boots: Boots) -> None:
        assert boots.report(boots.machine(ENDS)) is None

    def test_one_that_crashes_keeps_what_it_said_of_its_chunks(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(CRASHES_WHEN_TOLD)
        said = Report(instance, 3, 0, 4, 17, "running", held=("0001-0000002-00003",), items_ok=5)
        boots.put(boots.name(instance), said.to_bytes())
        box.run(instance, ["touch", "/tmp/crash"])
        reason = "the agent ended with signal 6"
        assert boots.failure(instance) == replace(said, sequence=18, state="ended", reason=reason)

    def test_what_it_said_of_its_own_end_stands(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(CRASHES_WHEN_TOLD)
        said = Report(instance, 3, 0, 4, 17, "ended", reason="the function cannot be loaded")
        boots.put(boots.name(instance), said.to_bytes())
        box.run(instance, ["touch", "/tmp/crash"])
        assert boots.failure(instance) == said

    def test_an_interpreter_is_sent_where_the_image_has_another(self, boots: Boots, tmp_path: Path) -> None:
        root = root_of("bookworm") / "usr"
        (tmp_path / "content/bin").mkdir(parents=True)
        shutil.copy2(root / "bin/python3.11", tmp_path / "content/bin")
        shutil.copytree(root / "lib/python3.11", tmp_path / "content/lib/python3.11", symlinks=True)
        pack_folder(str(tmp_path / "content"), str(tmp_path / "packed"))
        sent = {"interpreter": boots.keep((tmp_path / "packed").read_bytes())}
        report = boots.failure(boots.machine(image=DEBIAN_13, python_version="3.11", parts=sent))
        assert '"python": "3.11' in report.boot_log


COMMANDS = {
    "bash": "bash sh",
    "coreutils": "base64 cat chmod mkdir sleep",
    "gzip": "gzip",
    "passwd, in Amazon Linux shadow-utils": "useradd",
    "python3": "python3 python3.11",
    "systemd": "poweroff shutdown systemctl",
    "util-linux": "setsid",
}
"""All that a boot may call, by the package that has it in every stock image."""

PACKAGE_TOOLS = "apt apt-get dnf dpkg pip rpm snap yum"

STRIPPED = f"""
python3 - <<'STRIP'
import os
kept = set("{" ".join(COMMANDS.values())}".split())
for folder in ("/usr/bin", "/usr/sbin"):
    for name in set(os.listdir(folder)) - kept:
        os.unlink(f"{{folder}}/{{name}}")
for name in "{PACKAGE_TOOLS}".split():
    with open(f"/usr/bin/{{name}}", "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as stub:
        stub.write(f"#!/bin/bash\\necho {{name}} was called >>/called\\n")
STRIP
"""


class TestOtherImages:
    """Images whose root is not at hand here: what a boot needs of one is what all of them have."""

    def test_a_boot_needs_few_commands_and_no_package_tool(self, boots: Boots) -> None:
        tells = "import os, sys; sys.exit(5 if os.path.exists('/called') else 6)"
        report = boots.failure(boots.machine(tells, first=STRIPPED))
        assert report.reason == "the agent ended with exit code 6", report.boot_log

    def test_a_stub_that_is_called_tells_it(self, boots: Boots) -> None:
        """So that the test above can fail."""
        setup = boots.keep(b"dnf install something\n")
        tells = "import os, sys; sys.exit(5 if os.path.exists('/called') else 6)"
        report = boots.failure(boots.machine(tells, first=STRIPPED, setup=setup))
        assert report.reason == "the agent ended with exit code 5", report.boot_log

    def test_an_image_without_python_says_so_on_its_console(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(first="rm /usr/bin/python3\n")
        box.wait_until_state(instance, "terminated")
        assert "python3: command not found" in box.console(instance)


class TestItsEnd:
    def test_the_timer_ends_a_machine_whose_agent_hangs(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(LIVES_ON, lifetime=4.0)
        box.wait_until_state(instance, "terminated", seconds=30)

    def test_the_timer_outlives_all_that_can_be_killed(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(LIVES_ON, lifetime=8.0)
        box.wait_until(lambda: up(box, instance))
        stop = "for pid in $(pgrep -f 'boot_[p]rogram|spotbatch.[a]gent'); do kill -STOP $pid; done"
        box.run(instance, ["bash", "-c", stop])
        box.wait_until_state(instance, "terminated", seconds=30)

    def test_it_ends_with_its_boot_program(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(LIVES_ON)
        box.wait_until(lambda: up(box, instance))
        box.run(instance, ["pkill", "-KILL", "-f", "^python3 -I boot_program.py"])
        box.wait_until_state(instance, "terminated", seconds=30)

    def test_a_second_boot_powers_off(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(LIVES_ON)
        box.wait_until(lambda: up(box, instance))
        box.reboot(instance)
        box.wait_until_state(instance, "terminated", seconds=30)


def up(box: Cloudbox, instance: str) -> bool:
    return "the agent is up" in box.run(instance, ["cat", "/opt/spotbatch/boot.log"]).stdout


class TestFailures:
    def test_a_missing_blob(self, boots: Boots) -> None:
        report = boots.failure(boots.machine(parts={"packages": "0" * 64}))
        assert report.reason == f"blobs/{'0' * 64} is missing in the store: clear the task to submit it again"
        assert report.reason in report.boot_log

    def test_a_blob_that_was_changed(self, boots: Boots) -> None:
        name = boots.keep(b"before")
        boots.put(blob(name), b"after")
        report = boots.failure(boots.machine(parts={"packages": name}))
        assert "was changed after it was written" in report.reason

    def test_a_setup_script_that_fails(self, boots: Boots) -> None:
        script = boots.keep(b"echo to be seen\nid -u\nfalse\necho never\n")
        report = boots.failure(boots.machine(setup=script))
        assert report.reason == "environment.setup failed with exit code 1"
        assert "to be seen\n0\n" in report.boot_log
        assert "never" not in report.boot_log

    def test_a_setup_script_runs_before_the_agent(self, boots: Boots) -> None:
        script = boots.keep(b"#!/usr/bin/python3\nopen('/etc/made-by-setup', 'w').write('x')\n")
        sees = "import os, sys; sys.exit(3 if os.path.exists('/etc/made-by-setup') else 4)"
        assert boots.failure(boots.machine(sees, setup=script)).reason == "the agent ended with exit code 3"

    def test_a_full_disk(self, boots: Boots) -> None:
        large = boots.keep(archive({"large": os.urandom(10**6)}))
        small_disk = "mount -t tmpfs -o size=500k tmpfs /opt\n"
        report = boots.failure(boots.machine(parts={"packages": large}, first=small_disk))
        assert report.reason == "the disk is full: ask for more in item_resources.disk_gb"
        assert report.reason in report.boot_log

    def test_no_python_for_the_environment(self, boots: Boots) -> None:
        report = boots.failure(boots.machine(python_version="3.12"))
        assert "the image has no Python 3.12 (its own is 3.11" in report.reason
        assert "uv python install 3.12" in report.reason

    def test_an_interpreter_that_does_not_run_there(self, boots: Boots) -> None:
        broken = archive(
            {"bin/python3.12": b"#!/bin/sh\necho no such library >&2; exit 1\n"}, executable=True
        )
        report = boots.failure(
            boots.machine(python_version="3.12", parts={"interpreter": boots.keep(broken)})
        )
        assert report.reason == "the interpreter that was sent does not run on this image: no such library"

    def test_no_environment_for_the_architecture(self, boots: Boots) -> None:
        report = boots.failure(boots.machine(archives={"riscv": {}}))
        assert "only for riscv: limit item_resources.architectures" in report.reason

    def test_a_bucket_that_is_not_there(self, box: Cloudbox, boots: Boots) -> None:
        """Nothing can be told in the store: the console has it."""
        instance = boots.machine(store="s3://nobodys-bucket/x")
        box.wait_until_state(instance, "terminated")
        assert "NoSuchBucket" in box.console(instance)
        assert "the reason cannot be told in the store" in box.console(instance)

    def test_a_store_that_cannot_be_reached(self, box: Cloudbox, boots: Boots) -> None:
        closed = {"region": box.region, "endpoint": box.endpoint_url.rsplit(":", 1)[0] + ":9"}
        instance = boots.machine(store_options=closed)
        box.wait_until_state(instance, "terminated", seconds=110)
        assert "Machines need a route to S3" in box.console(instance)

    def test_a_machine_without_a_role(self, box: Cloudbox, boots: Boots) -> None:
        instance = boots.machine(profile=False)
        box.wait_until_state(instance, "terminated", seconds=110)
        assert "the machine has no instance profile" in box.console(instance)
