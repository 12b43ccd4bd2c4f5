"""The name of a deleted queue is refused for a minute, and a fresh queue is not there at once, as with SQS
and not with moto.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.cloud.cloudbox.calls import Answer, Call, Forward

SECONDS = 60.0
DELETED = "AWS.SimpleQueueService.QueueDeletedRecently"
MISSING = "AWS.SimpleQueueService.NonExistentQueue"


class QueueNames:
    """Of all regions; ``clock`` counts seconds. A queue is not there for ``fresh_seconds`` after it was made
    ("at least one second", says the source above)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.fresh_seconds = 0.0
        self._lock = threading.Lock()
        self._deleted: dict[tuple[str, str], float] = {}
        self._made: dict[tuple[str, str], float] = {}

    def refuse(self, call: Call) -> Answer | None:
        """Of a queue that is too fresh, whatever is asked of it."""
        if not self.fresh_seconds or call.service != "sqs" or call.operation == "CreateQueue":
            return None
        name = call.parameters.get("QueueUrl", "").rpartition("/")[2] or call.parameters.get("QueueName")
        with self._lock:
            made = self._made.get((call.region, name))
        if made is not None and self.clock() - made < self.fresh_seconds:
            return call.refuse(MISSING, "The specified queue does not exist.")
        return None

    def delete_queue(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            name = call.parameters["QueueUrl"].rpartition("/")[2]
            with self._lock:
                self._deleted[call.region, name] = self.clock()
                self._made.pop((call.region, name), None)
        return answer

    def create_queue(self, call: Call, forward: Forward) -> Answer:
        with self._lock:
            deleted = self._deleted.get((call.region, call.parameters["QueueName"]))
        if deleted is not None and self.clock() - deleted < SECONDS:
            return call.refuse(
                DELETED,
                "You must wait 60 seconds after deleting a queue before you can create another with the "
                "same name.",
            )
        answer = forward(call)
        if answer.status == 200:
            with self._lock:
                self._made.setdefault((call.region, call.parameters["QueueName"]), self.clock())
        return answer
