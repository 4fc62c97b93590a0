"""Translation of boto3's errors to the user's."""

from __future__ import annotations

import botocore.exceptions as boto_errors

from dynastate.dynamodb.client import Client
from dynastate.dynamodb.failures import (
    CREDENTIALS,
    DENIED,
    NO_CREDENTIALS,
    ConditionFailedError,
    ForeignAnswerError,
    about_credentials,
    from_sts,
    is_foreign,
)
from dynastate.errors import ConfigurationError, ItemFullError
from dynastate.format.keys import Role
from dynastate.settings import PREFIX
from dynastate.storage.limits import ITEM_FULL


def translate(error: Exception, operation: str, role: Role, client: Client, *, was_there: bool) -> Exception:
    """The user's error for an error that no retry mends; `was_there`: the table has answered before."""
    table, setting = client.names[role], PREFIX + ("deltaTable" if role == "delta" else "snapshotTable")
    answer = error.response["Error"] if isinstance(error, boto_errors.ClientError) else {}
    code, text = answer.get("Code", ""), answer.get("Message", "")
    if code == "ConditionalCheckFailedException":
        return ConditionFailedError()
    if from_sts(error) or code in CREDENTIALS or isinstance(error, (*NO_CREDENTIALS, RuntimeError)):
        message = about_credentials(error)
    elif isinstance(error, ForeignAnswerError):
        return ConfigurationError(client.no_dynamodb, operation=operation, table=table)
    elif not isinstance(error, boto_errors.ClientError):
        message = f"boto3 cannot send this request: {error}"
    elif is_foreign(error):
        return ConfigurationError(client.no_dynamodb, operation=operation, table=table, status=code)
    elif code == "ResourceNotFoundException":
        message = client.without(role, was_there=was_there)
    elif code in DENIED:
        message = f"AWS denies permission for {operation} on table {table}; grant it to the role that runs this: {text}"
    elif code == "ValidationException" and "item size" in text.lower():
        return ItemFullError(f"{ITEM_FULL}: {text}", operation=operation, table=table)
    elif code == "ValidationException":
        message = (
            f"DynamoDB refuses the request; 'dynastate tables check' tells whether table {table} ({setting}) "
            f"has the right keys: {text}"
        )
    else:
        message = f"DynamoDB refuses the request: {code}: {text}"
    return ConfigurationError(message, operation=operation, table=table)
