"""SQS's limits and errors, scripted at the SDK's edge; its behaviour is in the conformance suite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from botocore.exceptions import ClientError

from airflow_provider_spotbatch.backends.aws import queue as queue_module
from airflow_provider_spotbatch.backends.aws.queue import SqsQueue
from airflow_provider_spotbatch.backends.base import Lease
from airflow_provider_spotbatch.backends.memory import MemoryCloud
from airflow_provider_spotbatch.backends.store import Store
from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    CloudUnavailable,
    InvalidInput,
    LeaseLost,
    QueueGone,
)
from tests.unit.backends.aws.sdk import Sdk

URL = {"QueueUrl": "https://sqs/queue"}
TOMBSTONE = "runs/0001/queues/m0.deleted"
LEASE = Lease("a-receipt", "work", 1)


def queue(sdk: Sdk, store: Store | None = None, lease: float = 30) -> SqsQueue:
    inner = store or MemoryCloud("sqs").store
    return SqsQueue(sdk.clients(), inner, "queue", TOMBSTONE, lease, {"team": "film"})


def batches(sdk: Sdk) -> list[list[str]]:
    return [[each["MessageBody"] for each in call["Entries"]] for call in sdk.asked("SendMessageBatch")]


class TestSend:
    def test_ten_messages_go_in_a_request(self) -> None:
        sdk = Sdk(GetQueueUrl=URL)
        asyncio.run(queue(sdk).send([str(number) for number in range(25)]))
        assert [len(batch) for batch in batches(sdk)] == [10, 10, 5]

    def test_a_request_holds_a_mebibyte(self) -> None:
        sdk = Sdk(GetQueueUrl=URL)
        large = "ü" * (200 * 1024)  # 400 KiB
        asyncio.run(queue(sdk).send([large, large, large, "x"]))
        assert [len(batch) for batch in batches(sdk)] == [2, 2]

    def test_a_message_that_no_request_holds_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="larger than SQS takes"):
            asyncio.run(queue(Sdk(GetQueueUrl=URL)).send(["x" * (1024 * 1024 + 1)]))

    def test_only_what_was_not_taken_is_sent_again(self) -> None:
        failed = [{"Id": "1", "SenderFault": False, "Code": "InternalError"}]
        sdk = Sdk(GetQueueUrl=URL, SendMessageBatch=[{"Failed": failed}, {}])
        asyncio.run(queue(sdk).send(["a", "b", "c"]))
        assert batches(sdk) == [["a", "b", "c"], ["b"]]

    def test_a_message_that_is_our_fault_is_told(self) -> None:
        failed = [{"Id": "0", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "odd"}]
        with pytest.raises(CloudUnavailable, match="InvalidMessageContents: odd"):
            asyncio.run(queue(Sdk(GetQueueUrl=URL, SendMessageBatch={"Failed": failed})).send(["a"]))

    def test_a_queue_is_made_that_keeps_messages_longest_and_carries_the_tags(self) -> None:
        sdk = Sdk(GetQueueUrl="QueueDoesNotExist", CreateQueue=URL)
        asyncio.run(queue(sdk).send(["a"]))
        [made] = sdk.asked("CreateQueue")
        assert made["Attributes"] == {"MessageRetentionPeriod": str(14 * 24 * 3600)}
        assert made["tags"] == {"team": "film"}

    def test_a_missing_permission_is_named(self) -> None:
        with pytest.raises(AccessDenied) as caught:
            asyncio.run(queue(Sdk(GetQueueUrl=URL, SendMessageBatch="AccessDenied")).send(["a"]))
        assert "Allow sqs:SendMessage" in caught.value.remedy


class TestDeletion:
    def test_one_that_was_deleted_by_hand_is_told(self) -> None:
        sdk = Sdk(GetQueueUrl="QueueDoesNotExist", CreateQueue="AWS.SimpleQueueService.QueueDeletedRecently")
        with pytest.raises(CloudUnavailable, match="deleted by hand"):
            asyncio.run(queue(sdk).send(["a"]))

    def test_it_is_gone_when_sqs_has_forgotten_it(self) -> None:
        async def main() -> None:
            store = MemoryCloud("sqs forgets").store
            sdk = Sdk(GetQueueUrl="QueueDoesNotExist", CreateQueue=URL)
            await queue(sdk, store).delete()
            with pytest.raises(QueueGone):
                await queue(sdk, store).send(["a"])
            with pytest.raises(QueueGone):
                await queue(sdk, store).receive(1, wait=0)
            assert sdk.asked("CreateQueue") == []

        asyncio.run(main())

    def test_it_is_gone_while_sqs_still_shows_it(self) -> None:
        async def main() -> None:
            store = MemoryCloud("sqs shows").store
            sdk = Sdk(GetQueueUrl=URL)
            await queue(sdk, store).delete()
            with pytest.raises(QueueGone):
                await queue(sdk, store).send(["a"])
            assert sdk.asked("SendMessageBatch") == []

        asyncio.run(main())

    @pytest.mark.parametrize("code", ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"])
    def test_who_used_it_learns_of_it(self, code: str) -> None:
        async def main(act: Callable[[SqsQueue], Awaitable[object]]) -> None:
            store = MemoryCloud(f"sqs used {code} {act}").store

            def deleted(**_: Any) -> None:
                asyncio.run(store.create(TOMBSTONE, b""))
                raise ClientError({"Error": {"Code": code, "Message": "gone"}}, "")

            sdk = Sdk(GetQueueUrl=URL, ReceiveMessage=deleted, SendMessageBatch=deleted)
            with pytest.raises(QueueGone):
                await act(queue(sdk, store))

        asyncio.run(main(lambda its: its.receive(1, wait=0)))
        asyncio.run(main(lambda its: its.send(["a"])))

    @pytest.mark.parametrize("code", ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"])
    def test_one_that_was_made_just_now_is_not_taken_for_deleted(
        self, code: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SQS lets a queue be used a second after it was made."""
        monkeypatch.setattr(queue_module, "SEND_PAUSE", 0.001)
        sdk = Sdk(GetQueueUrl=["QueueDoesNotExist", URL], CreateQueue=URL, SendMessageBatch=[code, {}])
        asyncio.run(queue(sdk).send(["a"]))
        assert batches(sdk) == [["a"], ["a"]]
        sdk = Sdk(GetQueueUrl=URL, ReceiveMessage=code)
        assert asyncio.run(queue(sdk).receive(1, wait=0)) == []

    def test_one_that_never_comes_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue_module, "SEND_PAUSE", 0.001)
        sdk = Sdk(GetQueueUrl=URL, SendMessageBatch="QueueDoesNotExist")
        with pytest.raises(CloudUnavailable, match=r"1 messages could not be sent .*QueueDoesNotExist"):
            asyncio.run(queue(sdk).send(["a"]))
        assert len(sdk.asked("SendMessageBatch")) == queue_module.SEND_ATTEMPTS


class TestLeases:
    @pytest.mark.parametrize(
        "code",
        ["ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight", "QueueDoesNotExist"],
    )
    def test_a_stale_receipt_is_a_lost_lease(self, code: str) -> None:
        mine = queue(Sdk(GetQueueUrl=URL, ChangeMessageVisibility=code, DeleteMessage=code))
        with pytest.raises(LeaseLost, match="a-receipt"):
            asyncio.run(mine.extend(LEASE))
        asyncio.run(queue(Sdk(GetQueueUrl=URL, DeleteMessage=code)).ack(LEASE))
        asyncio.run(queue(Sdk(GetQueueUrl=URL, ChangeMessageVisibility=code)).release(LEASE))

    def test_a_lease_that_was_given_back_is_never_asked_for_again(self) -> None:
        async def main() -> None:
            sdk = Sdk(GetQueueUrl=URL)
            mine = queue(sdk)
            await mine.release(LEASE)
            with pytest.raises(LeaseLost):
                await mine.extend(LEASE)
            await mine.ack(LEASE)
            assert sdk.asked("DeleteMessage") == []
            assert [each["VisibilityTimeout"] for each in sdk.asked("ChangeMessageVisibility")] == [0]

        asyncio.run(main())

    def test_leases_last_whole_seconds(self) -> None:
        sdk = Sdk(GetQueueUrl=URL)
        asyncio.run(queue(sdk, lease=10.2).extend(LEASE))
        [asked] = sdk.asked("ChangeMessageVisibility")
        assert asked["VisibilityTimeout"] == 11


class TestReceive:
    def test_it_polls_for_20_seconds_and_10_messages_at_most(self) -> None:
        message = {"ReceiptHandle": "r", "Body": "b", "Attributes": {"ApproximateReceiveCount": "3"}}
        sdk = Sdk(GetQueueUrl=URL, ReceiveMessage={"Messages": [message]})
        assert asyncio.run(queue(sdk).receive(64, wait=600)) == [Lease("r", "b", 3)]
        [asked] = sdk.asked("ReceiveMessage")
        assert (asked["WaitTimeSeconds"], asked["MaxNumberOfMessages"], asked["VisibilityTimeout"]) == (
            20,
            10,
            30,
        )

    def test_who_is_cancelled_does_not_wait_for_the_poll_and_gives_back_what_it_brings(self) -> None:
        """A stopping agent goes at once; the thread that polls holds nothing back."""
        polling, answer, given_back = threading.Event(), threading.Event(), threading.Event()
        message = {"ReceiptHandle": "r", "Body": "b", "Attributes": {"ApproximateReceiveCount": "1"}}

        def receive(**_: Any) -> dict[str, Any]:
            polling.set()
            assert answer.wait(20)
            return {"Messages": [message]}

        def change(**parameters: Any) -> dict[str, Any]:
            assert (parameters["ReceiptHandle"], parameters["VisibilityTimeout"]) == ("r", 0)
            given_back.set()
            return {}

        sdk = Sdk(GetQueueUrl=URL, ReceiveMessage=receive, ChangeMessageVisibility=change)

        async def main() -> None:
            receiving = asyncio.ensure_future(queue(sdk).receive(1, wait=20))
            await asyncio.to_thread(polling.wait, 20)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving

        asyncio.run(main())
        assert not answer.is_set()
        answer.set()
        assert given_back.wait(20)
