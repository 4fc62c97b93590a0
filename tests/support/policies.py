"""What IAM makes of a request: the accesses it needs, and whether a policy document allows them.

It knows as much of IAM's language as the documents in infra/policies use, and refuses to judge anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from dynastate.format.keys import SPECS
from dynastate.settings import SNAPSHOT_TABLE
from tests.support.fault_proxy import S3, Forward, Reply, Request, Rule, error

POLICIES = Path(__file__).resolve().parents[2] / "infra" / "policies"
HASH_KEY = SPECS["delta"].hash_key
LEADING_KEYS = "dynamodb:LeadingKeys"
#: Where moto's tables are.
TABLES = "arn:aws:dynamodb:us-east-1:123456789012:table"
KEYS = "arn:aws:kms:us-east-1:123456789012:key"
ALARMS = "arn:aws:cloudwatch:us-east-1:123456789012:alarm"
SCALABLE = "arn:aws:application-autoscaling:us-east-1:123456789012:scalable-target"
SCALING = "dynamodb.application-autoscaling.amazonaws.com"
SCALING_ROLE = (
    f"arn:aws:iam::123456789012:role/aws-service-role/{SCALING}/AWSServiceRoleForApplicationAutoScaling_DynamoDBTable"
)

BUCKETS = "arn:aws:s3:::"
PREFIX = "s3:prefix"
#: What S3 calls the actions on a bucket's parts, which are parameters of its requests: to read one, and to change it.
BUCKET_PARTS = {
    "accelerate": ("GetAccelerateConfiguration", "PutAccelerateConfiguration"),
    "acl": ("GetBucketAcl", "PutBucketAcl"),
    "cors": ("GetBucketCORS", "PutBucketCORS"),
    "encryption": ("GetEncryptionConfiguration", "PutEncryptionConfiguration"),
    "lifecycle": ("GetLifecycleConfiguration", "PutLifecycleConfiguration"),
    "location": ("GetBucketLocation", ""),
    "logging": ("GetBucketLogging", "PutBucketLogging"),
    "object-lock": ("GetBucketObjectLockConfiguration", "PutBucketObjectLockConfiguration"),
    "ownershipControls": ("GetBucketOwnershipControls", "PutBucketOwnershipControls"),
    "policy": ("GetBucketPolicy", "PutBucketPolicy"),
    "publicAccessBlock": ("GetBucketPublicAccessBlock", "PutBucketPublicAccessBlock"),
    "replication": ("GetReplicationConfiguration", "PutReplicationConfiguration"),
    "requestPayment": ("GetBucketRequestPayment", "PutBucketRequestPayment"),
    "tagging": ("GetBucketTagging", "PutBucketTagging"),
    "versioning": ("GetBucketVersioning", "PutBucketVersioning"),
    "website": ("GetBucketWebsite", "PutBucketWebsite"),
}

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Access:
    """One action on one resource, and what IAM knows of the request besides: its context, by condition key."""

    action: str
    resource: str
    context: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


#: IAM asks for all alarms, whichever are read, and for "*" where there are composite ones.
_EVERY_ALARM = Access("cloudwatch:DescribeAlarms", f"{ALARMS}:*")


def accesses(request: Request) -> list[Access]:
    """What a request needs to be allowed, each for itself. AssertionError: the request is none that is known here."""
    for service, needs in _NEEDS.items():
        if request.service.startswith(service):
            return needs(request.operation, request.body)
    raise AssertionError(request)


def _no_accesses(operation: str, body: Mapping[str, Any]) -> list[Access]:
    """STS's: who one is everybody may ask."""
    assert operation == "GetCallerIdentity", operation
    return []


def _key_accesses(operation: str, body: Mapping[str, Any]) -> list[Access]:
    """KMS's: which key it is, is known by its alias only."""
    assert operation == "DescribeKey", operation
    return [Access("kms:DescribeKey", f"{KEYS}/any", {"kms:RequestAlias": (body["KeyId"],)})]


def _table_accesses(operation: str, body: Mapping[str, Any]) -> list[Access]:
    """DynamoDB's."""
    if "ResourceArn" in body:
        return [Access(f"dynamodb:{operation}", body["ResourceArn"])]
    if operation == "CreateTable":
        needed = ["CreateTable", *(["TagResource"] if body.get("Tags") else [])]
        return [Access(f"dynamodb:{each}", f"{TABLES}/{body['TableName']}") for each in needed]
    return [
        Access(
            f"dynamodb:{operation}",
            table if table.startswith(f"{TABLES}/") else f"{TABLES}/{table}",
            {LEADING_KEYS: tuple(sorted(keys))} if keys else {},
        )
        for table, keys in leading_keys(operation, body).items()
    ]


def _alarm_accesses(operation: str, body: Mapping[str, str]) -> list[Access]:
    """CloudWatch's: an alarm is named, or a list of them, or its ARN. Whoever reads alarms may read all of them."""
    if operation == "DescribeAlarms":
        return [_EVERY_ALARM]
    if "ResourceARN" in body:
        return [Access(f"cloudwatch:{operation}", body["ResourceARN"])]
    names = [value for name, value in body.items() if re.fullmatch(r"AlarmName|AlarmNames\.member\.\d+", name)]
    assert names, body
    tagged = ["TagResource"] if operation == "PutMetricAlarm" and "Tags.member.1.Key" in body else []
    return [Access(f"cloudwatch:{each}", f"{ALARMS}:{name}") for each in [operation, *tagged] for name in names]


def _scaling_accesses(operation: str, body: Mapping[str, Any]) -> list[Access]:
    """Application Auto Scaling's: it makes its role where there is none, and alarms, in the name of who asks."""
    action, namespace = f"application-autoscaling:{operation}", "application-autoscaling:service-namespace"
    if operation.startswith("Describe"):
        return [Access(action, "*")]
    if "ResourceARN" in body:
        return [Access(action, body["ResourceARN"])]
    needed = [Access(action, f"{SCALABLE}/any", {namespace: (body["ServiceNamespace"],)})]
    if operation == "RegisterScalableTarget":
        needed.append(Access("iam:CreateServiceLinkedRole", SCALING_ROLE, {"iam:AWSServiceName": (SCALING,)}))
        if body.get("Tags"):
            needed.append(Access("application-autoscaling:TagResource", f"{SCALABLE}/any"))
    if operation in ("PutScalingPolicy", "DeleteScalingPolicy"):
        alarm = f"{ALARMS}:TargetTracking-{body['ResourceId']}-AlarmHigh-any"
        changed = "PutMetricAlarm" if operation == "PutScalingPolicy" else "DeleteAlarms"
        needed += [Access(f"cloudwatch:{changed}", alarm), _EVERY_ALARM]
    return needed


def _object_accesses(method: str, body: Mapping[str, Any]) -> list[Access]:
    """S3's, on an object, or on the bucket, or on a part of the bucket, which a parameter names."""
    bucket, key = f"{BUCKETS}{body['bucket']}", body["key"]
    query = {name: value for name, value in body["query"].items() if name != "x-id"}
    if key:
        assert set(query) <= {"versionId"}, body
        action = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}[method]
        action += "Version" if query else ""
        return [Access(f"s3:{action}", f"{bucket}/{key}")]
    return _bucket_accesses(method, bucket, query, body)


def _bucket_accesses(method: str, bucket: str, query: Mapping[str, str], body: Mapping[str, Any]) -> list[Access]:
    """S3's, on the bucket itself, or on a part of it."""
    if method == "POST":
        assert set(query) == {"delete"}, body
        named = re.findall("<Object>(.*?)</Object>", body["text"])
        actions = ["s3:DeleteObject" + "Version" * ("<VersionId>" in each) for each in named]
        return [Access(action, f"{bucket}/{key}") for action, key in zip(actions, listed_keys(body), strict=True)]
    if "versions" in query or "list-type" in query:
        action = "ListBucketVersions" if "versions" in query else "ListBucket"
        return [Access(f"s3:{action}", bucket, {PREFIX: (query["prefix"],)} if "prefix" in query else {})]
    if not query:
        return [
            Access(f"s3:{ {'HEAD': 'ListBucket', 'PUT': 'CreateBucket', 'DELETE': 'DeleteBucket'}[method] }", bucket)
        ]
    (part,) = query
    read, changed = BUCKET_PARTS[part]
    if (method, part) == ("DELETE", "policy"):
        return [Access("s3:DeleteBucketPolicy", bucket)]
    return [Access(f"s3:{read if method == 'GET' else changed}", bucket)]


def listed_keys(body: Mapping[str, Any]) -> list[str]:
    """The objects that a request of S3 deletes."""
    return re.findall("<Key>(.*?)</Key>", body["text"])


_NEEDS = {
    "DynamoDB_20120810": _table_accesses,
    "TrentService": _key_accesses,
    "monitoring": _alarm_accesses,
    "AnyScaleFrontendService": _scaling_accesses,
    "sts": _no_accesses,
    S3: _object_accesses,
}


def leading_keys(operation: str, body: Mapping[str, Any]) -> dict[str, set[str]]:
    """The partition keys that a request names, by table; none where it is about a table as such."""
    if operation == "BatchGetItem":
        return {table: {key[HASH_KEY]["S"] for key in batch["Keys"]} for table, batch in body["RequestItems"].items()}
    if operation == "BatchWriteItem":
        return {
            table: {
                (write.get("PutRequest", {}).get("Item") or write["DeleteRequest"]["Key"])[HASH_KEY]["S"]
                for write in writes
            }
            for table, writes in body["RequestItems"].items()
        }
    if operation in ("GetItem", "UpdateItem", "DeleteItem"):
        return {body["TableName"]: {body["Key"][HASH_KEY]["S"]}}
    if operation == "PutItem":
        return {body["TableName"]: {body["Item"][HASH_KEY]["S"]}}
    if operation == "Query":
        name, value = re.findall(r"(#\w+) = (:\w+)", body["KeyConditionExpression"])[0]
        assert body["ExpressionAttributeNames"][name] == HASH_KEY
        return {body["TableName"]: {body["ExpressionAttributeValues"][value]["S"]}}
    assert not re.search("Item|Scan|Query|Transact|Statement", operation), operation
    return {body["TableName"]: set()}


def render_objects(role: str, bucket: str, prefix: str, namespace: str = "*") -> Policy:
    """A document for the bucket, filled in as the Terraform module does it, for tables with the default names."""
    prefix += f"{SNAPSHOT_TABLE}/"
    text = Template((POLICIES / f"objects_{role}.json.tftpl").read_text()).substitute(
        bucket_arn=f"{BUCKETS}{bucket}",
        objects=json.dumps([f"{BUCKETS}{bucket}/{prefix}{namespace}/*"]),
        prefixes=json.dumps([f"{prefix}{namespace}/*"]),
    )
    return _policy(text)


def both(*policies: Policy) -> Policy:
    return {"Statement": [statement for policy in policies for statement in policy["Statement"]]}


def render(role: str, *, delta: str, snapshot: str, namespace: str = "*") -> Policy:
    """A document of infra/policies, filled in as the Terraform module does it, for tables on moto."""
    text = Template((POLICIES / f"{role}.json.tftpl").read_text()).substitute(
        delta_table_arn=f"{TABLES}/{delta}",
        snapshot_group_table_arn=f"{TABLES}/{snapshot}",
        keys_arn=f"{KEYS}/*",
        delta_alarms_arn=f"{ALARMS}:{delta}-*",
        delta_scaling_alarms_arn=f"{ALARMS}:TargetTracking-table/{delta}-*",
        snapshot_group_alarms_arn=f"{ALARMS}:{snapshot}-*",
        snapshot_group_scaling_alarms_arn=f"{ALARMS}:TargetTracking-table/{snapshot}-*",
        scalable_targets_arn=f"{SCALABLE}/*",
        scaling_role_arn=SCALING_ROLE,
        leading_keys=json.dumps([f"{namespace}/*"]),
    )
    return _policy(text)


def _policy(text: str) -> Policy:
    policy: Policy = json.loads(text)
    assert set(policy) == {"Version", "Statement"}
    assert policy["Version"] == "2012-10-17"
    return policy


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def allows(policy: Policy, access: Access) -> bool:
    """Whether a statement of the policy allows an access. Nothing else does: what is not allowed is denied."""
    return any(_statement_allows(statement, access) for statement in policy["Statement"])


def _statement_allows(statement: Mapping[str, Any], access: Access) -> bool:
    assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition"}, statement
    assert statement["Effect"] == "Allow", statement
    return (
        any(_like(each.lower(), access.action.lower()) for each in listed(statement["Action"]))
        and any(_like(each, access.resource) for each in listed(statement["Resource"]))
        and all(_is_met(operator, condition, access) for operator, condition in statement.get("Condition", {}).items())
    )


def _is_met(operator: str, condition: Mapping[str, str | list[str]], access: Access) -> bool:
    for name, patterns in condition.items():
        values = access.context.get(name, ())
        if operator == "ForAllValues:StringLike":  # also met where the request has no value at all
            met = all(any(_like(pattern, value) for pattern in listed(patterns)) for value in values)
        elif operator == "Null" and patterns == "false":
            met = bool(values)
        elif operator in ("StringLike", "StringLikeIfExists"):  # of a key with one value, or none
            is_optional = operator.endswith("IfExists")
            met = any(_like(pattern, value) for pattern in listed(patterns) for value in values[:1])
            met |= is_optional and not values
        elif operator == "StringEquals":
            met = bool(values) and values[0] in listed(patterns)
        else:
            raise AssertionError(f"no such condition is known here: {operator}")
        if not met:
            return False
    return True


def _like(pattern: str, text: str) -> bool:
    """IAM's wildcards: * for any text, also none, and ? for one character."""
    parts = ("".join({"*": ".*", "?": "."}.get(each, re.escape(each))) for each in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def permitted(policy: Policy) -> set[tuple[str, str]]:
    return {
        (action, resource)
        for statement in policy["Statement"]
        for action in listed(statement["Action"])
        for resource in listed(statement["Resource"])
    }


def used(requests: list[Request]) -> set[tuple[str, str]]:
    return {(access.action, access.resource) for request in requests for access in accesses(request)}


def spare(policy: Policy, requests: list[Request]) -> set[tuple[str, str]]:
    """Every action and resource that the policy allows, and no request needed."""
    needed = used(requests)
    return {
        (action, resource)
        for action, resource in permitted(policy)
        if not any(action == each and _like(resource, arn) for each, arn in needed)
    }


def enforce(policy: Policy, then: Rule) -> Rule:
    """Refuse what the policy does not allow, as AWS does it; for what it allows there is another rule."""

    def rule(request: Request, forward: Forward) -> Reply:
        for access in accesses(request):
            if not allows(policy, access):
                return _denial(request, access)
        reply = then(request, forward)
        # To who may not list a bucket, S3 does not say that an object is missing. It knows of no prefix then.
        if request.service == S3 and request.body["key"] and reply.status == 404:
            access = Access("s3:ListBucket", f"{BUCKETS}{request.body['bucket']}")
            return reply if allows(policy, access) else _denial(request, access)
        return reply

    return rule


def _denial(request: Request, access: Access) -> Reply:
    message = (
        f"User: arn:aws:sts::123456789012:assumed-role/tested is not authorized to perform: "
        f"{access.action} on resource: {access.resource} because no identity-based policy allows it"
    )
    if request.service != S3:
        return error("AccessDeniedException", message)
    refused = f"<Code>AccessDenied</Code><Message>{message}</Message>"
    if request.operation == "POST":  # an answer for each object; those of a request are all of one namespace here
        errors = "".join(f"<Error><Key>{key}</Key>{refused}</Error>" for key in listed_keys(request.body))
        return Reply(200, f"<DeleteResult>{errors}</DeleteResult>".encode(), "application/xml")
    text = "" if request.operation == "HEAD" else f"<Error>{refused}</Error>"
    return Reply(403, text.encode(), "application/xml")
