"""What one item needs of a machine."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_spotbatch.job.errors import InvalidInput


def positive(name: str, value: Any) -> float:
    """``value`` as a finite number above zero, or a clear error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number above 0, not {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidInput(f"{name} must be a number above 0, not {value!r}")
    return value


@dataclass(frozen=True)
class Resources:
    """What ONE item needs: CPUs, memory and disk in GB (2**30 bytes), GPUs, or named machine types.

    ``architectures``: of ``x86_64`` and ``arm64``; empty means any that the environment allows.
    """

    cpus: float = 1
    memory_gb: float = 2
    gpus: int = 0
    gpu_memory_gb: float = 0
    disk_gb: float = 0
    architectures: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive("item_resources.cpus", self.cpus)
        positive("item_resources.memory_gb", self.memory_gb)
        for name in ("gpus", "gpu_memory_gb", "disk_gb"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidInput(f"item_resources.{name} must be 0 or more, not {value!r}")
        if self.gpus != int(self.gpus):
            raise InvalidInput(f"item_resources.gpus must be a whole number, not {self.gpus!r}")
        for name in ("architectures", "instance_types"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidInput(f"item_resources.{name} must be a list of names, not the string {value!r}")
            object.__setattr__(self, name, tuple(value))
        unknown = set(self.architectures) - {"x86_64", "arm64"}
        if unknown:
            raise InvalidInput(f"item_resources.architectures knows x86_64 and arm64, not {sorted(unknown)}")

    @property
    def gpus_of_item(self) -> int:
        """GPUs that one item has to itself: who asks for GPU memory asks for a GPU."""
        return int(self.gpus) or int(self.gpu_memory_gb > 0)

    def in_class(self, memory_class: int) -> Resources:
        """The same with the memory of a memory class: doubled ``memory_class`` times."""
        return Resources(**{**asdict(self), "memory_gb": self.memory_gb * 2**memory_class})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Resources:
        return cls(**stored)
