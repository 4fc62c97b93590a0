"""The principal whose credentials a command uses, as AWS names it."""

from __future__ import annotations

import botocore.exceptions as boto_errors

from dynastate.dynamodb.client import endpoint_of, make_sts_client
from dynastate.errors import UnavailableError
from dynastate.redaction import as_cause
from dynastate.settings import Settings


def caller_of(settings: Settings, profile: str = "") -> str:
    """The ARN of the principal, by AWS STS. Returns "" at another endpoint than AWS's, which has no principals.

    Raises:
        UnavailableError: STS does not answer, as in a network without a route to it.
    """
    if endpoint_of(settings):
        return ""
    client = make_sts_client(settings, profile)
    try:
        return str(client.get_caller_identity()["Arn"])
    except (boto_errors.ClientError, boto_errors.BotoCoreError) as error:
        raise UnavailableError(f"AWS STS does not say whose credentials these are: {error}") from as_cause(error)
    finally:
        client.close()
