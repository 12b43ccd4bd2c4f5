"""A cloud on one machine, for tests and to try by hand.

A moto server answers the SDK. Before it stands a front of ours (``front``) that refines what moto does
more coarsely than Amazon: fleets and tokens (``fleets``, ``pools``), late listings and reasons
(``listings``), names of deleted queues (``queue_names``), prices (``prices``), images (``images``),
refusals at will (``refusals``), and what policies allow (``permissions``). What was launched there boots
here (``machines``): a root file system of Debian's (``roots``), a network (``network``) with nothing on it
but the cloud, a metadata service (``metadata``), and in it, as process 1, ``init``, which runs the machine's
own user data. This file holds it together.

Needs Linux, root, and what ``needs.missing_needs`` names.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from tests.cloud.cloudbox.fleets import Fleets
from tests.cloud.cloudbox.front import Front
from tests.cloud.cloudbox.images import get_parameter, get_parameters
from tests.cloud.cloudbox.instances import Instances
from tests.cloud.cloudbox.listings import Listings
from tests.cloud.cloudbox.machine_types import describe_instance_types
from tests.cloud.cloudbox.metadata import MetadataServer
from tests.cloud.cloudbox.moto import Moto
from tests.cloud.cloudbox.needs import missing_needs
from tests.cloud.cloudbox.network import Network
from tests.cloud.cloudbox.permissions import Permissions
from tests.cloud.cloudbox.plot import claim
from tests.cloud.cloudbox.pools import Pools
from tests.cloud.cloudbox.prices import describe_spot_price_history, get_products
from tests.cloud.cloudbox.queue_names import QueueNames
from tests.cloud.cloudbox.quotas import Quotas
from tests.cloud.cloudbox.refusals import Refusals

PATIENCE = 60.0
"""Seconds that the box waits for what comes within one, unless the host is very busy."""


class Cloudbox:
    """A running cloud of one region, and what only its owner can do to it.

    ``with Cloudbox() as box:`` takes some seconds (moto's start). At its end nothing is left of it: no
    process, namespace, link, mount or file. ``clock`` counts seconds for what the cloud remembers for
    minutes (names of deleted queues).
    """

    def __init__(self, region: str = "us-east-2", clock: Callable[[], float] = time.monotonic) -> None:
        if missing := missing_needs():
            raise RuntimeError(f"no box can run here, missing: {', '.join(missing)}")
        self.region = region
        self._timers: list[threading.Timer] = []
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        with contextlib.ExitStack() as undo:
            self.plot = plot = claim()
            undo.callback(plot.release)
            moto = Moto(plot.folder)
            undo.callback(moto.close)
            moto.make_owner()
            self._moto = moto
            network = Network(plot)
            self.listings = Listings()
            self.pools = Pools()
            self._refusals = Refusals()
            self._quotas = Quotas()
            self._permissions = Permissions(moto)
            self._instances = Instances(moto, plot, network, self.listings, self.pools)
            undo.callback(self._instances.close)
            fleets = Fleets(moto, self.pools, self._instances.launched)
            self.queue_names = QueueNames(clock)
            front = Front(
                network.address,
                moto.port,
                {
                    ("ec2", "CreateFleet"): fleets.create_fleet,
                    ("ec2", "RunInstances"): self._instances.run_instances,
                    ("ec2", "TerminateInstances"): self._instances.terminate_instances,
                    ("ec2", "StopInstances"): self._instances.stop_instances,
                    ("ec2", "RebootInstances"): self._instances.reboot_instances,
                    ("ec2", "DescribeInstances"): self.listings.describe_instances,
                    ("ec2", "DescribeInstanceTypes"): describe_instance_types,
                    ("ec2", "DescribeSpotPriceHistory"): describe_spot_price_history,
                    ("pricing", "GetProducts"): get_products,
                    ("servicequotas", "GetServiceQuota"): self._quotas.get_service_quota,
                    ("sqs", "CreateQueue"): self.queue_names.create_queue,
                    ("sqs", "DeleteQueue"): self.queue_names.delete_queue,
                    ("ssm", "GetParameter"): get_parameter,
                    ("ssm", "GetParameters"): get_parameters,
                },
                first=[self._refusals.refuse, self._permissions.refuse, self.queue_names.refuse],
            )
            undo.callback(front.close)
            undo.callback(self._cancel_timers)
            self.endpoint_url = front.url
            self._undo = undo.pop_all()

    def __enter__(self) -> Cloudbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything. Harmless when repeated."""
        self._undo.close()

    def environment(self) -> dict[str, str]:
        """Environment variables with which any AWS SDK or command line works on the box, and obstore,
        which wants to be told that http is meant."""
        return {
            "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self._moto.key_id,
            "AWS_SECRET_ACCESS_KEY": self._moto.secret,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
        }

    def client(self, service: str) -> Any:
        """A boto3 client of the box."""
        import boto3

        with self._lock:  # making one takes long and is not safe in threads
            if service not in self._clients:
                self._clients[service] = boto3.session.Session().client(
                    service,
                    region_name=self.region,
                    endpoint_url=self.endpoint_url,
                    aws_access_key_id=self._moto.key_id,
                    aws_secret_access_key=self._moto.secret,
                )
            return self._clients[service]

    def instances(self) -> list[str]:
        """Ids of all that were ever launched, oldest first."""
        return self._instances.ids()

    def machines(self) -> list[str]:
        """Ids of the instances whose machine runs, or will in a moment; oldest first."""
        return self._instances.running()

    def end_machines(self) -> None:
        """Terminate all that run, as their owner would."""
        if running := self.machines():
            self.client("ec2").terminate_instances(InstanceIds=running)

    def console(self, instance: str) -> str:
        """What the machine wrote so far, also after its end."""
        return self._instances.machine(instance).console()

    def run(
        self, instance: str, command: Sequence[str], seconds: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the machine, as root."""
        return self._instances.machine(instance).run(command, seconds)

    def notice(self, instance: str, seconds: float = 120.0) -> None:
        """The interruption notice now, the end after that time."""
        self._instances.machine(instance).metadata.notice("terminate", time.time() + seconds)
        timer = threading.Timer(seconds, self._instances.reclaim, [instance])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def recommend_rebalance(self, instance: str) -> None:
        self._instances.machine(instance).metadata.recommend_rebalance(time.time())

    def metadata_url(self, instance: str) -> str:
        """The machine's metadata service, for this host's processes: its own address is within it."""
        listener = socket.create_server(("127.0.0.1", 0))
        address, port = listener.getsockname()
        self._undo.callback(MetadataServer(listener, self._instances.machine(instance).metadata).close)
        return f"http://{address}:{port}"

    def vanish(self, instance: str) -> None:
        """Taken back without a notice."""
        self._instances.reclaim(instance)

    def freeze(self, instance: str) -> None:
        """Not one of its processes runs any more; the API shows it running."""
        self._instances.machine(instance).freeze()

    def thaw(self, instance: str) -> None:
        self._instances.machine(instance).thaw()

    def cut(self, instance: str) -> None:
        """Its network carries nothing; its metadata service still answers."""
        self._instances.machine(instance).cut()

    def restore(self, instance: str) -> None:
        self._instances.machine(instance).restore()

    def reboot(self, instance: str) -> None:
        """A reset: it boots again with its disk as it was."""
        self._instances.machine(instance).reboot()

    def refuse(
        self, operation: str, code: str, *, times: int | None = None, seconds: float | None = None
    ) -> None:
        """Answer calls of an operation (``CreateFleet``, ``Describe*``) with an error: so many times, for
        so long, or until :meth:`relent`."""
        self._refusals.add(operation, code, times, seconds)

    def refuse_machines(
        self,
        code: str,
        machine_type: str = "*",
        zone: str = "*",
        *,
        times: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Launches get this error for each pool that matches, beside the machines that others give."""
        self.pools.refuse(code, machine_type, zone, times, seconds)

    def set_room(self, machines: int, machine_type: str = "*", zone: str = "*") -> None:
        """Each pool that matches has so many machines in all."""
        self.pools.set_room(machines, machine_type, zone)

    def set_quota(self, code: str, vcpus: float) -> None:
        """What Service Quotas says of a code. It refuses nothing: :meth:`refuse_machines` does."""
        self._quotas.values[code] = vcpus

    def set_listing_delay(self, seconds: float) -> None:
        """Instances launched from now on are missing from DescribeInstances for that time."""
        self.listings.late_seconds = seconds

    def set_queue_delay(self, seconds: float) -> None:
        """Queues made from now on are not there for that time."""
        self.queue_names.fresh_seconds = seconds

    def enforce_policies(self) -> None:
        """From now on everybody may do only what their IAM policies allow, until :meth:`relent`. The box's
        own key may do everything."""
        self._permissions.enforced = True

    def relent(self) -> None:
        """No refusals any more, room, quotas and permissions for all, listings and queues at once."""
        self._refusals.clear()
        self.pools.clear()
        self._quotas.values.clear()
        self._permissions.enforced = False
        self.listings.late_seconds = 0.0
        self.queue_names.fresh_seconds = 0.0

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Poll. AssertionError with every machine's console after that time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                consoles = {instance: self.console(instance) for instance in self._instances.ids()}
                text = "\n".join(f"-- {name}\n{console}" for name, console in consoles.items())
                raise AssertionError(f"waited {seconds} s in vain; the machines wrote:\n{text}")
            time.sleep(0.02)

    def wait_until_state(self, instance: str, state: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Poll DescribeInstances; the instance as it is shown then."""
        ec2 = self.client("ec2")
        shown: dict[str, Any] = {}

        def reached() -> bool:
            listing = ec2.describe_instances(Filters=[{"Name": "instance-id", "Values": [instance]}])
            for reservation in listing["Reservations"]:
                shown.update(reservation["Instances"][0])
            return bool(shown) and shown["State"]["Name"] == state

        self.wait_until(reached, seconds)
        return shown

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
