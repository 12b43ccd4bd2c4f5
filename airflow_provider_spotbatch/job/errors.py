"""Errors of the product, and the verdicts of the ports that the control loop switches on."""

from __future__ import annotations

from typing import Any, ClassVar


class SpotBatchError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(SpotBatchError, ValueError):
    """What the user asked for cannot be done; raised before anything is launched."""


class SignatureMismatch(SpotBatchError):
    """A stored object was not signed with the key in use, or stands in another's place."""


class FormatMismatch(SpotBatchError):
    """A stored object was written in a format version that this release does not read."""


class StoreUnavailable(SpotBatchError):
    """The object store did not answer, or refused, after the retries it is allowed."""


class StoreDenied(StoreUnavailable):
    """The object store refused for want of a permission; ``remedy`` names it."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(f"{message}. {remedy}")
        self.message = message
        self.remedy = remedy


class CloudUnavailable(SpotBatchError):
    """A cloud did not answer, or failed: what was asked of it may have been done or not."""


class JobFailed(SpotBatchError):
    """The job ended without success; the message is what the user should read."""


class LeaseLost(SpotBatchError):
    """The queue no longer holds the lease: the chunk may have been handed to another agent."""


class QueueGone(SpotBatchError):
    """The queue does not exist (any more): the run is over."""


class Refusal(SpotBatchError):
    """A cloud's refusal as a verdict: what it means, and what would cure it.

    ``code`` is the cloud's own error code, kept for the log; nothing switches on it.
    """

    kind: ClassVar[str] = "refusal"

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "message": self.message,
            "remedy": self.remedy,
            "code": self.code,
            "fatal": self.fatal,
        }

    @property
    def fatal(self) -> bool:
        """Whether waiting cannot cure it, so that the job should fail at once."""
        return False


class NoCapacity(Refusal):
    """The cloud has no such machine now; another type, another zone or later may do."""

    kind = "no-capacity"


class QuotaExceeded(Refusal):
    """An account limit stands in the way. Fatal only if it is below one machine."""

    kind = "quota"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        code: str = "",
        below_one_machine: bool = False,
    ) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.below_one_machine = below_one_machine

    @property
    def fatal(self) -> bool:
        return self.below_one_machine


class Throttled(Refusal):
    """Too many calls: back off with jitter, change nothing else."""

    kind = "throttled"


class AccessDenied(Refusal):
    """A permission is missing; the remedy names it."""

    kind = "access-denied"

    @property
    def fatal(self) -> bool:
        return True


class BadRequest(Refusal):
    """The request itself is wrong (no such image, no such subnet): waiting cures nothing."""

    kind = "bad-request"

    @property
    def fatal(self) -> bool:
        return True


_KINDS: dict[str, type[Refusal]] = {
    verdict.kind: verdict for verdict in (NoCapacity, QuotaExceeded, Throttled, AccessDenied, BadRequest)
}


def refusal_from_json(stored: dict[str, Any]) -> Refusal:
    """The verdict that was written with :meth:`Refusal.to_json`."""
    verdict = _KINDS[stored["kind"]]
    if verdict is QuotaExceeded:
        return QuotaExceeded(
            stored["message"],
            remedy=stored["remedy"],
            code=stored["code"],
            below_one_machine=bool(stored.get("fatal")),
        )
    return verdict(stored["message"], remedy=stored["remedy"], code=stored["code"])


def is_final(error: Exception) -> bool:
    """Whether the same again would fail again: bad input, or a permission that somebody must give first."""
    if isinstance(error, Refusal):
        return error.fatal
    return isinstance(error, (InvalidInput, StoreDenied))
