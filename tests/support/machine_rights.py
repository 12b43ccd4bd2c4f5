"""An item that tells what it finds on its machine, what it can reach, and what its machine's role lets it do.

Items run as the machine's user, with the credentials that the metadata service gives to all who ask on the
machine: what user code may do in the account is what the role may do.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ELSEWHERE = {
    "a package index, by name": ("pypi.org", 443),
    "the internet": ("1.1.1.1", 443),
    "a name server": ("8.8.8.8", 53),
    "another network of the provider's": ("10.0.0.2", 53),
}
SECONDS = 3.0


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
    import boto3  # type: ignore[import-untyped]
    import markupsafe._speedups  # type: ignore[import-untyped]

    from tests.support import bundle_module

    return {
        "python": "{}.{}".format(*sys.version_info),
        "root": os.getuid() == 0,
        "pure package": boto3.__version__,
        "binary package": Path(markupsafe._speedups.__file__).suffix,
        "module of the DAG bundle": bundle_module.VALUE,
        "file": Path("given.txt").read_text(),
        "env": os.environ["GREETING"],
        "secret": os.environ["PASSWORD"],
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

    ``account``: region, endpoint, bucket, prefix of the store, spec and out (of the job, below it), queue
    (its name), role, image, secret (one that was not granted)."""
    import boto3
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]

    session = boto3.Session(region_name=account["region"])

    def client(service: str) -> Any:
        return session.client(service, endpoint_url=account["endpoint"])

    s3, sqs, ec2, iam = map(client, ("s3", "sqs", "ec2", "iam"))
    bucket, prefix = account["bucket"], account["prefix"]
    spec, run = f"{prefix}/{account['spec']}", f"{prefix}/jobs/another/000001/runs/0001"
    queue = sqs.get_queue_url(QueueName=account["queue"])["QueueUrl"]
    own = f"{prefix}/{account['out']}/written-by-an-item"

    def put(key: str) -> Callable[[], Any]:
        return lambda: s3.put_object(Bucket=bucket, Key=key, Body=b"mine")

    def get(key: str) -> Callable[[], Any]:
        return lambda: s3.get_object(Bucket=bucket, Key=key)["Body"].read()

    tried: dict[str, Callable[[], Any]] = {
        "write below out/": put(own),
        "read the specification": get(spec),
        "list the store": lambda: s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/jobs/"),
        "write a specification": put(f"{prefix}/jobs/another/000001/spec.json"),
        "write a controller's orders": put(f"{run}/control.json"),
        "cancel a run": put(f"{run}/cancel.json"),
        "write a launch record": put(f"{run}/launches/00001.json"),
        "write a blob": put(f"{prefix}/blobs/{'0' * 64}"),
        "write what prices are": put(f"{prefix}/facts/aws/prices.json"),
        "write beside the store": put("out/else"),
        "delete its own object": lambda: s3.delete_object(Bucket=bucket, Key=own),
        "delete a specification": lambda: s3.delete_object(
            Bucket=bucket, Key=f"{prefix}/jobs/another/000001/spec.json"
        ),
        "read beside the store": get("else/private"),
        "list beside the store": lambda: s3.list_objects_v2(Bucket=bucket, Prefix="else/"),
        "list the whole bucket": lambda: s3.list_objects_v2(Bucket=bucket, Prefix=""),
        "open the bucket": lambda: s3.delete_public_access_block(Bucket=bucket),
        "send work": lambda: sqs.send_message(QueueUrl=queue, MessageBody="{}"),
        "purge the queue": lambda: sqs.purge_queue(QueueUrl=queue),
        "delete the queue": lambda: sqs.delete_queue(QueueUrl=queue),
        "make a queue": lambda: sqs.create_queue(QueueName="mine"),
        "start a machine": lambda: ec2.run_instances(
            ImageId=account["image"], InstanceType="m5.large", MinCount=1, MaxCount=1
        ),
        "end a machine": lambda: ec2.terminate_instances(InstanceIds=["i-00000000000000000"]),
        "look at machines": ec2.describe_instances,
        "widen its role": lambda: iam.put_role_policy(
            RoleName=account["role"], PolicyName="all", PolicyDocument="{}"
        ),
        "read a secret that was not granted": lambda: client("secretsmanager").get_secret_value(
            SecretId=account["secret"]
        ),
    }
    found = {}
    for what, act in tried.items():
        try:
            act()
            found[what] = "done"
        except ClientError as error:
            found[what] = error.response["Error"]["Code"]
    return found
