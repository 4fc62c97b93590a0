"""The boto3 client with its credentials, made by botocore, and the choice of who sends a request."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import botocore.exceptions as boto_errors
import botocore.session
from botocore.config import Config

from dynastate.dynamodb.credentials import (
    LOCAL_KEY,
    LOCAL_REGION,
    check_environment,
    has_credentials_source,
    is_loopback,
    require_endpoint,
    watch_credentials,
)
from dynastate.dynamodb.direct import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, READ_TIMEOUT_S, refuse_damaged
from dynastate.dynamodb.failures import NO_CREDENTIALS, ForeignAnswerError, lacks_credentials
from dynastate.dynamodb.http import HOT, SignedRequests
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.keys import Role
from dynastate.redaction import as_cause
from dynastate.settings import PREFIX, Settings

#: Attempts to get credentials from the instance's metadata service, and the timeout of each in seconds, at least. By
#: default boto3 asks once, for a second, and a machine whose executors all start at once takes longer.
METADATA_SERVICE: Final = {"metadata_service_num_attempts": 2, "metadata_service_timeout": 3}
#: A member that each answer of DynamoDB has, by operation. boto3 takes what is not JSON for an answer without members.
_ALWAYS_THERE: Final = {
    "describe_table": "Table",
    "query": "Items",
    "scan": "Items",
    "batch_get_item": "Responses",
    "batch_write_item": "UnprocessedItems",
}


class Client:
    """A boto3 client that is replaced if it lacks credentials: boto3 looks for them once. Safe for threads."""

    def __init__(self, settings: Settings, client: Any = None, profile: str = "") -> None:  # boto3's have no types
        self.names: dict[Role, str] = {"delta": settings.delta_table, "snapshot": settings.snapshot_table}
        self._settings, self._profile = settings, profile
        self._endpoint = endpoint_of(settings)
        self._fixed_client = client
        self._boto_client: Any = None
        self._direct: SignedRequests | None = None
        #: The URL that the last request went to, without its path. It may have the account in it.
        self.url = ""
        self._lacks_credentials = True
        self._is_stopped = False
        self._lock = threading.Lock()
        with suppress(*NO_CREDENTIALS):  # the first request looks for them again, and is retried
            self._current()

    def send(self, operation: str, **arguments: Any) -> Any:
        """Send one request. After one that fails for want of credentials, the next one looks for others."""
        if self._is_stopped:
            raise UnavailableError("this was interrupted, and sends no further request")
        client, direct = self._current()
        try:
            if direct is not None and operation in HOT:
                answer = direct.send(operation, arguments)
            else:
                answer = getattr(client, operation)(**arguments)
        except (boto_errors.ClientError, boto_errors.BotoCoreError, RuntimeError) as error:
            if not lacks_credentials(error):
                raise
            with self._lock:
                self._lacks_credentials |= self._boto_client is client
            raise
        always = _ALWAYS_THERE.get(operation)
        if always and always not in answer:
            raise ForeignAnswerError(f"the answer has no {always}, so it is not DynamoDB's")
        return answer

    def _current(self) -> tuple[Any, SignedRequests | None]:
        with self._lock:
            if self._lacks_credentials:
                self._close_direct()
                self._boto_client = self._fixed_client or self._make()
                self._lacks_credentials = False
            return self._boto_client, self._direct

    def _make(self) -> Any:
        client, session = make_client_and_session(self._settings, self._profile)
        client.meta.events.register("before-send.dynamodb", self._note)
        if self._settings.transport == "direct":
            self._direct = SignedRequests(client, session)
        return client

    def _close_direct(self) -> None:
        if self._direct is not None:
            self._direct.close()

    def _note(self, request: Any, **_: object) -> None:
        self.url = request.url.rstrip("/")

    @property
    def place(self) -> str:
        """The endpoint, or the Region, that answers."""
        return self._endpoint or self.url or f"the Region {self._region}"

    @property
    def _region(self) -> str:
        return str(self._boto_client.meta.region_name) if self._boto_client else "of the environment"

    def without(self, role: Role, *, was_there: bool) -> str:
        """The message for a table that does not exist; `was_there`: it has answered before."""
        setting = PREFIX + ("deltaTable" if role == "delta" else "snapshotTable")
        region = f"the Region {self._region}" + (f" of {self._endpoint}" if self._endpoint else "")
        if was_there:
            return (
                f"table {self.names[role]} ({setting}) was deleted in {region} while it was used; restore it from a "
                "backup, as docs/backup-and-restore.md says: an empty table has no state"
            )
        return (
            f"table {self.names[role]} ({setting}) does not exist in {region}; correct the setting or {PREFIX}region, "
            "or make the table: with Terraform (infra/), for development with 'dynastate tables create'"
        )

    @property
    def no_dynamodb(self) -> str:
        """The message for answers that DynamoDB never gives."""
        return f"what answers at {self.place} is not DynamoDB; check {PREFIX}endpoint, or AWS_ENDPOINT_URL"

    def stop(self) -> None:
        """Send no further request."""
        self._is_stopped = True

    def close(self) -> None:
        with self._lock:
            self._close_direct()
            if self._boto_client:
                self._boto_client.close()


def endpoint_of(settings: Settings) -> str:
    """The endpoint of the settings, or of the variables that boto3 knows; empty for the Region's own."""
    return settings.endpoint or os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL") or ""


def region_of(settings: Settings) -> str:
    """The Region of the settings, of the environment or of its profile; empty if none is known.

    A DynamoDB on this machine has us-east-1, if nothing says otherwise.
    """
    local = LOCAL_REGION if is_loopback(endpoint_of(settings)) else ""
    return settings.region or os.environ.get("AWS_REGION") or configured_region() or local


def configured_region() -> str:
    """The Region of AWS_DEFAULT_REGION, or of the AWS profile; empty if neither says one."""
    with suppress(boto_errors.BotoCoreError):  # a wrong profile is refused where a client is made
        return botocore.session.Session().get_config_variable("region") or ""
    return ""


def make_client(settings: Settings) -> Any:  # a boto3 client has no type of its own
    """The client of `make_client_and_session`."""
    return make_client_and_session(settings)[0]


def make_client_and_session(settings: Settings, profile: str = "") -> tuple[Any, Any]:
    """A boto3 client for these settings, with its own retries off, and botocore's session, which has its credentials.

    The credentials come from boto3's standard chain, of a `profile` or of the environment. The client equals boto3's,
    except for its user agent: the import of boto3 itself takes a tenth of the sidecar's start. For a DynamoDB on this
    machine, where nothing says who gives credentials, they are local and local.

    Raises `NO_CREDENTIALS` if a service that gives credentials fails, besides ConfigurationError.
    """
    variables = () if settings.endpoint else ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL")
    endpoint = endpoint_of(settings)
    client, session = _make(settings, "dynamodb", endpoint, options={}, variables=variables, profile=profile)
    client.meta.events.register("before-parse.dynamodb", refuse_damaged)
    return client, session


def make_s3_client(settings: Settings) -> Any:  # a boto3 client has no type of its own
    """The client of `make_s3_client_and_session`."""
    return make_s3_client_and_session(settings)[0]


def make_s3_client_and_session(settings: Settings, profile: str = "") -> tuple[Any, Any]:
    """A boto3 client of S3 for these settings, and botocore's session. With an endpoint, the bucket is in the path.

    Raises the same errors as `make_client_and_session`.
    """
    environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    endpoint = settings.objects_endpoint or environment
    options = {
        "s3": {"addressing_style": "path" if endpoint else "auto", "us_east_1_regional_endpoint": "regional"},
        # Objects have a checksum that we compute; parts have another, which their readers compare.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    variables = () if settings.objects_endpoint else ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return _make(settings, "s3", endpoint, options=options, variables=variables, profile=profile)


def make_sts_client(settings: Settings, profile: str = "") -> Any:  # a boto3 client has no type of its own
    """A boto3 client of STS for these settings. It raises the errors of `make_client_and_session`."""
    variables = "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"
    return _make(settings, "sts", "", options={}, variables=variables, profile=profile)[0]


def _make(
    settings: Settings,
    service: str,
    endpoint: str,
    options: Mapping[str, Any],
    variables: tuple[str, ...],
    profile: str = "",
) -> tuple[Any, Any]:
    """A client of a service, and botocore's session; `variables` may give its endpoint."""
    # A proxy of the environment cannot reach a loopback address, and botocore does not know that.
    is_local = is_loopback(endpoint)
    check_environment(variables, uses_proxy=not is_local)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        tcp_keepalive=True,
        max_pool_connections=CONNECTIONS_MAX,
        parameter_validation=False,  # our own checks stand before it, and it costs a third of a request's CPU
        user_agent_extra="dynastate",
        proxies={} if is_local else None,
        **options,
    )
    try:
        session = botocore.session.Session(profile=profile or None)
        for name, least in METADATA_SERVICE.items():
            session.set_config_variable(name, max(least, session.get_config_variable(name)))
        watch_credentials(session)
        if is_local and not profile and not has_credentials_source():
            session.set_credentials(LOCAL_KEY, LOCAL_KEY)
        # Containers of EKS and ECS have AWS_REGION, which botocore does not read.
        region = settings.region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
        client = session.create_client(
            service,
            region_name=region or (LOCAL_REGION if is_local else None),
            endpoint_url=endpoint or None,
            config=config,
        )
    except NO_CREDENTIALS:
        raise
    except boto_errors.NoRegionError as error:
        raise ConfigurationError(
            f"no AWS Region is known; set {PREFIX}region, or AWS_REGION where dynastate runs: for a query, on the "
            "executors"
        ) from error
    except (boto_errors.BotoCoreError, OSError, ValueError) as error:
        if service == "s3":
            message = f"no S3 client can be made; check {PREFIX}objectsEndpoint, {PREFIX}region and the AWS profile"
        else:
            message = f"no DynamoDB client can be made; check {PREFIX}endpoint, {PREFIX}region and the AWS profile"
        raise ConfigurationError(f"{message}: {error}") from as_cause(error)
    require_endpoint("endpoint_url of the AWS profile", client.meta.endpoint_url)
    return client, session
