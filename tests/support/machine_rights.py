"""An item that tells what it finds on its machine, what it can reach, and what its machine's role lets it do.

Items run as the machine's user, with the credentials that the metadata service gives to all who ask on the
machine: what user code may do in the account is what the role may do.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ELSEWHERE = {
    "the internet, by name": ("www.python.org", 443),
    "the internet": ("1.1.1.1", 443),
    "a name server": ("8.8.8.8", 53),
    "another network of the provider's": ("10.0.0.2", 53),
}
SECONDS = 3.0

VERSIONS = {"ec2": "2016-11-15", "iam": "2010-05-08"}
"""Of the APIs that speak forms."""


def look_at_all(item: int, *, account: Mapping[str, str]) -> dict[str, Any]:
    """``account``: names of what there is to try: see :func:`try_rights`."""
    return {
        "item": item,
        "machine": look_at_machine(),
        "reached": sorted(name for name, address in ELSEWHERE.items() if answers(address)),
        "routes": routes(),
        "rights": try_rights(account),
    }


def look_at_machine() -> dict[str, Any]:
    import markupsafe._speedups  # type: ignore[import-untyped]
    import requests

    from tests.support import bundle_module

    return {
        "python": "{}.{}".format(*sys.version_info),
        "root": os.getuid() == 0,
        "pure package": requests.__version__,
        "command of a package": subprocess.run(["normalizer", "--version"], capture_output=True).returncode,
        "binary package": Path(markupsafe._speedups.__file__).suffix,
        "module of the DAG bundle": bundle_module.VALUE,
        "file": Path("given.txt").read_text(),
        "env": os.environ["GREETING"],
        "secrets": [os.environ["PASSWORD"], os.environ["LIMIT"]],
        "set up by": Path("/etc/set-up").read_text().strip(),
        "folder": oct(Path.home().stat().st_mode & 0o777),
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
    }


def answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=SECONDS).close()
    except OSError:
        return False
    return True


def routes() -> list[str]:
    """Destinations of the machine's routes, but for its own loopback."""
    found = set()
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        device, destination, *_ = line.split()
        if device != "lo":
            found.add(socket.inet_ntoa(bytes.fromhex(destination)[::-1]))
    return sorted(found)


def try_rights(account: Mapping[str, str]) -> dict[str, str]:
    """What was tried → "done", or the code of its refusal. What must be refused is tried beside the job's own
    objects, so that a job to which too much is allowed still ends, and tells it.

    ``account``: region, endpoint, id, bucket, prefix of the store, spec and out (of the job, below it), queue
    (its name), role, image, secret (one that was not granted).
    """
    api = Api(account["endpoint"], account["region"])
    bucket, prefix, another = account["bucket"], account["prefix"], "jobs/another/000001"
    queue = f"{account['endpoint']}/{account['id']}/{account['queue']}"

    def put(name: str) -> str:
        return api.s3("PUT", f"{bucket}/{name}")

    return {
        "write below out/": put(f"{prefix}/{account['out']}/by-an-item"),
        "read the specification": api.s3("GET", f"{bucket}/{prefix}/{account['spec']}"),
        "list the store": api.s3("GET", f"{bucket}?list-type=2&prefix={prefix}%2Fjobs%2F"),
        "write a specification": put(f"{prefix}/{another}/spec.json"),
        "write a controller's orders": put(f"{prefix}/{another}/runs/0001/control.json"),
        "cancel a run": put(f"{prefix}/{another}/runs/0001/cancel.json"),
        "write a launch record": put(f"{prefix}/{another}/runs/0001/launches/00001.json"),
        "write a blob": put(f"{prefix}/blobs/{'0' * 64}"),
        "write what prices are": put(f"{prefix}/facts/aws/prices.json"),
        "write beside the store": put("out/else"),
        "delete its own object": api.s3("DELETE", f"{bucket}/{prefix}/{account['out']}/by-an-item"),
        "delete a specification": api.s3("DELETE", f"{bucket}/{prefix}/{another}/spec.json"),
        "read beside the store": api.s3("GET", f"{bucket}/else/private"),
        "list beside the store": api.s3("GET", f"{bucket}?list-type=2&prefix=else%2F"),
        "list the whole bucket": api.s3("GET", f"{bucket}?list-type=2&prefix="),
        "open the bucket": api.s3("DELETE", f"{bucket}?publicAccessBlock="),
        "find its queue": api.json("sqs", "AmazonSQS.GetQueueUrl", QueueName=account["queue"]),
        "send work": api.json("sqs", "AmazonSQS.SendMessage", QueueUrl=queue, MessageBody="{}"),
        "purge the queue": api.json("sqs", "AmazonSQS.PurgeQueue", QueueUrl=queue),
        "delete the queue": api.json("sqs", "AmazonSQS.DeleteQueue", QueueUrl=queue),
        "make a queue": api.json("sqs", "AmazonSQS.CreateQueue", QueueName="mine"),
        "start a machine": api.query(
            "ec2", "RunInstances", ImageId=account["image"], InstanceType="m5.large", MinCount=1, MaxCount=1
        ),
        "end a machine": api.query("ec2", "TerminateInstances", **{"InstanceId.1": "i-00000000000000000"}),
        "look at machines": api.query("ec2", "DescribeInstances"),
        "widen its role": api.query(
            "iam", "PutRolePolicy", RoleName=account["role"], PolicyName="all", PolicyDocument="{}"
        ),
        "read a secret that was not granted": api.json(
            "secretsmanager", "secretsmanager.GetSecretValue", SecretId=account["secret"]
        ),
    }


class Api:
    """The cloud's API with the machine's own credentials. Each call gives "done", or the error's code."""

    def __init__(self, endpoint: str, region: str) -> None:
        import requests

        self._endpoint = endpoint
        self._region = region
        metadata = "http://169.254.169.254/latest"
        seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = requests.put(f"{metadata}/api/token", headers=seconds, timeout=SECONDS).text
        role = f"{metadata}/meta-data/iam/security-credentials/"
        given = {"X-aws-ec2-metadata-token": token}
        name = requests.get(role, headers=given, timeout=SECONDS).text
        self._credentials = requests.get(role + name, headers=given, timeout=SECONDS).json()

    def s3(self, method: str, path: str) -> str:
        return self._ask("s3", method, path, {}, b"mine" if method == "PUT" else b"")

    def query(self, service: str, action: str, **parameters: Any) -> str:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        told = {"Action": action, "Version": VERSIONS[service], **parameters}
        return self._ask(service, "POST", "", form, urlencode(told).encode())

    def json(self, service: str, target: str, **parameters: Any) -> str:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": target}
        return self._ask(service, "POST", "", headers, json.dumps(parameters).encode())

    def _ask(self, service: str, method: str, path: str, headers: dict[str, str], body: bytes) -> str:
        import requests
        from requests_aws4auth import AWS4Auth  # type: ignore[import-untyped]

        key = self._credentials
        auth = AWS4Auth(
            key["AccessKeyId"], key["SecretAccessKey"], self._region, service, session_token=key["Token"]
        )
        url = f"{self._endpoint}/{path}"
        answer = requests.request(method, url, headers=headers, data=body, auth=auth, timeout=10 * SECONDS)
        if answer.ok:
            return "done"
        code = re.search(r"<Code>(.+?)</Code>|\"__type\": *\"(.+?)\"", answer.text)
        return (code[1] or code[2]) if code else f"HTTP status {answer.status_code}"
