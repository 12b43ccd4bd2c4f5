from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("airflow.providers.amazon", reason="the Amazon provider is not installed")

from airflow_provider_spotbatch.backends import open_backend
from airflow_provider_spotbatch.backends.aws import AwsBackend
from airflow_provider_spotbatch.hooks import SpotBatchHook
from airflow_provider_spotbatch.job.errors import InvalidInput

Connect = Callable[..., SpotBatchHook]

WHOLE = {
    "backend": "aws",
    "store": "s3://bucket/prefix",
    "aws_conn_id": "amazon",
    "region": "eu-west-1",
    "subnets": "subnet-0a1b2c3d, subnet-1a2b3c4d",
    "security_groups": ["sg-0a1b2c3d"],
    "instance_profile": "machines",
    "image": "ami-0a1b2c3d\n/aws/service/debian/release/12/latest/arm64",
    "public_address": "true",
    "tags": {"team": "film"},
}

AMAZON: dict[str, Any] = {
    "conn_type": "aws",
    "login": "an-id",
    "password": "a-secret",
    "extra": {"region_name": "us-east-2", "endpoint_url": "http://127.0.0.1:9"},
}


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    monkeypatch.setenv("AIRFLOW_CONN_AMAZON", json.dumps(AMAZON))

    def make(password: str | None = "signing key", **changed: Any) -> SpotBatchHook:
        extra = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
        stored = {"conn_type": "spotbatch", "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SITE", json.dumps(stored))
        return SpotBatchHook("site")

    return make


def test_every_field_of_aws_is_read(connect: Connect) -> None:
    options = connect().get_settings().options
    session = options.pop("session")()
    assert len(options.pop("identity")) == len(hashlib.sha256().hexdigest())
    assert options == {
        "region": "eu-west-1",
        "endpoint_url": "http://127.0.0.1:9",
        "subnets": ["subnet-0a1b2c3d", "subnet-1a2b3c4d"],
        "security_groups": ["sg-0a1b2c3d"],
        "instance_profile": "machines",
        "image": ["ami-0a1b2c3d", "/aws/service/debian/release/12/latest/arm64"],
        "public_address": True,
        "tags": {"team": "film"},
    }
    assert session.region_name == "eu-west-1"
    assert session.get_credentials().access_key == "an-id"


def test_the_region_may_be_the_amazon_connections(connect: Connect) -> None:
    assert connect(region=None).get_settings().options["region"] == "us-east-2"


def test_a_running_job_goes_by_what_the_amazon_connection_says_now(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key was replaced, or the connection names another, while a job of it runs."""
    job = AwsBackend(connect().get_settings())
    running = job.region.clients
    old = running.session_now()
    assert AwsBackend(connect().get_settings()).region.clients is running
    assert running.session_now() is old, "nothing has changed"
    monkeypatch.setenv("AIRFLOW_CONN_AMAZON", json.dumps({**AMAZON, "login": "a-new-id"}))
    AwsBackend(connect().get_settings())
    assert running.session_now().get_credentials().access_key == "a-new-id"
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**AMAZON, "login": "another-id"}))
    AwsBackend(connect(aws_conn_id="other").get_settings())
    assert running.session_now().get_credentials().access_key == "another-id"


def test_certificates_and_proxies_are_those_of_the_amazon_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies = {"https": "http://proxy:3128"}
    extra = {**AMAZON["extra"], "verify": "/etc/ca.pem", "config_kwargs": {"proxies": proxies}}
    monkeypatch.setenv("AIRFLOW_CONN_AMAZON", json.dumps({**AMAZON, "extra": extra}))
    options = connect().get_settings().options
    assert (options["verify"], options["config"].proxies) == ("/etc/ca.pem", proxies)


def test_opening_the_backend_asks_nothing_of_the_network(connect: Connect) -> None:
    backend = open_backend(connect(tags=None).get_settings())
    assert (backend.name, backend.store_uri) == ("aws", "s3://bucket/prefix")
    assert backend.boot_options() == {"region": "eu-west-1", "endpoint_url": "http://127.0.0.1:9"}
    assert "secret" not in json.dumps([backend.boot_options(), backend.store_options])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"store": None}, "'store' must be s3://bucket/prefix"),
        ({"store": "gs://bucket"}, "'store' must be s3://bucket/prefix"),
        ({"store": "s3://bucket/" + "x" * 256}, "of at most 256 characters"),
        ({"instance_profile": None}, "machines need an 'instance_profile'"),
        ({"aws_conn_id": "nowhere"}, "the connection 'nowhere', which does not exist"),
        ({"aws_conn_id": None, "region": None}, "name the 'region'"),
        ({"region": "us-easst-2"}, "'us-easst-2' does not look like us-east-2"),
        ({"region": "us-east-2a"}, "a zone has a letter more"),
        ({"region": "cn-north-1"}, "'site': machines in cn-north-1 are priced in CNY"),
        ({"region": "eusc-de-east-1"}, "machines in eusc-de-east-1 are priced in EUR"),
        ({"subnets": "vpc-0a1b2c3d"}, "'vpc-0a1b2c3d' in 'subnets' does not look like subnet-"),
        ({"security_groups": "default"}, "'default' in 'security_groups' does not look like sg-"),
        ({"image": "debian"}, "'debian' in 'image' does not look like ami-"),
        ({"public_address": "perhaps"}, "'public_address' must be true or false"),
        ({"password": None}, "has no password"),
        *(
            ({"store_options": {name: "a secret"}}, f"leave {name!r} out of 'store_options': .*'aws_conn_id'")
            for name in ("secret_access_key", "AWS_ACCESS_KEY_ID", "Token", "aws_session_token", "role_arn")
        ),
        ({"tags": {"team": 7}}, "the tag 'team' in 'tags' must have a text, not 7"),
        ({"tags": {"aws:team": "film"}}, "the tag 'aws:team' in 'tags' cannot be"),
        ({"tags": {"k" * 129: "film"}}, "keys of 1 to 128 characters"),
        ({"tags": {"team": "v" * 257}}, "values of at most 256"),
        ({"tags": {str(n): "" for n in range(44)}}, "44 'tags'; machines take 43"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*Unable to find AWS Connection")
def test_a_wrong_field_of_aws_is_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    for variable in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidInput, match=message):
        connect(**changed).get_settings()
