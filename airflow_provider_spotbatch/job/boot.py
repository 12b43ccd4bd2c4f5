"""What a machine is told when it starts: its boot data. It carries the generation's derived key,
so it goes to the machine alone, never into the store, a log or a trigger's arguments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch
from airflow_provider_spotbatch.job.keys import Generation, Run

FORMAT = 1


@dataclass(frozen=True)
class Boot:
    """Everything an agent needs to begin.

    ``backend`` and ``backend_options`` open the queue and the notices; ``store`` and
    ``store_options`` the object store. ``key``: the generation's derived key, hex.
    ``folder``: the machine's own folder; ``python``: the interpreter that workers run;
    ``memory_mb``: limit of one item. All times in seconds: ``lifetime``, of its launch, ends the machine
    whatever else happens; ``idle_timeout`` ends it when its queue stays empty; ``orphan_after`` when no
    controller was seen; ``grace`` is what an interruption notice leaves; ``lease`` is the queue's.

    For machines that come with nothing of ours: ``archives``, architecture → part (of ``agent``,
    ``packages``, ``interpreter``) → blob that the machine unpacks; ``python_version``, the minor version
    that agent and workers run; ``setup``, blob of the script that root runs first.
    """

    backend: str
    store: str
    job: str
    generation: int
    run: int
    key: str = field(repr=False)
    instance: str = ""
    launch: int = 0
    slots: int = 1
    memory_class: int = 0
    memory_mb: float = 2048.0
    folder: str = ""
    python: str = ""
    lifetime: float = 24 * 3600.0
    idle_timeout: float = 60.0
    orphan_after: float = 1800.0
    grace: float = 25.0
    lease: float = 30.0
    backend_options: dict[str, Any] = field(default_factory=dict)
    store_options: dict[str, Any] = field(default_factory=dict)
    archives: dict[str, dict[str, str]] = field(default_factory=dict)
    python_version: str = ""
    setup: str = ""

    @property
    def of_generation(self) -> Generation:
        return Generation(self.job, self.generation)

    @property
    def of_run(self) -> Run:
        return Run(self.of_generation, self.run)

    def for_machine(
        self,
        instance: str,
        launch: int,
        slots: int,
        memory_class: int,
        folder: str,
        lifetime: float | None = None,
    ) -> Boot:
        """The same for one machine of a launch; the memory limit doubles with each memory class.
        ``lifetime``: as its record pinned it."""
        return replace(
            self,
            instance=instance,
            launch=launch,
            slots=slots,
            memory_class=memory_class,
            memory_mb=self.memory_mb * 2**memory_class,
            folder=folder,
            lifetime=self.lifetime if lifetime is None else lifetime,
        )

    def to_text(self) -> str:
        return json.dumps({"format": FORMAT, **self.__dict__})

    @classmethod
    def from_text(cls, text: str) -> Boot:
        stored = json.loads(text)
        if stored.pop("format", None) != FORMAT:
            raise FormatMismatch("boot data of a format that this agent does not read")
        return cls(**stored)
