"""The boto3 client."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as boto_errors
from botocore.config import Config

from dynastate.errors import ConfigurationError
from dynastate.settings import PREFIX, Settings

#: Connections that are kept open. Every task that opens or commits has a request of its own under way, beside the
#: parallel ones; a connection above this number is closed after one request, and a new one costs a handshake.
CONNECTIONS_MAX: Final = 256


def make_client(settings: Settings) -> Any:  # a boto3 client has no type of its own
    """A boto3 client for these settings, with its own retries off. Credentials come from boto3's standard chain.

    Raises:
        ConfigurationError: no Region is known.
    """
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=2,
        read_timeout=10,
        tcp_keepalive=True,
        max_pool_connections=CONNECTIONS_MAX,
        parameter_validation=False,  # our own checks stand before it, and it costs a third of a request's CPU
        user_agent_extra="dynastate",
        # A proxy of the environment cannot reach a loopback address, and botocore does not know that.
        proxies={} if (urlsplit(settings.endpoint).hostname or "") in ("127.0.0.1", "localhost", "::1") else None,
    )
    # boto3 knows AWS_DEFAULT_REGION only; AWS_REGION is what containers of EKS and ECS and the other SDKs have.
    region = settings.region or os.environ.get("AWS_REGION") or None
    try:
        return boto3.session.Session().client(
            "dynamodb", region_name=region, endpoint_url=settings.endpoint or None, config=config
        )
    except boto_errors.NoRegionError as error:
        raise ConfigurationError(
            f"no AWS Region is known; set {PREFIX}region (--region), or AWS_REGION on the executors"
        ) from error
    except (boto_errors.BotoCoreError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"no DynamoDB client can be made; check {PREFIX}endpoint, {PREFIX}region and the AWS profile: {error}"
        ) from error
