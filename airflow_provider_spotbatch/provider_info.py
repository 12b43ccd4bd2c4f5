"""What this package tells Airflow of itself: connection form, decorators, modules, configuration."""

from __future__ import annotations

from typing import Any

INTEGRATION = "SpotBatch"


def _field(label: str, description: str, kind: str = "string", **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": [kind, "null"], **schema}}


CONNECTION_FIELDS: dict[str, dict[str, Any]] = {
    "backend": _field("Backend", "Where the machines are.", default="local", enum=["aws", "local"]),
    "store": _field(
        "Store",
        "Object store of jobs and results: file:///…, s3://bucket/prefix or gs://bucket/prefix. "
        "Empty: the backend's own default.",
    ),
    "store_options": _field("Store options", "JSON object of settings of the store (region, endpoint …)."),
    "old_keys": _field(
        "Old keys",
        "Earlier passwords of this connection, one per line: what they signed can still be read.",
        format="password",
    ),
    "max_instances": _field("Most machines", "Most machines of one job at once.", "integer", minimum=1),
    "max_usd_per_hour": _field("Most USD per hour", "Most that one job may cost per hour.", "number"),
    "budget_usd": _field("Budget in USD", "Budget of a job that does not set its own.", "number"),
    "idle_timeout": _field(
        "Idle seconds", "A machine without work ends after so many seconds (60).", "number"
    ),
    "orphan_after": _field(
        "Orphan seconds", "A machine that no controller watches ends after so many seconds (1800).", "number"
    ),
    "retention_days": _field(
        "Days of retention",
        "Jobs that ended so many days ago are removed by `spotbatch clean`. Empty: nothing is removed.",
        "number",
    ),
    "tags": _field("Tags", "JSON object of tags that every machine carries."),
    "aws_conn_id": _field(
        "Amazon connection",
        "aws: connection of type aws whose credentials start machines. Empty: those of the Airflow process.",
    ),
    "region": _field("Region", "aws: where the machines are. Empty: the region of the Amazon connection."),
    "subnets": _field(
        "Subnets",
        "aws: ids of the machines' subnets, best one in each zone. Empty: the region's default ones.",
    ),
    "security_groups": _field(
        "Security groups", "aws: ids of the machines' security groups; no inbound rule is needed."
    ),
    "instance_profile": _field(
        "Instance profile", "aws: name or ARN of the machines' instance profile: reaches queue and store."
    ),
    "image": _field(
        "Images",
        "aws: ids or SSM parameters of machine images, one for each architecture. Empty: a stock image with "
        "Airflow's Python.",
    ),
    "public_address": _field(
        "Public address",
        "aws: whether machines have one. Without, their subnets need a way to S3, SQS (endpoints, or NAT).",
        "boolean",
    ),
    "path": _field(
        "Path", "Folder on the Airflow side: local: store and queues; default below AIRFLOW_HOME."
    ),
    "instances": _field("Instances", "Local backend: agents at once, each a process.", "integer", minimum=1),
    "rehearse": _field(
        "Rehearse interruptions",
        "Local backend: interrupts its own machines, so many times an hour (2/h) or minute (0.5/m) each, or "
        'as a JSON list says: [{"after": 5, "how": "notice", "machine": 0}]; how: notice, vanish or freeze.',
    ),
}
"""The fields of a connection's extra, as the form shows them. The password is the signing key."""

UI_FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["host", "schema", "login", "port", "extra"],
    "relabeling": {"password": "Signing key"},
    "placeholders": {"password": "python -c 'import secrets; print(secrets.token_hex(32))'"},
}

PROVIDER_INFO: dict[str, Any] = {
    "package-name": "airflow-provider-spotbatch",
    "name": "SpotBatch",
    "description": "Run a function over many items on spot machines.",
    "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
    "operators": [
        {"integration-name": INTEGRATION, "python-modules": ["airflow_provider_spotbatch.operators"]}
    ],
    "hooks": [{"integration-name": INTEGRATION, "python-modules": ["airflow_provider_spotbatch.hooks"]}],
    "triggers": [
        {"integration-name": INTEGRATION, "python-modules": ["airflow_provider_spotbatch.triggers"]}
    ],
    "task-decorators": [
        {"name": "spot_map", "class-name": "airflow_provider_spotbatch.decorators.spot_map_task"},
        {"name": "spot", "class-name": "airflow_provider_spotbatch.decorators.spot_task"},
    ],
    "connection-types": [
        {
            "connection-type": "spotbatch",
            "hook-class-name": "airflow_provider_spotbatch.hooks.SpotBatchHook",
            "hook-name": "SpotBatch",
            "ui-field-behaviour": UI_FIELD_BEHAVIOUR,
            "conn-fields": CONNECTION_FIELDS,
        }
    ],
    "config": {
        "spotbatch": {
            "description": "Options of airflow-provider-spotbatch.",
            "options": {
                "deployment": {
                    "description": (
                        "Name of this Airflow deployment in job ids. "
                        "Default: the host name in [api] base_url.\n"
                    ),
                    "version_added": "0.1.0",
                    "type": "string",
                    "example": "production",
                    "default": "",
                },
                "deferrable": {
                    "description": (
                        "Whether tasks wait in the triggerer. False: they wait in the worker, "
                        "on a site that runs no triggerer.\n"
                    ),
                    "version_added": "0.1.0",
                    "type": "boolean",
                    "example": None,
                    "default": "True",
                },
                "local_fallback": {
                    "description": (
                        "Whether tasks run on the local backend while the connection "
                        "spotbatch_default does not exist.\n"
                    ),
                    "version_added": "0.1.0",
                    "type": "boolean",
                    "example": None,
                    "default": "True",
                },
            },
        }
    },
}
