"""What is stored for machines that come with nothing of ours, before a run begins: archives of the user's
packages (once for each generation), of the agent and, where it can be had, of an interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow_provider_spotbatch.backends.base import BareMachines
from airflow_provider_spotbatch.control.blobs import keep_blob
from airflow_provider_spotbatch.control.site import Site
from airflow_provider_spotbatch.environment.built_archive import Archive
from airflow_provider_spotbatch.environment.installed import installed_versions, requirements_of_modules
from airflow_provider_spotbatch.environment.interpreters import interpreter_archive
from airflow_provider_spotbatch.environment.machine_archives import (
    agent_archive,
    check_python,
    packages_archive,
)
from airflow_provider_spotbatch.environment.packing import Packed
from airflow_provider_spotbatch.job.errors import InvalidInput
from airflow_provider_spotbatch.job.keys import blob
from airflow_provider_spotbatch.job.resources import Resources
from airflow_provider_spotbatch.job.spec import WorkerEnvironment

Say = Callable[[str], None]


async def store_packages(site: Site, packed: Packed, resources: Resources, say: Say) -> WorkerEnvironment:
    """Have the environment's packages, and its setup script, in the store; the environment that names them.

    Raises InvalidInput where they cannot be had for any architecture that the job may use.
    """
    environment, bare = packed.environment, await site.backend.bare_machines(resources)
    if bare is None:
        return environment
    check_python(environment.python)
    if environment.setup is not None:
        name, script = environment.setup_blob, environment.setup.encode()
        await keep_blob(site.store, name, site.wall_clock(), partial(site.store.write, blob(name), script))
    requirements = environment.packages
    constraints: tuple[str, ...] = ()
    if not requirements:
        requirements, constraints = requirements_of_modules(packed.installed), installed_versions()
        if requirements:
            say(f"machines get what the function imports, as it is here: {', '.join(requirements)}")
    if not requirements:
        return environment
    say("the environment is being made ready, unless it is kept from an earlier job")

    async def build(architecture: str) -> Archive:
        return await packages_archive(
            requirements, constraints, environment.python, architecture, site.backend.root
        )

    archives, refusals = await _for_each(_architectures(bare, resources), build)
    if not archives:
        raise next(iter(refusals.values()))
    for architecture, refusal in refusals.items():
        say(f"no machines of {architecture}: {refusal}")
    await _keep(site, archives.values())
    return replace(environment, archives={name: each.sha256 for name, each in archives.items()})


async def store_agent(
    site: Site, environment: WorkerEnvironment, resources: Resources, say: Say
) -> dict[str, dict[str, str]]:
    """Have the agent, and an interpreter if there is one to send, in the store: architecture → part → blob,
    for the architectures that the environment can be had for."""
    bare = await site.backend.bare_machines(resources)
    if bare is None:
        return {}
    asked = _architectures(bare, resources)
    architectures = [each for each in asked if each in environment.archives or not environment.archives]
    if not architectures:
        raise InvalidInput(
            f"item_resources asks for {' or '.join(asked)}, and the environment of this job was made for "
            f"{' and '.join(environment.archives)}: ask for these, or say reuse='never' to make it anew"
        )

    async def build_agent(architecture: str) -> Archive:
        return await agent_archive(
            bare.distributions, bare.only, environment.python, architecture, site.backend.root
        )

    async def build_interpreter(architecture: str) -> Archive:
        return await interpreter_archive(environment.python, architecture, site.backend.root)

    without = [each for each in architectures if bare.pythons[each] != environment.python]
    (agents, wrong), (interpreters, missing) = await asyncio.gather(
        _for_each(architectures, build_agent), _for_each(without, build_interpreter)
    )
    if wrong:
        raise next(iter(wrong.values()))
    for architecture, reason in missing.items():
        say(f"machines of {architecture} need an image with Python {environment.python}: {reason}")
        if bare.pythons[architecture]:  # known to be another
            del agents[architecture]
    if not agents:
        raise next(iter(missing.values()))
    await _keep(site, (*agents.values(), *interpreters.values()))
    parts: dict[str, dict[str, str]] = {name: {"agent": each.sha256} for name, each in agents.items()}
    for name, each in interpreters.items():
        parts[name]["interpreter"] = each.sha256
    return parts


async def _keep(site: Site, archives: Iterable[Archive]) -> None:
    await asyncio.gather(
        *(
            keep_blob(
                site.store,
                each.sha256,
                site.wall_clock(),
                partial(site.store.upload, blob(each.sha256), Path(each.path)),
            )
            for each in archives
        )
    )


def _architectures(bare: BareMachines, resources: Resources) -> list[str]:
    return [each for each in bare.pythons if each in (resources.architectures or bare.pythons)]


async def _for_each(
    architectures: Iterable[str], build: Callable[[str], Awaitable[Archive]]
) -> tuple[dict[str, Archive], dict[str, InvalidInput]]:
    """What could be built and what could not, by architecture."""
    names = list(architectures)
    made = await asyncio.gather(*map(build, names), return_exceptions=True)
    built: dict[str, Archive] = {}
    refused: dict[str, InvalidInput] = {}
    for name, result in zip(names, made, strict=True):
        if isinstance(result, Archive):
            built[name] = result
        elif isinstance(result, InvalidInput):
            refused[name] = result
        else:
            raise result
    return built, refused
