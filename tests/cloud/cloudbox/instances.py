"""Instances of the API and the machines that they are here: launched there, booted here, and back."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from xml.etree import ElementTree

from tests.cloud.cloudbox.calls import Answer, Call, Forward
from tests.cloud.cloudbox.facts import credentials_of, facts_of
from tests.cloud.cloudbox.images import suite_of
from tests.cloud.cloudbox.listings import BROKEN, RECLAIMED, SHUT_DOWN, Listings
from tests.cloud.cloudbox.machine import Machine
from tests.cloud.cloudbox.moto import Moto
from tests.cloud.cloudbox.network import Network
from tests.cloud.cloudbox.plot import Plot
from tests.cloud.cloudbox.pools import Pools
from tests.cloud.cloudbox.roots import root_of

BOOT_SECONDS = 60.0
"""From the launch until a machine's first process runs: a fraction of a second, unless the host is busy."""

_AT_ONCE = 4


class Instances:
    """Boots every instance that is launched, and tells the API of every machine that ends."""

    def __init__(
        self,
        moto: Moto,
        plot: Plot,
        network: Network,
        listings: Listings,
        pools: Pools,
    ) -> None:
        self._moto = moto
        self._plot = plot
        self._network = network
        self._listings = listings
        self._pools = pools
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="boot")
        self._lock = threading.Lock()
        self._closing = False
        self._machines: dict[str, Future[Machine]] = {}
        self._terminating = threading.Lock()
        self._terminated: set[str] = set()

    def ids(self) -> list[str]:
        """Every instance ever launched, oldest first."""
        with self._lock:
            return list(self._machines)

    def running(self) -> list[str]:
        """Those whose machine runs or is about to. One that could not boot does not."""
        with self._lock:
            booting = dict(self._machines)
        return [
            instance
            for instance, boot in booting.items()
            if boot.exception(BOOT_SECONDS) is None and boot.result().running
        ]

    def machine(self, instance: str) -> Machine:
        """As soon as it boots. Raises what kept it from booting, or KeyError."""
        with self._lock:
            booting = self._machines[instance]
        return booting.result(BOOT_SECONDS)

    def launched(self, region: str, instance: str) -> None:
        self._listings.launched(instance)
        with self._lock:
            if not self._closing:
                self._machines[instance] = self._threads.submit(self._boot, region, instance)

    def reclaim(self, instance: str) -> None:
        """The platform takes the machine back."""
        self._end(instance, RECLAIMED)

    def run_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            for instance in _instance_ids(answer.body):
                self.launched(call.region, instance)
        return answer

    def terminate_instances(self, call: Call, forward: Forward) -> Answer:
        """A machine that is seen as terminated has ended. Harmless for those that have, as on EC2: moto
        misses their network interfaces."""
        asked = call.parameters["InstanceIds"]
        if not set(asked) <= set(self.ids()) or call.parameters.get("DryRun"):
            return forward(call)
        for instance in asked:
            self._kill(instance)
            self._terminate(call.region, instance)
        state = {"CurrentState": {"Code": 32, "Name": "shutting-down"}}
        return call.answer({"TerminatingInstances": [{"InstanceId": each, **state} for each in asked]})

    def stop_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            for instance in call.parameters["InstanceIds"]:
                self._kill(instance)
        return answer

    def reboot_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            for instance in call.parameters["InstanceIds"]:
                self.machine(instance).reboot()
        return answer

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._threads.shutdown(wait=True)
        for instance in self.ids():
            self._kill(instance)

    def _boot(self, region: str, instance: str) -> Machine:
        try:
            facts = facts_of(self._moto, region, instance)
            return Machine(
                facts,
                self._plot.folder / "machines" / instance,
                root_of(suite_of(facts.image)),
                self._network.connect(),
                lambda: credentials_of(self._moto, facts),
                self._ended_by_itself,
            )
        except Exception:
            traceback.print_exc()
            self._report_end(region, instance, BROKEN, terminated=True)
            raise

    def _kill(self, instance: str) -> None:
        with self._lock:
            booting = self._machines[instance]
        if booting.exception(BOOT_SECONDS) is None:
            booting.result().kill()
        self._pools.ended(instance)

    def _end(self, instance: str, reason: tuple[str, str]) -> None:
        machine = self.machine(instance)
        self._kill(instance)
        self._report_end(machine.facts.region, instance, reason, terminated=True)

    def _ended_by_itself(self, machine: Machine) -> None:
        facts = machine.facts
        self._pools.ended(facts.instance)
        self._report_end(facts.region, facts.instance, SHUT_DOWN, facts.terminate_on_shutdown)

    def _report_end(self, region: str, instance: str, reason: tuple[str, str], terminated: bool) -> None:
        if self._closing or instance in self._terminated:
            return
        self._listings.ended(instance, reason)
        if terminated:
            self._terminate(region, instance)
        else:
            self._moto.client("ec2", region).stop_instances(InstanceIds=[instance])

    def _terminate(self, region: str, instance: str) -> None:
        """Once: several may end a machine at the same time."""
        with self._terminating:
            if instance not in self._terminated:
                self._moto.client("ec2", region).terminate_instances(InstanceIds=[instance])
                self._terminated.add(instance)


def _instance_ids(body: bytes) -> list[str]:
    found = ElementTree.fromstring(body).iterfind(".//{*}instancesSet/{*}item/{*}instanceId")
    return [str(element.text) for element in found]
