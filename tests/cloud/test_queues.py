"""The backend's queues where SQS is at its slowest."""

from __future__ import annotations

import asyncio

from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.job.keys import Generation, Run
from tests.cloud.cloudbox.account import make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.support.aws import box_settings

RUN = Run(Generation("fresh-0123456789abcdef", 1), 1)


def test_a_queue_that_was_made_just_now_takes_messages_once_it_is_there(box: Cloudbox) -> None:
    account = make_account(box, "fresh-queues")
    box.set_queue_delay(1.0)
    backend = AwsBackend(box_settings(box, account, "fresh"))

    async def main() -> None:
        controller, agent = backend.queue(RUN, 0), backend.queue(RUN, 0)
        sending = asyncio.ensure_future(controller.send(["work"]))
        leases = await agent.receive(1, wait=10)
        assert [lease.body for lease in leases] == ["work"]
        await sending
        await controller.delete()

    asyncio.run(main())
