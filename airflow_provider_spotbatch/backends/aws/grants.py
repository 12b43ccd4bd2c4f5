"""``spotbatch grant aws``: reads and writes the policy of what machines may do with data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_spotbatch.backends.aws.clients import Clients
from airflow_provider_spotbatch.backends.aws.data_policy import Grants, data_policy, grants_of
from airflow_provider_spotbatch.backends.aws.setup_look import asked, inline_policy
from airflow_provider_spotbatch.backends.aws.setup_plan import DATA_POLICY
from airflow_provider_spotbatch.job.errors import InvalidInput


async def read_grants(clients: Clients, role: str) -> tuple[Grants, list[dict[str, Any]]]:
    """What the machines of a role may do with data, and statements of others in that policy. Raises
    InvalidInput where there is no such role."""
    if await asked(clients, "iam", "GetRole", RoleName=role) is None:
        raise InvalidInput(
            f"there is no role {role!r}: run 'spotbatch setup aws' first, or give --name and --region of the "
            "set-up"
        )
    stored = await inline_policy(clients, role, DATA_POLICY)
    return grants_of(stored or {})


async def write_grants(
    clients: Clients, role: str, grants: Grants, others: Sequence[Mapping[str, Any]]
) -> None:
    """Let the machines of a role do this with data and nothing else. Within seconds it holds everywhere."""
    if not grants and not others:
        await asked(clients, "iam", "DeleteRolePolicy", RoleName=role, PolicyName=DATA_POLICY)
        return
    identity = await clients.call("sts", "GetCallerIdentity")
    document = data_policy(grants, identity["Arn"].split(":")[1], others)
    await clients.call(
        "iam",
        "PutRolePolicy",
        RoleName=role,
        PolicyName=DATA_POLICY,
        PolicyDocument=json.dumps(document, separators=(",", ":")),
    )
