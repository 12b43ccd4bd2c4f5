"""The machines' network: a bridge with the cloud's address, and one network namespace per machine.

A machine reaches the cloud's address and its own metadata service, nothing else: it has no other route.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.cloud.cloudbox.plot import Plot

METADATA_ADDRESS = "169.254.169.254"
_CLONE_NEWNET = 0x40000000
_FIRST, _LAST = 2, 254


class Network:
    """``address`` is the cloud's own: the host reaches it too."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        self._lock = threading.Lock()
        self._used: set[int] = set()
        self.address = plot.address(1)
        _ip_batch(
            f"link add {plot.bridge} type bridge",
            f"address add {self.address}/24 dev {plot.bridge}",
            f"link set {plot.bridge} up",
        )

    def connect(self) -> Connection:
        """A new machine's place on the network."""
        with self._lock:
            free = (number for number in range(_FIRST, _LAST + 1) if number not in self._used)
            number = next(free, None)
            if number is None:
                raise RuntimeError(f"the box has {_LAST} machines at once: no address is left")
            self._used.add(number)
        return Connection(self, self._plot, number)

    def freed(self, number: int) -> None:
        with self._lock:
            self._used.discard(number)


class Connection:
    """One machine's network namespace, with an address on the cloud's bridge."""

    def __init__(self, network: Network, plot: Plot, number: int) -> None:
        self._network = network
        self._number = number
        self._bridge = plot.bridge
        self._port = plot.port(number)
        self.namespace = plot.namespace(number)
        self.address = plot.address(number)
        _ip_batch(
            f"netns add {self.namespace}",
            f"link add {self._port} type veth peer name eth0 netns {self.namespace}",
            f"link set {self._port} master {self._bridge}",
            f"link set {self._port} up",
        )
        _ip_batch(
            "link set lo up",
            f"address add {METADATA_ADDRESS}/32 dev lo",
            f"address add {self.address}/32 dev eth0",
            "link set eth0 up",
            f"route add {network.address}/32 dev eth0 src {self.address}",
            namespace=self.namespace,
        )

    def cut(self) -> None:
        """Nothing goes through any more, silently: connections hang, as when a route is lost."""
        _ip_batch(f"link set {self._port} nomaster")

    def restore(self) -> None:
        _ip_batch(f"link set {self._port} master {self._bridge}")

    def listen(self, address: tuple[str, int]) -> socket.socket:
        """A listening socket inside the namespace: it stays there, whoever accepts from it."""
        with ThreadPoolExecutor(1) as thread:  # setns is for the calling thread, which ends here
            return thread.submit(self._listen, address).result()

    def _listen(self, address: tuple[str, int]) -> socket.socket:
        with open(f"/run/netns/{self.namespace}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return socket.create_server(address, backlog=128)

    def close(self) -> None:
        """The link would go with its namespace, but after a while: the next machine may want its name now."""
        _ip_batch(f"link delete {self._port}", f"netns delete {self.namespace}")
        self._network.freed(self._number)


def _ip_batch(*commands: str, namespace: str | None = None) -> None:
    inside = ["-n", namespace] if namespace else []
    done = subprocess.run(
        ["ip", *inside, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        raise RuntimeError(f"ip failed at {'; '.join(commands)}: {done.stderr.strip()}")
