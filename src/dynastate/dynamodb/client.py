"""The boto3 client, and its credentials."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as boto_errors
import botocore.session
from botocore.config import Config

from dynastate.dynamodb.failures import NO_CREDENTIALS, lacks_credentials
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.settings import PREFIX, Settings

#: Connections that are kept open. Every task that opens or commits has a request of its own under way, beside the
#: parallel ones; a connection above this number is closed after one request, and a new one costs a handshake.
CONNECTIONS_MAX: Final = 256
#: How often, and for how many seconds each time, credentials are asked of the instance's metadata service, at least.
#: boto3 asks once, for a second, and a machine whose executors all start at once takes longer.
METADATA_SERVICE: Final = {"metadata_service_num_attempts": 2, "metadata_service_timeout": 3}


class Client:
    """A boto3 client that is replaced where it lacks credentials: boto3 looks for them once for each. Safe for threads.

    Raises:
        ConfigurationError: no Region, or the client cannot be made.
    """

    def __init__(self, settings: Settings, given: Any = None) -> None:  # a boto3 client has no type of its own
        self._settings = settings
        self._given = given
        self._made: Any = None
        #: The URL that the last request went to, without its path. It may have the account in it.
        self.url = ""
        self._lacks_credentials = True
        self._is_stopped = False
        self._lock = threading.Lock()
        with suppress(*NO_CREDENTIALS):  # the first request looks for them again, and is retried
            self._current()

    def send(self, operation: str, **arguments: Any) -> Any:
        """Send one request. After one that fails for want of credentials, the next one looks for others.

        Raises:
            UnavailableError: the client was stopped.
        """
        if self._is_stopped:
            raise UnavailableError("this was interrupted, and sends no further request")
        client = self._current()
        try:
            return getattr(client, operation)(**arguments)
        except (boto_errors.ClientError, boto_errors.BotoCoreError, RuntimeError) as error:
            if not lacks_credentials(error):
                raise
            with self._lock:
                self._lacks_credentials |= self._made is client
            raise

    def _current(self) -> Any:
        with self._lock:
            if self._lacks_credentials:
                self._made = self._given or self._make()
                self._lacks_credentials = False
            return self._made

    def _make(self) -> Any:
        client = make_client(self._settings)
        client.meta.events.register("before-send.dynamodb", self._note)
        return client

    def _note(self, request: Any, **_: object) -> None:
        self.url = request.url.rstrip("/")

    @property
    def region(self) -> str:
        """The Region that requests are signed for."""
        return str(self._made.meta.region_name) if self._made else "of the environment"

    def stop(self) -> None:
        """Send no further request."""
        self._is_stopped = True

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._made:
                self._made.close()


def endpoint_of(settings: Settings) -> str:
    """The endpoint of the settings, or of the variables that boto3 knows; empty: the Region's own."""
    return settings.endpoint or os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL") or ""


def make_client(settings: Settings) -> Any:  # a boto3 client has no type of its own
    """A boto3 client for these settings, with its own retries off. Credentials come from boto3's standard chain.

    Raises:
        ConfigurationError: no Region is known, or a setting of boto3 is wrong.
        CredentialRetrievalError, MetadataRetrievalError: a service that gives credentials fails.
    """
    endpoint = endpoint_of(settings)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=2,
        read_timeout=10,
        tcp_keepalive=True,
        max_pool_connections=CONNECTIONS_MAX,
        parameter_validation=False,  # our own checks stand before it, and it costs a third of a request's CPU
        user_agent_extra="dynastate",
        # A proxy of the environment cannot reach a loopback address, and botocore does not know that.
        proxies={} if (urlsplit(endpoint).hostname or "") in ("127.0.0.1", "localhost", "::1") else None,
    )
    # boto3 knows AWS_DEFAULT_REGION only; AWS_REGION is what containers of EKS and ECS and the other SDKs have.
    region = settings.region or os.environ.get("AWS_REGION") or None
    try:
        session = botocore.session.get_session()
        for name, least in METADATA_SERVICE.items():
            session.set_config_variable(name, max(least, session.get_config_variable(name)))
        return boto3.session.Session(botocore_session=session).client(
            "dynamodb", region_name=region, endpoint_url=endpoint or None, config=config
        )
    except NO_CREDENTIALS:
        raise
    except boto_errors.NoRegionError as error:
        raise ConfigurationError(
            f"no AWS Region is known; set {PREFIX}region, or AWS_REGION where dynastate runs: for a query, on the "
            "executors"
        ) from error
    except (boto_errors.BotoCoreError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"no DynamoDB client can be made; check {PREFIX}endpoint, {PREFIX}region and the AWS profile: {error}"
        ) from error
