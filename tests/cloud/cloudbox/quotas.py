"""Service Quotas, which moto does not have for EC2: what the box was told, else plenty.

https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html. Nothing is
refused by these numbers: refusals are the box owner's.
"""

from __future__ import annotations

from tests.cloud.cloudbox.calls import Answer, Call, Forward

PLENTY = 10_000.0


class Quotas:
    """vCPUs by quota code."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def get_service_quota(self, call: Call, forward: Forward) -> Answer:
        code = call.parameters["QuotaCode"]
        value = self.values.get(code, PLENTY)
        service = call.parameters["ServiceCode"]
        return call.answer({"Quota": {"ServiceCode": service, "QuotaCode": code, "Value": value}})
