"""``run.json``: one Airflow try's drive of a generation, with the policy it follows. Immutable, signed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.policy import Policy
from airflow_provider_spotbatch.job.signing import Signer

FORMAT = 1


@dataclass(frozen=True)
class RunRecord:
    """``previous``: the run whose index tells what is done already, None for a generation's first.

    ``concurrency``: the cap, resolved; ``max_tries`` and ``dag_run_started`` tell an Airflow try that
    came back from a new one; ``created``: seconds since the epoch by the Airflow side's clock.
    ``closed``: no run, but the end of all: its generation is being removed, or was. It is written under
    the next run's name, so that none can begin any more.
    ``archives``: architecture → part (``agent``, ``interpreter``) → blob, where machines come with nothing
    of ours.
    """

    run: int
    policy: Policy
    concurrency: int
    max_tries: int
    dag_run_started: str
    previous: int | None = None
    created: float = 0.0
    closed: bool = False
    archives: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_bytes(self, signer: Signer) -> bytes:
        body: dict[str, Any] = {"format": FORMAT, **self.__dict__, "policy": self.policy.to_json()}
        for later in ("closed", "archives"):  # where unset as it was written before: agents of then read it
            if not body[later]:
                del body[later]
        return signer.sign_json("run", f"run/{self.run}", body)

    @classmethod
    def from_bytes(cls, signer: Signer, run: int, data: bytes) -> RunRecord:
        stored = signer.open_json("run", f"run/{run}", data)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("run.json has a format that this release does not read")
        return cls(**{**stored, "policy": Policy.from_json(stored["policy"])})
