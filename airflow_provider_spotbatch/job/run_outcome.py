"""How a run ended: ``outcome.json``, signed, written once by whoever finishes the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import Generation, Run
from airflow_provider_spotbatch.job.signing import Signer
from airflow_provider_spotbatch.job.spending import Spending

FORMAT = 1

SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Outcome:
    """``message`` is what the user reads; ``retryable``: whether an Airflow retry can help.

    ``items`` = ``ok`` + ``failed`` + those without an outcome; ``causes`` counts the failed by cause;
    ``started`` and ``ended`` are seconds since the epoch; ``cost_usd`` None where nothing is paid:
    of all runs of the generation; ``spending``: what the machines of this run were paid for, None likewise.
    """

    state: str
    message: str
    retryable: bool
    job: str
    generation: int
    run: int
    items: int
    ok: int
    failed: int
    causes: dict[str, int] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    cost_usd: float | None = None
    spending: Spending | None = None

    @property
    def of_run(self) -> Run:
        return Run(Generation(self.job, self.generation), self.run)

    def to_bytes(self, signer: Signer) -> bytes:
        body = {"format": FORMAT, **self.__dict__}
        if self.spending is not None:
            body["spending"] = self.spending.to_json()
        return signer.sign_json("outcome", f"outcome/{self.run}", body)

    @classmethod
    def from_bytes(cls, signer: Signer, run: int, data: bytes) -> Outcome:
        stored: dict[str, Any] = signer.open_json("outcome", f"outcome/{run}", data)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("outcome.json has a format that this release does not read")
        if stored.get("spending") is not None:
            stored["spending"] = Spending.from_json(stored["spending"])
        return cls(**stored)
