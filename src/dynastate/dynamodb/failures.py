"""Errors of boto3: the outcome of the request, and the error that the user gets."""

from __future__ import annotations

import re
from enum import Enum, auto
from urllib.parse import urlsplit

import botocore.exceptions as boto_errors
from botocore.parsers import ResponseParserError

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
DENIED = {"AccessDeniedException", "KMSAccessDeniedException"}
_NOT_SENT = (boto_errors.EndpointConnectionError, boto_errors.ConnectTimeoutError, boto_errors.ProxyConnectionError)
#: A machine may have credentials a little later: a service that gives them is slow, or starts.
NO_CREDENTIALS = (
    boto_errors.NoCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.MetadataRetrievalError,
)
#: Requests to STS that boto3 sends by itself, before one to DynamoDB.
_STS = {"AssumeRole", "AssumeRoleWithWebIdentity"}
#: Of a table with strongly consistent replicas: another Region writes the same item.
_NOT_NOW = {"ReplicatedWriteConflictException"}
_EXPIRED = {"ExpiredTokenException", "ExpiredToken"}


class ForeignAnswerError(Exception):
    """An answer with status 200 that lacks a member of every answer of DynamoDB."""


class Fate(Enum):
    """The outcome of a request that failed."""

    REFUSED = auto()  # for good: nothing was done, and a retry changes nothing
    THROTTLED = auto()  # nothing was done; later it may be
    NOT_SENT = auto()  # nothing was done: no connection, no credentials, or not now
    UNKNOWN = auto()  # it may have been done


def fate_of(error: Exception) -> Fate:
    """The outcome of a request, by its error of boto3."""
    if lacks_credentials(error) or isinstance(error, _NOT_SENT) or code_of(error) in _NOT_NOW:
        return Fate.NOT_SENT
    if isinstance(error, boto_errors.ClientError):
        if code_of(error) in _THROTTLED:
            return Fate.THROTTLED
        # A proxy may answer by itself, with any status, after it has passed the request on.
        return Fate.UNKNOWN if is_foreign(error) or status_of(error) >= 500 else Fate.REFUSED
    # TLS may break after the request was sent as well as before.
    if isinstance(error, (boto_errors.HTTPClientError, boto_errors.SSLError, ResponseParserError, ForeignAnswerError)):
        return Fate.UNKNOWN
    return Fate.REFUSED


def lacks_credentials(error: Exception) -> bool:
    """Whether a request failed for want of credentials that may be found later."""
    if from_sts(error):
        code = code_of(error)
        return not code or code in _THROTTLED | _EXPIRED | {"IDPCommunicationError"} or status_of(error) >= 500
    # boto3 has no class of its own for credentials that were renewed and are still expired.
    expired = isinstance(error, RuntimeError) and "expired" in str(error)
    return expired or code_of(error) in _EXPIRED or isinstance(error, NO_CREDENTIALS)


def from_sts(error: Exception) -> bool:
    if isinstance(error, boto_errors.ClientError):
        return error.operation_name in _STS
    url = error.kwargs.get("endpoint_url") if isinstance(error, boto_errors.BotoCoreError) else None
    return (urlsplit(str(url)).hostname or "").startswith("sts.")


def status_of(error: Exception) -> int:
    """The HTTP status of an answer; 0 without an answer."""
    answer = error.response.get("ResponseMetadata", {}) if isinstance(error, boto_errors.ClientError) else {}
    return int(answer.get("HTTPStatusCode", 0))


def code_of(error: BaseException | None) -> str:
    return str(error.response["Error"].get("Code")) if isinstance(error, boto_errors.ClientError) else ""


def is_foreign(error: Exception) -> bool:
    """Whether an error comes from a web server or a proxy: its code is then the HTTP status."""
    return code_of(error).isdigit() and not from_sts(error)


def is_answer(error: Exception) -> bool:
    """Whether DynamoDB itself, and with these credentials, answered with this error."""
    if not isinstance(error, boto_errors.ClientError):
        return False
    return not (is_foreign(error) or from_sts(error) or lacks_credentials(error))


def cause_of(error: Exception) -> str:
    """The text of an error, without the page that a web server or a proxy sent."""
    return f"HTTP status {code_of(error)}, without an error of DynamoDB" if is_foreign(error) else str(error)


def throttling_reasons(error: Exception | None) -> str:
    """The limit that was hit, in DynamoDB's words: table, key range, account or on-demand cap."""
    if not isinstance(error, boto_errors.ClientError):
        return "not said"
    # ThrottlingException spells it with a small t, the other exceptions with a large one.
    reasons = error.response.get("ThrottlingReasons") or error.response.get("throttlingReasons") or []
    return ",".join(f"{each.get('reason', '?')}:{each.get('resource', '?')}" for each in reasons) or "not said"


class ConditionFailedError(Exception):
    """A condition was not met. Never leaves this package."""


def about_credentials(error: Exception) -> str:
    """The message for a request without credentials that AWS takes."""
    message = error.response["Error"].get("Message", "") if isinstance(error, boto_errors.ClientError) else ""
    code, text = code_of(error), _SIGNED.split(message)[0].strip()
    if from_sts(error):
        return f"AWS STS gives no credentials for the role of this machine: {f'{code}: {text}' if code else error}"
    if code:
        return f"AWS refuses the credentials: {text or code}"
    return f"no AWS credentials: boto3's standard chain found none that are valid on this machine ({error})"
