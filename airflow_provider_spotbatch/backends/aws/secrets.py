"""Secrets by reference: Secrets Manager and SSM parameters, asked with the machine's own role."""

from __future__ import annotations

from airflow_provider_spotbatch.backends.aws.clients import Clients, ErrorCode
from airflow_provider_spotbatch.job.errors import AccessDenied, InvalidInput, Refusal

_MISSING = frozenset({"ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound"})


async def secret_value(clients: Clients, reference: str) -> str:
    """The text of a secret, or of a parameter (decrypted), by its ARN.

    Raises InvalidInput for what is no such ARN, does not exist or holds no text, and a verdict that names
    what to allow; neither ever holds a value.
    """
    service, region = _place(reference)
    there = clients if region == clients.region else Clients(region, clients.endpoint_url)
    try:
        if service == "ssm":
            answer = await there.call(
                "ssm", "GetParameter", answers=_MISSING, Name=reference, WithDecryption=True
            )
            return str(answer["Parameter"]["Value"])
        answer = await there.call("secretsmanager", "GetSecretValue", answers=_MISSING, SecretId=reference)
    except ErrorCode:
        raise InvalidInput(f"environment.secrets: {reference} does not exist") from None
    except Refusal as refused:
        raise AccessDenied(
            f"environment.secrets: {refused.message}",
            remedy=f"Allow it to the machines: spotbatch grant aws --secret {reference}",
            code=refused.code,
        ) from None
    if "SecretString" not in answer:
        raise InvalidInput(f"environment.secrets: {reference} holds bytes; a variable can only hold text")
    return str(answer["SecretString"])


def _place(reference: str) -> tuple[str, str]:
    """Service and region of an ARN."""
    parts = reference.split(":")
    if len(parts) < 6 or parts[0] != "arn" or parts[2] not in ("secretsmanager", "ssm"):
        raise InvalidInput(
            f"environment.secrets: {reference!r} is no ARN of a secret (arn:aws:secretsmanager:…) or of an "
            "SSM parameter (arn:aws:ssm:…)"
        )
    return parts[2], parts[3]
