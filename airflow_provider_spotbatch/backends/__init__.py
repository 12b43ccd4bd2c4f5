"""Places to run jobs: the ports, and one implementation per cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_spotbatch.backends.base import Backend, Machine
    from airflow_provider_spotbatch.backends.settings import Settings
    from airflow_provider_spotbatch.job.boot import Boot

BACKENDS = ("aws", "local", "memory")
"""Names that a connection's field ``backend`` may hold."""


def open_backend(settings: Settings) -> Backend:
    """The backend a connection names, for the Airflow side."""
    if settings.backend == "aws":
        from airflow_provider_spotbatch.backends.aws import AwsBackend

        return AwsBackend(settings)
    if settings.backend == "local":
        from airflow_provider_spotbatch.backends.local import LocalBackend

        return LocalBackend(settings)
    if settings.backend == "memory":
        from airflow_provider_spotbatch.backends.memory import MemoryBackend

        return MemoryBackend(settings)
    from airflow_provider_spotbatch.job.errors import InvalidInput

    raise InvalidInput(
        f"connection {settings.conn_id!r} names the backend {settings.backend!r}; "
        f"this release knows {', '.join(BACKENDS)}"
    )


def open_machine(boot: Boot) -> Machine:
    """The same backend as seen by an agent on one of its machines."""
    if boot.backend == "aws":
        from airflow_provider_spotbatch.backends.aws import AwsMachine

        return AwsMachine(boot)
    if boot.backend == "local":
        from airflow_provider_spotbatch.backends.local import LocalMachine

        return LocalMachine(boot)
    if boot.backend == "memory":
        from airflow_provider_spotbatch.backends.memory import MemoryMachine

        return MemoryMachine(boot)
    from airflow_provider_spotbatch.job.errors import InvalidInput

    raise InvalidInput(f"boot data names the backend {boot.backend!r}, which this agent does not know")
