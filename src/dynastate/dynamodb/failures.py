"""Errors of boto3: the outcome of the request, and the error that the user gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import botocore.exceptions as boto_errors
from botocore.parsers import ResponseParserError

from dynastate.errors import ConfigurationError
from dynastate.format.keys import Role
from dynastate.settings import PREFIX

_THROTTLED = {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling"}
CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "MissingAuthenticationTokenException",
    "IncompleteSignatureException",
}
#: Where AWS begins to repeat what was signed, which contains the session token.
_SIGNED = re.compile(r"\n|The Canonical String|The String-to-Sign", re.IGNORECASE)
_DENIED = {"AccessDeniedException", "KMSAccessDeniedException"}
_NOT_SENT = (
    boto_errors.EndpointConnectionError,
    boto_errors.ConnectTimeoutError,
    boto_errors.ProxyConnectionError,
)
_NO_CREDENTIALS = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
)


@dataclass(frozen=True)
class Target:
    """The destination of requests, for messages: the tables' names, and the endpoint or Region."""

    names: Mapping[Role, str]
    place: str


class Fate(Enum):
    """The outcome of a request that failed."""

    REFUSED = auto()  # for good: nothing was done, and a retry changes nothing
    THROTTLED = auto()  # nothing was done; later it may be
    NOT_SENT = auto()  # nothing was done: no connection
    UNKNOWN = auto()  # it may have been done


def fate_of(error: Exception) -> Fate:
    """The outcome of a request, by its error of boto3."""
    if isinstance(error, boto_errors.ClientError):
        if error.response["Error"].get("Code") in _THROTTLED:
            return Fate.THROTTLED
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return Fate.UNKNOWN if status >= 500 else Fate.REFUSED
    if isinstance(error, _NOT_SENT):
        return Fate.NOT_SENT
    # TLS may break after the request was sent as well as before.
    if isinstance(error, (boto_errors.HTTPClientError, boto_errors.SSLError, ResponseParserError)):
        return Fate.UNKNOWN
    return Fate.REFUSED


def code_of(error: Exception) -> str:
    return str(error.response["Error"].get("Code")) if isinstance(error, boto_errors.ClientError) else ""


def throttling_reasons(error: Exception | None) -> str:
    """Which limit was hit, as DynamoDB says: table, key range, account or on-demand cap."""
    if not isinstance(error, boto_errors.ClientError):
        return "not said"
    # ThrottlingException spells it with a small t, the other exceptions with a large one.
    reasons = error.response.get("ThrottlingReasons") or error.response.get("throttlingReasons") or []
    return ",".join(f"{one.get('reason', '?')}:{one.get('resource', '?')}" for one in reasons) or "not said"


class ConditionFailedError(Exception):
    """A condition was not met. Never leaves this package."""


def translate(error: Exception, operation: str, role: Role, target: Target) -> Exception:
    """The error that the user gets for one that no retry mends."""
    table, setting = target.names[role], PREFIX + ("deltaTable" if role == "delta" else "snapshotTable")
    said = error.response["Error"] if isinstance(error, boto_errors.ClientError) else {}
    code, text = said.get("Code", ""), said.get("Message", "")
    if code == "ConditionalCheckFailedException":
        return ConditionFailedError()
    if isinstance(error, _NO_CREDENTIALS):
        message = f"no AWS credentials: boto3's standard chain found none on this machine ({error})"
    elif not isinstance(error, boto_errors.ClientError):
        message = f"boto3 cannot send this request: {error}"
    elif code == "ResourceNotFoundException":
        message = (
            f"table {table} ({setting}) does not exist at {target.place}; make it with Terraform (infra/), "
            f"for development with 'dynastate tables create', or correct the setting"
        )
    elif code in CREDENTIALS:
        message = f"AWS refuses the credentials: {_SIGNED.split(text)[0].strip() or code}"
    elif code in _DENIED:
        message = f"AWS denies permission for {operation} on table {table}; grant it to the role that runs this: {text}"
    elif code == "ValidationException" and "item size" in text.lower():
        message = (
            "a version list is full: its item is as large as DynamoDB allows, because these versions were made "
            "again thousands of times; find in Spark's log why their batches fail after state is committed, and let "
            f"the query resume at an earlier batch: {text}"
        )
    elif code == "ValidationException":
        message = (
            f"DynamoDB refuses the request; 'dynastate tables check' tells whether table {table} ({setting}) "
            f"has the right keys: {text}"
        )
    else:
        message = f"DynamoDB refuses the request: {code}: {text}"
    return ConfigurationError(message, operation=operation, table=table)
