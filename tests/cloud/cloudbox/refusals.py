"""Refusals at will: the next calls of an operation, or all of them for a while, get an error."""

from __future__ import annotations

import fnmatch
import threading
import time
from dataclasses import dataclass

from tests.cloud.cloudbox.calls import Answer, Call

MESSAGES = {
    "RequestLimitExceeded": "Request limit exceeded.",
    "InsufficientInstanceCapacity": "There is no Spot capacity available that matches your request.",
    "UnfulfillableCapacity": "Unable to fulfill capacity due to your request configuration. Please adjust "
    "your request and try again.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for "
    "the instance bucket that the specified instance type belongs to. Please visit "
    "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    "UnauthorizedOperation": "You are not authorized to perform this operation. User: "
    "arn:aws:iam::123456789012:user/box is not authorized to perform: ec2:{operation} on resource: * because "
    "no identity-based policy allows the ec2:{operation} action",
    "AccessDenied": "User: arn:aws:iam::123456789012:user/box is not authorized to perform: {operation}",
    "InsufficientFreeAddressesInSubnet": "There are not enough free addresses in subnet 'subnet-0' to "
    "satisfy the requested number of instances.",
    "InvalidAMIID.NotFound": "The image id '[ami-00000000]' does not exist",
    "Unsupported": "Your requested instance type is not supported in your requested Availability Zone.",
    "SlowDown": "Please reduce your request rate.",
    "InternalError": "An internal error has occurred",
}
"""What Amazon says with a code, as seen in bug reports and its documentation
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html)."""


def message_of(code: str, operation: str) -> str:
    return MESSAGES.get(code, f"refused by the box with {code}").format(operation=operation)


@dataclass
class Limit:
    """How often or how long something holds: neither means until it is cleared."""

    times: int | None
    until: float | None

    @classmethod
    def of(cls, times: int | None, seconds: float | None) -> Limit:
        return cls(times, None if seconds is None else time.monotonic() + seconds)

    def spend(self) -> bool:
        """Whether it holds this time, which it then has once less."""
        if self.until is not None and time.monotonic() >= self.until:
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


@dataclass
class _Refusal:
    operation: str
    code: str
    limit: Limit


class Refusals:
    """Asked about every call before anything else is. The first that matches and holds, counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: list[_Refusal] = []

    def add(self, operation: str, code: str, times: int | None, seconds: float | None) -> None:
        """``operation`` is a name as boto3's documentation spells it, or a pattern: ``Describe*``."""
        with self._lock:
            self._refusals.append(_Refusal(operation, code, Limit.of(times, seconds)))

    def clear(self) -> None:
        with self._lock:
            self._refusals.clear()

    def refuse(self, call: Call) -> Answer | None:
        with self._lock:
            for refusal in self._refusals:
                if fnmatch.fnmatchcase(call.operation, refusal.operation) and refusal.limit.spend():
                    return call.refuse(refusal.code, message_of(refusal.code, call.operation))
        return None
