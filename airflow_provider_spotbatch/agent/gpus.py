"""Which of a machine's GPUs a slot's items see."""

from __future__ import annotations

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What NVIDIA's libraries, and all that is built on them, take for the list of GPUs that there are (CUDA C++
Programming Guide, "CUDA Environment Variables")."""


def gpus_of_slot(slot: int, gpus_of_item: int) -> dict[str, str]:
    """Environment variables of a slot's worker: each slot has ``gpus_of_item`` GPUs to itself, numbered from
    0 on each machine. Empty where items ask for none: those that a machine has all the same, they all see."""
    first = slot * gpus_of_item
    devices = range(first, first + gpus_of_item)
    return {VISIBLE: ",".join(map(str, devices))} if devices else {}
