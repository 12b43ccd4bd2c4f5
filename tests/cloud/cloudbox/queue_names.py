"""The name of a deleted queue is refused for a minute, as SQS does and moto does not.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.cloud.cloudbox.calls import Answer, Call, Forward

SECONDS = 60.0
CODE = "AWS.SimpleQueueService.QueueDeletedRecently"


class QueueNames:
    """Of all regions; ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._deleted: dict[tuple[str, str], float] = {}

    def delete_queue(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status == 200:
            name = call.parameters["QueueUrl"].rpartition("/")[2]
            with self._lock:
                self._deleted[call.region, name] = self.clock()
        return answer

    def create_queue(self, call: Call, forward: Forward) -> Answer:
        with self._lock:
            deleted = self._deleted.get((call.region, call.parameters["QueueName"]))
        if deleted is not None and self.clock() - deleted < SECONDS:
            return call.refuse(
                CODE,
                "You must wait 60 seconds after deleting a queue before you can create another with the "
                "same name.",
            )
        return forward(call)
