"""The moto server, as a process of its own."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.cloud.cloudbox.child import Child
from tests.cloud.cloudbox.images import write_for_moto
from tests.cloud.cloudbox.needs import moto_server

START_SECONDS = 120
"""moto imports for some seconds, longer on a busy machine."""

ACCOUNT = "123456789012"
"""moto's own default."""


class Moto:
    """A fresh moto on a port of its own, and clients of it for the box's own use."""

    def __init__(self, folder: Path) -> None:
        program = moto_server()
        assert program is not None, "missing_needs() was asked"
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "moto.log"
        self.key_id = self.secret = "box"
        self._roles: dict[str, str] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        write_for_moto(folder / "images.json")
        self._child = Child(
            [str(program), "-H", "127.0.0.1", "-p", str(self.port)],
            self._log,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                "MOTO_AMIS_PATH": str(folder / "images.json"),
                "MOTO_ENABLE_AMI_VALIDATION": "true",
                "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
            },
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self._child.running:
                raise RuntimeError(f"moto ended at its start:\n{self._log.read_text()[-2000:]}")
            try:
                urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=5).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"moto was not there within {START_SECONDS} s:\n{self._log.read_text()[-2000:]}")

    def client(self, service: str, region: str) -> Any:
        """A boto3 client of moto itself, past the front."""
        import boto3
        from botocore.config import Config

        with self._lock:  # making clients is not safe in threads, using them is
            if (service, region) not in self._clients:
                self._clients[service, region] = boto3.session.Session().client(
                    service,
                    region_name=region,
                    endpoint_url=self.url,
                    aws_access_key_id=self.key_id,
                    aws_secret_access_key=self.secret,
                    config=Config(connect_timeout=10, read_timeout=60, max_pool_connections=32),
                )
            return self._clients[service, region]

    def make_owner(self) -> None:
        """A user who may do everything, and whose key the clients have from now on."""
        iam = self.client("iam", "us-east-1")
        iam.create_user(UserName="box")
        everything = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
        }
        iam.put_user_policy(UserName="box", PolicyName="all", PolicyDocument=json.dumps(everything))
        key = iam.create_access_key(UserName="box")["AccessKey"]
        with self._lock:
            self.key_id, self.secret = key["AccessKeyId"], key["SecretAccessKey"]
            self._clients.clear()

    def assume_role(self, role: str) -> dict[str, Any]:
        """Credentials of a machine with that role."""
        arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
        assumed = self.client("sts", "us-east-1").assume_role(RoleArn=arn, RoleSessionName="machine")
        credentials: dict[str, Any] = assumed["Credentials"]
        self._roles[credentials["AccessKeyId"]] = role
        return credentials

    def role_of(self, key_id: str) -> tuple[str, str] | None:
        """``("role", its name)`` where a key was given to a machine."""
        role = self._roles.get(key_id)
        return None if role is None else ("role", role)

    def close(self) -> None:
        self._child.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
