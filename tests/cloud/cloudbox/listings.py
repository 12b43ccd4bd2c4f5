"""DescribeInstances, more finely than moto does it.

- Fresh instances may be missing for a while
  (https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html). moto is never late.
- StateReason says who ended an instance
  (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html). moto says that the user did.
"""

from __future__ import annotations

import threading
import time
from xml.etree import ElementTree

from tests.cloud.cloudbox.calls import Answer, Call, Forward

RECLAIMED = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
SHUT_DOWN = (
    "Client.InstanceInitiatedShutdown",
    "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
)
BROKEN = ("Server.InternalError", "Server.InternalError: Internal error on launch")


class Listings:
    """``late_seconds`` is for instances launched from now on."""

    def __init__(self) -> None:
        self.late_seconds = 0.0
        self._lock = threading.Lock()
        self._shown_from: dict[str, float] = {}
        self._reasons: dict[str, tuple[str, str]] = {}

    def launched(self, instance: str) -> None:
        with self._lock:
            self._shown_from[instance] = time.monotonic() + self.late_seconds

    def ended(self, instance: str, reason: tuple[str, str]) -> None:
        with self._lock:
            self._reasons.setdefault(instance, reason)

    def describe_instances(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status != 200:
            return answer
        with self._lock:
            now = time.monotonic()
            hidden = {instance for instance, shown_from in self._shown_from.items() if now < shown_from}
            reasons = dict(self._reasons)
        for instance in call.parameters.get("InstanceIds", []):
            if instance in hidden:
                message = f"The instance ID '{instance}' does not exist"
                return call.refuse("InvalidInstanceID.NotFound", message)
        return Answer(200, _refined(answer.body, hidden, reasons), answer.headers)


def _refined(body: bytes, hidden: set[str], reasons: dict[str, tuple[str, str]]) -> bytes:
    root = ElementTree.fromstring(body)
    for reservations in root.findall("{*}reservationSet"):
        for reservation in list(reservations):
            for instances in reservation.findall("{*}instancesSet"):
                for shown in list(instances):
                    instance = shown.findtext("{*}instanceId", "")
                    if instance in hidden:
                        instances.remove(shown)
                    elif instance in reasons:
                        _set_reason(shown, *reasons[instance])
                if not len(instances):
                    reservations.remove(reservation)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _set_reason(instance: ElementTree.Element, code: str, message: str) -> None:
    for reason in instance.findall("{*}stateReason"):
        for name, text in (("code", code), ("message", message)):
            for field in reason.findall(f"{{*}}{name}"):
                field.text = text
