"""``spotbatch setup aws`` and ``grant aws`` on a moto server: made, completed, corrected, taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from airflow_provider_spotbatch.backends.aws.instances import STORE_TAG
from airflow_provider_spotbatch.backends.aws.policies import airflow_policy, machine_policy
from airflow_provider_spotbatch.backends.aws.setup_plan import EXPIRE_DAYS, MAX_RUNTIME_DAYS, Layout
from airflow_provider_spotbatch.cli import main
from airflow_provider_spotbatch.hooks import read_settings
from tests.cloud.cloudbox.moto import ACCOUNT, Moto
from tests.support.aws import AMAZON_LINUX, REGION

BUCKET = f"spotbatch-{ACCOUNT}-{REGION}"
ROLE = f"spotbatch-machines-{REGION}"
COMMAND = (sys.executable, "-m", "airflow_provider_spotbatch.cli")
POLICY = f"arn:aws:iam::{ACCOUNT}:policy/spotbatch-airflow-{REGION}"


@pytest.fixture(autouse=True)
def shell(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell with credentials of the account."""
    variables = {
        "AWS_ENDPOINT_URL": moto.url,
        "AWS_ACCESS_KEY_ID": "shell",
        "AWS_SECRET_ACCESS_KEY": "shell",
        "AWS_DEFAULT_REGION": REGION,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def spotbatch(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command with --json, and gives its answer."""

    def run(*words: str) -> Any:
        capsys.readouterr()
        code = main([*words, "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        return json.loads(told.out)

    return run


def s3(moto: Moto) -> Any:
    return moto.client("s3", REGION)


def iam(moto: Moto) -> Any:
    return moto.client("iam", "us-east-1")


def ec2(moto: Moto) -> Any:
    return moto.client("ec2", REGION)


def default_vpc(moto: Moto) -> str:
    [vpc] = ec2(moto).describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    return str(vpc["VpcId"])


def layout(moto: Moto) -> Layout:
    return Layout(ACCOUNT, REGION, default_vpc(moto))


def group_of(moto: Moto) -> dict[str, Any]:
    groups = ec2(moto).describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["spotbatch-machines"]}]
    )["SecurityGroups"]
    [group] = groups
    found: dict[str, Any] = group
    return found


def errors_of(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 1
    return capsys.readouterr().err


# --- making -----------------------------------------------------------------------------------------


def test_the_bucket_is_private_encrypted_and_outlives_every_job(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    block = s3(moto).get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert set(block.values()) == {True}
    [rule] = s3(moto).get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    [rule] = s3(moto).get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert (rule["Status"], rule["Expiration"]["Days"]) == ("Enabled", EXPIRE_DAYS)
    assert EXPIRE_DAYS > 10 * MAX_RUNTIME_DAYS


def test_the_machines_have_the_least_policy_and_nothing_else(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    assert iam(moto).list_role_policies(RoleName=ROLE)["PolicyNames"] == ["jobs"]
    stored = iam(moto).get_role_policy(RoleName=ROLE, PolicyName="jobs")["PolicyDocument"]
    assert stored == machine_policy(layout(moto).scope)
    assert iam(moto).list_attached_role_policies(RoleName=ROLE)["AttachedPolicies"] == []
    trust = iam(moto).get_role(RoleName=ROLE)["Role"]["AssumeRolePolicyDocument"]
    assert [each["Principal"] for each in trust["Statement"]] == [{"Service": "ec2.amazonaws.com"}]
    profile = iam(moto).get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == [ROLE]


def test_nothing_comes_in_to_the_machines(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    assert group_of(moto)["IpPermissions"] == []


def test_airflows_policy_is_there_to_be_attached(moto: Moto, spotbatch: Any) -> None:
    answer = spotbatch("setup", "aws")
    assert answer["airflow_policy_arn"] == POLICY
    version = iam(moto).get_policy_version(PolicyArn=POLICY, VersionId="v1")["PolicyVersion"]
    assert version["Document"] == airflow_policy(layout(moto).scope)


def test_the_connection_that_is_printed_is_one_that_the_hook_reads(moto: Moto, spotbatch: Any) -> None:
    connection = spotbatch("setup", "aws", "--aws-conn-id", "")["connection"]

    class Connection:
        conn_type = connection["conn_type"]
        password = connection["password"]
        extra_dejson = connection["extra"]

    settings = read_settings("spotbatch_default", Connection())
    assert (settings.backend, settings.store) == ("aws", f"s3://{BUCKET}")
    assert settings.key.decode() == connection["password"]
    assert len(settings.key) == 64
    assert settings.options["instance_profile"] == ROLE
    assert settings.options["security_groups"] == [group_of(moto)["GroupId"]]


def test_the_command_that_is_printed_hands_the_connection_to_airflow(
    moto: Moto, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "aws", "--aws-conn-id", "aws_default"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "connections add" in line]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True, timeout=10
    ).stdout.splitlines()
    assert words[:5] == ["airflow", "connections", "add", "spotbatch_default", "--conn-json"]
    assert json.loads(words[5])["extra"]["aws_conn_id"] == "aws_default"


def test_each_set_up_has_a_key_of_its_own(moto: Moto, spotbatch: Any) -> None:
    keys = {spotbatch("setup", "aws", "--name", name)["connection"]["password"] for name in ("one", "two")}
    assert len(keys) == 2


def test_a_store_that_holds_jobs_gets_no_new_key(
    moto: Moto, spotbatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spotbatch("setup", "aws")
    s3(moto).put_object(Bucket=BUCKET, Key="jobs/x/owner.json", Body=b"{}")
    assert main(["setup", "aws", "--json"]) == 0
    told = capsys.readouterr()
    assert "password" not in json.loads(told.out)["connection"]
    assert "keep the password of the connection" in told.err
    assert main(["setup", "aws"]) == 0
    assert "but for its password, which is the one that you have" in capsys.readouterr().out


# --- again --------------------------------------------------------------------------------------------


def test_a_second_set_up_changes_nothing(moto: Moto, spotbatch: Any) -> None:
    assert len(spotbatch("setup", "aws")["made"]) == 6
    assert spotbatch("setup", "aws")["made"] == []


def test_a_dry_run_makes_nothing_and_shows_the_policies(moto: Moto, spotbatch: Any) -> None:
    plan = spotbatch("setup", "aws", "--dry-run")
    assert [name for name in ("bucket", "role", "policy") if any(name in each for each in plan["would_make"])]
    assert plan["policies"]["machines"] == machine_policy(layout(moto).scope)
    assert len(spotbatch("setup", "aws", "--dry-run")["would_make"]) == 6
    assert s3(moto).list_buckets()["Buckets"] == []


def test_what_was_broken_off_or_changed_is_completed(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    s3(moto).delete_bucket_lifecycle(Bucket=BUCKET)
    s3(moto).delete_public_access_block(Bucket=BUCKET)
    iam(moto).delete_role_policy(RoleName=ROLE, PolicyName="jobs")
    iam(moto).remove_role_from_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    ec2(moto).authorize_security_group_ingress(
        GroupId=group_of(moto)["GroupId"],
        IpPermissions=[
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ],
    )
    made = spotbatch("setup", "aws")["made"]
    assert len(made) == 5
    assert any("1 inbound rules" in each for each in made)
    assert group_of(moto)["IpPermissions"] == []
    assert spotbatch("setup", "aws")["made"] == []


def test_a_policy_of_an_earlier_release_is_replaced_however_often_that_was_done(
    moto: Moto, spotbatch: Any
) -> None:
    spotbatch("setup", "aws")
    wanted = airflow_policy(layout(moto).scope)
    for round_ in range(6):
        old = {**wanted, "Statement": wanted["Statement"][: round_ + 1]}
        versions = iam(moto).list_policy_versions(PolicyArn=POLICY)["Versions"]
        spare = [each["VersionId"] for each in versions if not each["IsDefaultVersion"]]
        if len(versions) == 5:
            iam(moto).delete_policy_version(PolicyArn=POLICY, VersionId=spare[-1])
        iam(moto).create_policy_version(PolicyArn=POLICY, PolicyDocument=json.dumps(old), SetAsDefault=True)
        assert len(spotbatch("setup", "aws")["made"]) == 1
    default = iam(moto).get_policy(PolicyArn=POLICY)["Policy"]["DefaultVersionId"]
    stored = iam(moto).get_policy_version(PolicyArn=POLICY, VersionId=default)["PolicyVersion"]
    assert stored["Document"] == wanted


# --- what is not the set-up's own -------------------------------------------------------------------------


def test_a_bucket_of_the_users_is_left_as_it_is(
    moto: Moto, spotbatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    s3(moto).create_bucket(Bucket="team-bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
    assert main(["setup", "aws", "--bucket", "team-bucket/spot", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["connection"]["extra"]["store"] == "s3://team-bucket/spot"
    assert "bucket team-bucket is not of this set-up" in told.err
    with pytest.raises(s3(moto).exceptions.ClientError, match="NoSuchLifecycleConfiguration"):
        s3(moto).get_bucket_lifecycle_configuration(Bucket="team-bucket")
    removed = spotbatch("setup", "aws", "--bucket", "team-bucket/spot", "--remove")["removed"]
    assert not any("bucket" in each for each in removed)


def test_a_role_of_somebody_else_is_not_taken_over(moto: Moto, capsys: pytest.CaptureFixture[str]) -> None:
    iam(moto).create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
    assert f"role {ROLE} is there already" in errors_of(["setup", "aws"], capsys)
    assert s3(moto).list_buckets()["Buckets"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--name", "Spot Batch"), "--name 'Spot Batch'"),
        (("--bucket", "team_bucket"), "--bucket 'team_bucket'"),
        (("--bucket", "team-bucket/a*b"), "'a*b'"),
        (("--subnet", "subnet-00000000"), "subnet-00000000"),
        (("--region", "cn-north-1"), "priced in CNY"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    words: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in errors_of(["setup", "aws", *words], capsys)


def test_subnets_that_are_named_are_the_machines(moto: Moto, spotbatch: Any) -> None:
    vpc = ec2(moto).create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2(moto).create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    connection = spotbatch("setup", "aws", "--subnet", subnet)["connection"]
    assert connection["extra"]["subnets"] == [subnet]
    assert group_of(moto)["VpcId"] == vpc


def test_machines_whose_subnets_lead_to_an_internet_gateway_get_addresses(moto: Moto, spotbatch: Any) -> None:
    gateway = ec2(moto).create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    vpc = default_vpc(moto)
    ec2(moto).attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    [table] = ec2(moto).describe_route_tables(
        Filters=[{"Name": "vpc-id", "Values": [vpc]}, {"Name": "association.main", "Values": ["true"]}]
    )["RouteTables"]
    ec2(moto).create_route(
        RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
    )
    assert spotbatch("setup", "aws")["connection"]["extra"]["public_address"] is True


# --- taking away -------------------------------------------------------------------------------------------


def test_it_is_taken_away_without_a_trace(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    spotbatch("grant", "aws", "--read", "s3://data")
    assert len(spotbatch("setup", "aws", "--remove")["removed"]) == 5
    assert s3(moto).list_buckets()["Buckets"] == []
    assert [r for r in iam(moto).list_roles()["Roles"] if r["RoleName"] == ROLE] == []
    assert iam(moto).list_instance_profiles()["InstanceProfiles"] == []
    assert iam(moto).list_policies(Scope="Local")["Policies"] == []
    assert spotbatch("setup", "aws", "--remove")["removed"] == []


def test_airflows_policy_is_detached_and_what_cannot_be_removed_is_named(
    moto: Moto, spotbatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy as set-up's own advice has it attached; a role with a policy of somebody else's."""
    others = {"RoleName": ROLE, "PolicyArn": POLICY.replace("spotbatch-airflow", "others")}
    spotbatch("setup", "aws")
    document = json.dumps(airflow_policy(layout(moto).scope))
    iam(moto).create_policy(PolicyName=f"others-{REGION}", PolicyDocument=document)
    iam(moto).attach_role_policy(**others)
    iam(moto).create_role(RoleName="airflow", AssumeRolePolicyDocument="{}")
    iam(moto).attach_role_policy(RoleName="airflow", PolicyArn=POLICY)

    assert f"role {ROLE}: iam:DeleteRole was refused" in errors_of(["setup", "aws", "--remove"], capsys)
    assert iam(moto).list_attached_role_policies(RoleName="airflow")["AttachedPolicies"] == []
    assert [each["Arn"] for each in iam(moto).list_policies(Scope="Local")["Policies"]] == [
        others["PolicyArn"]
    ]
    assert s3(moto).list_buckets()["Buckets"] == []
    iam(moto).detach_role_policy(**others)
    assert spotbatch("setup", "aws", "--remove")["removed"] == [f"role {ROLE}"]


def test_a_bucket_that_holds_results_is_kept(
    moto: Moto, spotbatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spotbatch("setup", "aws")
    s3(moto).put_object(Bucket=BUCKET, Key="out/x", Body=b"result")
    assert main(["setup", "aws", "--remove"]) == 0
    assert f"bucket {BUCKET} is kept" in capsys.readouterr().err
    assert s3(moto).get_object(Bucket=BUCKET, Key="out/x")["Body"].read() == b"result"


def test_nothing_is_taken_away_from_machines_that_run(
    moto: Moto, spotbatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spotbatch("setup", "aws")
    tags = {
        STORE_TAG: f"s3://{BUCKET}",
        "spotbatch:run": "job/1/1",
        "spotbatch:launch": "1",
        "spotbatch:slots": "2",
    }
    started = ec2(moto).run_instances(
        ImageId=AMAZON_LINUX[0].id,
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        ],
    )
    machine = started["Instances"][0]["InstanceId"]
    assert machine in errors_of(["setup", "aws", "--remove"], capsys)
    assert iam(moto).get_role(RoleName=ROLE)
    ec2(moto).terminate_instances(InstanceIds=[machine])
    assert len(spotbatch("setup", "aws", "--remove")["removed"]) == 5


# --- what jobs cost there ---------------------------------------------------------------------------------


def test_an_estimate_of_the_set_up_is_all_that_standard_output_holds(moto: Moto, spotbatch: Any) -> None:
    connection = spotbatch("setup", "aws", "--aws-conn-id", "aws_box")["connection"]
    connection["extra"]["image"] = AMAZON_LINUX[0].id
    amazon = {"endpoint_url": moto.url, "region_name": REGION}
    told = subprocess.run(
        [*COMMAND, "estimate", "--items", "640", "--item-seconds", "60", "--concurrency", "64", "--json"],
        env={
            **os.environ,
            "AIRFLOW_CONN_SPOTBATCH_DEFAULT": json.dumps(connection),
            "AIRFLOW_CONN_AWS_BOX": json.dumps(
                {"conn_type": "aws", "login": "shell", "password": "shell-secret", "extra": amazon}
            ),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told.returncode == 0, told.stderr
    expected = json.loads(told.stdout)
    assert expected["slots"] == 64
    assert sum(each["count"] * each["offer"]["slots"] for each in expected["machines"]) == 64
    assert expected["seconds"] == 90 + 10 * 60
    assert 0 < expected["usd_per_hour"] < expected["on_demand_usd_per_hour"]
    assert expected["usd"] == pytest.approx(expected["usd_per_hour"] * 690 / 3600)


# --- grants ------------------------------------------------------------------------------------------------


def test_grants_add_up_and_are_taken_away(moto: Moto, spotbatch: Any) -> None:
    secret = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:token-AbCdEf"
    spotbatch("setup", "aws")
    spotbatch("grant", "aws", "--read", "s3://data", "--write", "s3://out/a/")
    all_of_it = {"role": ROLE, "read": ["s3://data"], "write": ["s3://out/a"], "secrets": [secret]}
    assert spotbatch("grant", "aws", "--secret", secret) == all_of_it
    assert spotbatch("grant", "aws") == all_of_it
    spotbatch("grant", "aws", "--remove", "--read", "s3://data", "--secret", secret)
    assert spotbatch("grant", "aws") == {"role": ROLE, "read": [], "write": ["s3://out/a"], "secrets": []}
    spotbatch("grant", "aws", "--remove", "--write", "s3://out/a")
    assert iam(moto).list_role_policies(RoleName=ROLE)["PolicyNames"] == ["jobs"]


def test_a_set_up_keeps_what_was_granted(moto: Moto, spotbatch: Any) -> None:
    spotbatch("setup", "aws")
    spotbatch("grant", "aws", "--read", "s3://data")
    assert spotbatch("setup", "aws")["made"] == []
    assert spotbatch("grant", "aws")["read"] == ["s3://data"]


def test_a_grant_without_a_set_up_names_the_command(moto: Moto, capsys: pytest.CaptureFixture[str]) -> None:
    assert "spotbatch setup aws" in errors_of(["grant", "aws", "--read", "s3://data"], capsys)


def test_a_key_and_image_parameters_of_the_users_own_are_in_the_printed_policies(
    spotbatch: Callable[..., Any],
) -> None:
    key = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234"
    words = ("setup", "aws", "--region", REGION, "--dry-run", "--kms-key", key)
    told = spotbatch(*words, "--image-parameter", "/team/image")["policies"]
    assert key in json.dumps(told["machines"])
    assert key in json.dumps(told["airflow"])
    assert "parameter/team/image" in json.dumps(told["airflow"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--kms-key", "alias/ours"), "the ARN of a key"),
        (("--image-parameter", "/team/*"), "without wildcards"),
    ],
)
def test_a_key_or_parameter_that_is_none_is_refused(
    words: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "aws", "--region", REGION, "--dry-run", *words]) != 0
    assert told in capsys.readouterr().err
