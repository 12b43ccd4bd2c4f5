"""What a connection says of backend aws, and the Amazon connection that gives its credentials."""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from typing import Any

from airflow_provider_spotbatch.backends.aws.prices import check_currency
from airflow_provider_spotbatch.connection_extra import Extra
from airflow_provider_spotbatch.job.errors import InvalidInput

TAG_KEY = 128
TAG_VALUE = 256
TAGS = 43
"""Characters of a tag's key and value at most, and tags besides our own, of the 50 that a machine may have
(EC2 User Guide, "Tag restrictions"). Machines carry the store's URI as the value of one."""

_CREDENTIAL = re.compile("access_key|token|credential|role|profile", re.IGNORECASE)
"""obstore's settings of who asks, in any of their spellings."""

_FORMS = {
    "subnets": r"subnet-[0-9a-f]+",
    "security_groups": r"sg-[0-9a-f]+",
    "image": r"ami-[0-9a-f]+|/[A-Za-z0-9_.\-/]+",
}


def aws_options(conn_id: str, extra: Extra) -> dict[str, Any]:
    """The options of the aws backend. Raises InvalidInput naming the field that is wrong."""
    store = extra.text("store") or ""
    if not re.fullmatch(r"s3://[a-z0-9.\-]{3,63}(/.*)?", store) or len(store) > TAG_VALUE:
        raise InvalidInput(
            f"connection {conn_id!r}: backend aws keeps jobs and results in a bucket: 'store' must be "
            f"s3://bucket/prefix of at most {TAG_VALUE} characters, not {store!r}"
        )
    _check_store_options(conn_id, extra)
    return {
        **_amazon(conn_id, extra.text("aws_conn_id"), extra.text("region")),
        "instance_profile": _instance_profile(conn_id, extra),
        "public_address": extra.flag("public_address"),
        "tags": _tags(conn_id, extra) or None,
        **{name: _names(conn_id, extra, name, form) for name, form in _FORMS.items()},
    }


def _amazon(conn_id: str, aws_conn_id: str | None, region: str | None) -> dict[str, Any]:
    """The options that say how calls reach the account.

    The Amazon connection is read here and now: later it would be read in a thread of the SDK calls, which a
    triggerer does not allow.
    """
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    except ImportError as error:
        raise InvalidInput(
            f"connection {conn_id!r}: backend aws needs the Amazon provider: pip install "
            f"'airflow-provider-spotbatch[aws]' ({error})"
        ) from error
    hook = AwsBaseHook(aws_conn_id=aws_conn_id, region_name=region)
    amazon = hook.conn_config
    if aws_conn_id and amazon.conn_id != aws_conn_id:
        raise InvalidInput(
            f"connection {conn_id!r} takes its credentials from the connection {aws_conn_id!r}, which does "
            "not exist: create it (type aws), correct 'aws_conn_id', or leave it empty to use those of "
            "this process"
        )
    if not amazon.region_name:
        raise InvalidInput(f"connection {conn_id!r}: name the 'region' of its machines, such as eu-west-1")
    if not _REGION.fullmatch(amazon.region_name):
        raise InvalidInput(
            f"connection {conn_id!r}: the region {amazon.region_name!r} does not look like us-east-2 "
            "or eu-west-1 (a zone has a letter more)"
        )
    try:
        check_currency(amazon.region_name)
    except InvalidInput as error:
        raise InvalidInput(f"connection {conn_id!r}: {error}") from None
    return {
        "region": amazon.region_name,
        "endpoint_url": amazon.endpoint_url or "",
        "session": partial(hook.get_session, amazon.region_name),
        "verify": hook.verify,
        "config": amazon.botocore_config,
        "identity": _digest([amazon.conn_id, amazon.login, amazon.password, amazon.extra_config]),
    }


def _digest(said: list[Any]) -> str:
    """Tells whether a connection says the same as before, and not what."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def _check_store_options(conn_id: str, extra: Extra) -> None:
    """Machines receive them in their boot data, which is no place for credentials: they have a role."""
    for name in extra.mapping("store_options"):
        if _CREDENTIAL.search(name):
            raise InvalidInput(
                f"connection {conn_id!r}: leave {name!r} out of 'store_options': on aws Airflow has the "
                "credentials that 'aws_conn_id' names, and the machines have their 'instance_profile'"
            )


def _instance_profile(conn_id: str, extra: Extra) -> str:
    """Without one a machine could reach neither queue nor store."""
    profile = extra.text("instance_profile")
    if not profile:
        raise InvalidInput(
            f"connection {conn_id!r}: machines need an 'instance_profile' that lets them reach queue and "
            "store. 'spotbatch setup aws' makes one"
        )
    return profile


def _tags(conn_id: str, extra: Extra) -> dict[str, str]:
    tags = extra.mapping("tags")
    if len(tags) > TAGS:
        raise InvalidInput(f"connection {conn_id!r}: {len(tags)} 'tags'; machines take {TAGS} beside our own")
    for key, value in tags.items():
        if not isinstance(value, str):
            raise InvalidInput(
                f"connection {conn_id!r}: the tag {key!r} in 'tags' must have a text, not {value!r}"
            )
        if not 0 < len(key) <= TAG_KEY or len(value) > TAG_VALUE or key.lower().startswith("aws:"):
            raise InvalidInput(
                f"connection {conn_id!r}: the tag {key[:TAG_KEY]!r} in 'tags' cannot be: EC2 takes keys of 1 "
                f"to {TAG_KEY} characters without the prefix 'aws:', and values of at most {TAG_VALUE}"
            )
    return tags


def _names(conn_id: str, extra: Extra, name: str, form: str) -> list[str]:
    names = extra.names(name)
    for each in names:
        if not re.fullmatch(form, each):
            raise InvalidInput(
                f"connection {conn_id!r}: {each!r} in {name!r} does not look like {_LOOKS[name]}"
            )
    return names


_REGION = re.compile(
    r"[a-z]+(-[a-z]+)?-(central|north|northeast|northwest|south|southeast|southwest|east|west)-[0-9]+"
)
"""As all are named, sovereign and isolated ones included: us-east-2, us-gov-west-1, eusc-de-east-1. A name
that does not exist would only show as hosts that cannot be found."""

_LOOKS = {
    "subnets": "subnet-0123456789abcdef0",
    "security_groups": "sg-0123456789abcdef0",
    "image": "ami-0123456789abcdef0, or like the path of an SSM parameter: /aws/service/…",
}
