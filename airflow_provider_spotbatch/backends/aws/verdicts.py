"""Amazon's error codes as verdicts: the one table of what they mean and what cures them. Pure.

Codes: EC2 API reference, "Error codes for the Amazon EC2 API"; SQS API reference, "Common error types".
"""

from __future__ import annotations

import re

from airflow_provider_spotbatch.job.errors import (
    AccessDenied,
    BadRequest,
    CloudUnavailable,
    NoCapacity,
    QuotaExceeded,
    SpotBatchError,
    Throttled,
)

NO_CAPACITY = {
    "InsufficientInstanceCapacity": "Other types and zones are tried; more subnets in other zones, or fewer "
    "limits in item_resources, leave more to choose from",
    "UnfulfillableCapacity": "Other types and zones are tried; more subnets in other zones, or fewer limits "
    "in item_resources, leave more to choose from",
    "InsufficientHostCapacity": "Other types and zones are tried",
    "SpotMaxPriceTooLow": "The account's maximum spot price is below the market: other types are tried",
    "InsufficientFreeAddressesInSubnet": "Free addresses in the subnet, or name larger or more subnets in "
    "'subnets' of the connection",
    "Unsupported": "This type is not to be had in this zone: others are tried",
}
"""Waiting, another type or another zone may do."""

OF_A_POOL = {
    "InvalidFleetConfiguration": "This type is not to be had in this zone: others are tried",
    "InstanceTypeNotSupported": "This type is not to be had in this zone: others are tried",
    "InvalidParameterValue": "This type does not go with the rest of the request: others are tried",
}
"""Codes that say something else of one pool (a type in a zone) of a fleet than of a whole request."""

QUOTAS = {
    "MaxSpotInstanceCountExceeded": "",
    "VcpuLimitExceeded": "",
    "InstanceLimitExceeded": "",
    "MaxFleetCountExceeded": "Wait until other fleets of the account have ended, or ask AWS Support for more "
    "fleet requests",
    "MaxSpotFleetRequestCountExceeded": "Wait until other fleets of the account have ended, or ask AWS "
    "Support for more fleet requests",
    "VolumeLimitExceeded": "Remove unused EBS volumes, or ask for more storage in Service Quotas (service "
    "ebs, L-7A658B76)",
    "NetworkInterfaceLimitExceeded": "Remove unused network interfaces, or ask for more of them in Service "
    "Quotas (service vpc, L-DF5E4CA3)",
}
"""Limits of the account. Those without a remedy are of vCPUs: which one depends on the types asked for."""

VCPU_QUOTAS = frozenset(code for code, remedy in QUOTAS.items() if not remedy)

THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "EC2ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "SlowDown",
        "OverLimit",  # SQS: 120,000 messages in flight
        "AWS.SimpleQueueService.OverLimit",
        "InvalidLaunchTemplateName.NotFoundException",  # just made, and not yet to be seen everywhere
        "InvalidLaunchTemplateId.NotFound",
    }
)

CROWDED = {
    "MaxTemplateLimitExceeded": "A region holds 5,000 launch templates: remove those that nobody uses "
    "('spotbatch sweep' removes what jobs left), or ask for more in Service Quotas (service ec2)",
}
"""Limits of what serves only to launch: room comes back, and until then no kind of machine may be had."""

DENIED = frozenset(
    {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthorizationError", "NotAuthorized"}
)

CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

ACCOUNT = {
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "Have an administrator run once: aws iam "
    "create-service-linked-role --aws-service-name spot.amazonaws.com",
    "OptInRequired": "Enable the service or region for this account in the AWS console",
    "PendingVerification": "AWS is still verifying the account: wait for its mail, some hours at most",
    "Blocked": "The account is blocked: contact AWS Support",
}
"""What the account must be allowed by others than the connection's credentials."""

UNAVAILABLE = frozenset(
    {"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "Unavailable"}
)
"""The service failed: nothing is known of the call's effect."""

WRONG = {
    "InvalidAMIID.NotFound": "Correct 'image' of the connection: it must exist in its region",
    "InvalidAMIID.Malformed": "Correct 'image' of the connection: ami-… or the path of an SSM parameter",
    "InvalidAMIID.Unavailable": "Choose another 'image' in the connection: this one can no longer be used",
    "ParameterNotFound": "Correct 'image' of the connection: there is no such SSM parameter in its region",
    "InvalidSubnetID.NotFound": "Correct 'subnets' of the connection: they must exist in its region",
    "InvalidSubnetID.Malformed": "Correct 'subnets' of the connection: subnet-…",
    "InvalidSubnet": "Correct 'subnets' of the connection",
    "InvalidGroup.NotFound": "Correct 'security_groups' of the connection: they must be of the subnets' VPC",
    "InvalidGroupId.Malformed": "Correct 'security_groups' of the connection: sg-…",
    "InvalidSecurityGroupID.NotFound": "Correct 'security_groups' of the connection: they must be of the "
    "subnets' VPC",
    "InvalidIamInstanceProfileArn.Malformed": "Correct 'instance_profile' of the connection: its name or ARN",
    "InvalidParameterValue": "See that 'instance_profile' of the connection exists ('spotbatch setup aws' "
    "makes one), and that 'image', 'subnets' and 'security_groups' are right",
    "InvalidParameterCombination": "See that 'subnets' and 'security_groups' of the connection "
    "belong together",
    "VPCIdNotSpecified": "Name 'subnets' in the connection: the region has no default VPC",
}
"""The connection is wrong: waiting cures nothing."""

_WHO_AND_WHAT = re.compile(
    r"(?P<who>arn:\S+) is not authorized to perform: (?P<action>[a-z0-9\-]+:[A-Za-z]+)"
)
"""How messages name who lacks which action (IAM User Guide, "Troubleshoot access denied error messages")."""

LAUNCHING = "ec2:CreateFleet"
PERMISSIONS = {
    LAUNCHING: "ec2:CreateFleet, ec2:RunInstances, ec2:CreateTags, and iam:PassRole of the machines' role",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:CreateQueue": "sqs:CreateQueue and sqs:TagQueue",
    "service-quotas:GetServiceQuota": "servicequotas:GetServiceQuota",
}
"""What an operation needs that is not just its own name."""


def verdict(
    code: str, message: str, operation: str, *, of_a_pool: bool = False, http_status: int = 400
) -> SpotBatchError:
    """What an error code means. ``operation``: as a policy names it (``ec2:CreateFleet``);
    ``of_a_pool``: told of one type in one zone, not of the whole request; ``http_status``: of the answer,
    which tells whose fault an unknown code is."""
    told = f"{operation} was refused: {code}: {message}".rstrip(": ")
    if of_a_pool and code in OF_A_POOL:
        return NoCapacity(told, remedy=OF_A_POOL[code], code=code)
    if code in NO_CAPACITY:
        return NoCapacity(told, remedy=NO_CAPACITY[code], code=code)
    if code in QUOTAS:
        return QuotaExceeded(told, remedy=QUOTAS[code], code=code)
    if code in THROTTLED:
        return Throttled(told, remedy="It is asked again, less often", code=code)
    if code in CROWDED:
        return Throttled(told, remedy=CROWDED[code], code=code)
    if code in DENIED:
        return AccessDenied(told, remedy=_permission(message, operation), code=code)
    if code in ACCOUNT:
        return AccessDenied(told, remedy=ACCOUNT[code], code=code)
    if is_about_credentials(code):
        remedy = "Renew the credentials that 'aws_conn_id' of the connection leads to"
        return AccessDenied(told, remedy=remedy, code=code)
    if code in UNAVAILABLE or (code not in WRONG and http_status >= 500):
        return CloudUnavailable(told)
    return BadRequest(told, remedy=WRONG.get(code, ""), code=code)


def _permission(message: str, operation: str) -> str:
    """What to allow, and to whom, as far as the message tells."""
    needed = PERMISSIONS.get(operation, operation)
    named = _WHO_AND_WHAT.search(message)
    if named is None:
        return f"Allow {needed} for the credentials in use"
    action = named["action"]
    asked = needed if action == operation else f"{action} (and what comes with it: {needed})"
    return f"Allow {asked} for {named['who']}"


def is_about_the_whole(code: str) -> bool:
    """Whether a refusal of one pool for good holds for all that a request names: what is wrong is the
    connection, the account or what they may do."""
    return code in WRONG or code in DENIED or code in ACCOUNT or is_about_credentials(code)


def is_about_credentials(code: str) -> bool:
    """Whether the credentials themselves were refused, not what they were used for."""
    return code in CREDENTIALS
