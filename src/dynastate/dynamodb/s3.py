"""The seam to S3, with the retries of DynamoDB: jittered back-off until a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import botocore.exceptions as boto_errors
from botocore.parsers import ResponseParserError

from dynastate.dynamodb.client import make_s3_client_and_session
from dynastate.dynamodb.failures import (
    NO_CREDENTIALS,
    Fate,
    about_credentials,
    code_of,
    fate_of,
    lacks_credentials,
    status_of,
)
from dynastate.dynamodb.object_requests import ELSEWHERE, ObjectRequests
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError
from dynastate.format.objects import ObjectId, bucket_and_prefix
from dynastate.redaction import as_cause, get_logger
from dynastate.settings import PREFIX, Settings
from dynastate.storage.meter import Meter, Metered
from dynastate.storage.objects import ObjectVersion

log = get_logger("dynastate.objects")

_FAILURES: Final = (boto_errors.ClientError, boto_errors.BotoCoreError, ResponseParserError, RuntimeError)
#: "408" and "429" are of proxies, which answer without an error of S3.
_SLOW: Final = {
    "SlowDown",
    "429",
    "503",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_RETRIED: Final = {"RequestTimeout", "408", "BadDigest", "OperationAborted", "XAmzContentSHA256Mismatch"}
_MISSING: Final = {"NoSuchKey", "NoSuchVersion", "404"}
_ENDED: Final = {"InvalidRange", "416"}
#: "501" is of services that are like S3, and have no versions.
_NOT_THERE: Final = {"NotImplemented", "501"}
_DENIED: Final = {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}

Result = TypeVar("Result")


class _Client:
    """The requests of all views, whose boto3 client is made when it is first needed. Safe for threads."""

    def __init__(self, settings: Settings, client: Any, profile: str) -> None:  # a boto3 client has no type of its own
        self._settings, self._profile = settings, profile
        self._fixed = self._requests = None if client is None else ObjectRequests(client)
        self._lock = threading.Lock()
        self.is_stopped = False

    def current(self) -> ObjectRequests:
        with self._lock:
            if self._requests is None:
                client, session = make_s3_client_and_session(self._settings, self._profile)
                self._requests = ObjectRequests(client, session if self._settings.transport == "direct" else None)
            return self._requests

    def forget(self, failed: ObjectRequests | None) -> None:
        """Make another client after the one that failed, since boto3 looks for credentials once for each client."""
        with self._lock:
            if failed is not None and failed is self._requests:
                failed.close()
                self._requests = self._fixed

    def close(self) -> None:
        with self._lock:
            if self._requests is not None:
                self._requests.close()
                self._requests.boto3.close()


class S3Objects(Metered):
    """Objects of S3 itself. Safe for threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        retries: RetryPolicy | None = None,
        client: Any = None,  # a boto3 client has no type of its own
        profile: str = "",
    ) -> None:
        self._retries = retries or RetryPolicy(settings.request_deadline_s)
        self._client = _Client(settings, client, profile)
        self.meter = Meter()
        if settings.objects:  # the client takes time to make, and the first batch must not wait for it
            with suppress(*NO_CREDENTIALS):
                self._client.current()

    def check(self, location: str) -> list[str]:
        bucket, _ = bucket_and_prefix(location)
        try:
            answer = self._send("HeadBucket", bucket, lambda requests: requests.boto3.head_bucket(Bucket=bucket))
        except ConfigurationError as wrong:
            return [str(wrong)]
        bucket_region, tables_region = answer.get("BucketRegion"), self._client.current().boto3.meta.region_name
        if bucket_region and bucket_region != tables_region:
            text = f"bucket {bucket} is in {bucket_region}, the tables are in {tables_region}"
            return [f"{text}: traffic between Regions costs money"]
        return []

    def put(self, object_id: ObjectId, data: bytes) -> None:
        bucket, key = object_id.bucket, object_id.key
        self._send("PutObject", bucket, lambda requests: requests.put(bucket, key, data), puts=1)
        self.meter.object_bytes_written += len(data)

    def get(self, object_id: ObjectId, start: int, end: int) -> bytes | None:
        bucket, key, span = object_id.bucket, object_id.key, f"bytes={start}-{end - 1}"
        try:
            data = self._send("GetObject", bucket, lambda requests: requests.get(bucket, key, span), gets=1)
        except _MissingError as missing:
            return b"" if missing.ends_early else None
        self.meter.object_bytes_read += len(data)
        return data[: end - start]

    def names(self, location: str, prefix: str) -> Iterator[ObjectId]:
        bucket, root = bucket_and_prefix(location)
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": root + prefix}
        while True:
            page = self._send(
                "ListObjectsV2", bucket, lambda requests: requests.boto3.list_objects_v2(**request), puts=1
            )
            for listed in page.get("Contents", ()):
                yield ObjectId(location, listed["Key"].removeprefix(root))
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, object_ids: Sequence[ObjectId]) -> None:
        self._delete(object_ids[0].bucket, {(each.key, "") for each in object_ids}, "DeleteObjects")
        self.meter.objects_deleted += len(object_ids)

    def keeps_versions(self, location: str) -> bool:
        bucket, _ = bucket_and_prefix(location)
        answer = self._send(
            "GetBucketVersioning", bucket, lambda requests: requests.boto3.get_bucket_versioning(Bucket=bucket), gets=1
        )
        return "Status" in answer  # else the bucket has never kept versions

    def versions(self, location: str, prefix: str) -> Iterator[ObjectVersion]:
        bucket, root = bucket_and_prefix(location)
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": root + prefix}
        while True:
            page = self._send(
                "ListObjectVersions", bucket, lambda requests: requests.boto3.list_object_versions(**request), puts=1
            )
            for kind in ("Versions", "DeleteMarkers"):
                for listed in page.get(kind, ()):
                    object_id = ObjectId(location, listed["Key"].removeprefix(root))
                    is_current = kind == "Versions" and listed["IsLatest"]
                    yield ObjectVersion(object_id, listed["VersionId"], is_current)
            if not page.get("IsTruncated"):
                return
            request["KeyMarker"], request["VersionIdMarker"] = page["NextKeyMarker"], page["NextVersionIdMarker"]

    def delete_versions(self, versions: Sequence[ObjectVersion]) -> None:
        names = {(each.object_id.key, each.version_id) for each in versions}
        self._delete(versions[0].object_id.bucket, names, "DeleteObjectVersions")
        self.meter.objects_deleted += len(versions)

    def _delete(self, bucket: str, names: Collection[tuple[str, str]], operation: str) -> None:
        """Delete objects, or versions of objects, by their keys and the ids of versions."""
        waiting = names
        while waiting:
            entries = [{"Key": key} | ({"VersionId": version} if version else {}) for key, version in sorted(waiting)]
            listed = {"Objects": entries, "Quiet": True}

            def delete(requests: ObjectRequests, listed: dict[str, Any] = listed) -> Any:
                answer = requests.boto3.delete_objects(Bucket=bucket, Delete=listed)
                refused = [each for each in answer.get("Errors", ()) if each.get("Code") not in _MISSING]
                if refused and len(refused) == len(listed["Objects"]):
                    # Each key has an error of its own, and the answer's status is 200.
                    # A retry does not help where access is denied.
                    status = {"HTTPStatusCode": 403 if refused[0].get("Code") in _DENIED else 500}
                    raise boto_errors.ClientError({"Error": refused[0], "ResponseMetadata": status}, "DeleteObjects")
                return refused

            refused = self._send(operation, bucket, delete)
            waiting = {(each["Key"], each.get("VersionId", "")) for each in refused}

    def expect_answers(self) -> None:
        """Assume that S3 can be reached: from here on its absence is an outage, not a wrong setting."""
        self._retries.has_answered = True

    def stop(self) -> None:
        self._client.is_stopped = True

    def close(self) -> None:
        self._client.close()

    def _send(
        self, operation: str, bucket: str, send: Callable[[ObjectRequests], Result], *, puts: int = 0, gets: int = 0
    ) -> Result:
        """Send a request until S3 answers it; each is paid for."""
        since, failures = self._retries.clock(), 0
        facts: dict[str, Any] = {"operation": operation, "bucket": bucket}
        while True:
            if self._client.is_stopped:
                raise UnavailableError("this was interrupted, and sends no further request")
            self.meter.requests += 1
            self.meter.puts += puts
            self.meter.gets += gets
            requests = None
            try:
                requests = self._client.current()
                answer = send(requests)
            except _FAILURES as error:
                if isinstance(error, RuntimeError) and not lacks_credentials(error):
                    raise
                if lacks_credentials(error):
                    self._client.forget(requests)
                self._wait(error, since, failures, facts)
                failures += 1
            except OSError as error:
                message = f"AWS credentials cannot be read, or the request cannot be made: {error}"
                raise ConfigurationError(message, **facts) from as_cause(error)
            else:
                self._retries.has_answered = True
                return answer

    def _wait(self, error: Exception, since: float, failures: int, facts: dict[str, Any]) -> None:
        """Pause before the next try, or raise the user's error."""
        self._retries.has_answered |= isinstance(error, boto_errors.ClientError)
        refusal = _refusal(error, **facts)
        if refusal is not None:
            raise refusal from as_cause(error)
        self.meter.throttles += _is_slowing(error)
        waited, deadline_s = self._retries.clock() - since, self._retries.deadline_s
        if waited >= deadline_s:
            raise self._gave_up(error, facts | {"tries": failures + 1, "seconds": round(waited, 1)}) from as_cause(
                error
            )
        if failures == 0:
            log.warning("S3 gives no proper answer; retried operation=%s bucket=%s: %s", *facts.values(), error)
        self.meter.retries += 1
        self._retries.pause(failures, deadline_s - waited)

    def _gave_up(self, error: Exception, facts: dict[str, Any]) -> DynastateError:
        if lacks_credentials(error):
            kind = UnavailableError if self._retries.has_answered else ConfigurationError
            return kind(about_credentials(error), **facts)
        if not self._retries.has_answered:
            return ConfigurationError(
                f"S3 cannot be reached; check {PREFIX}objectsEndpoint and {PREFIX}region, and the network: {error}",
                **facts,
            )
        if _is_slowing(error):
            return UnavailableError(
                f"S3 asked to slow down until the deadline; use fewer partitions, or raise {PREFIX}requestDeadlineS",
                **facts,
            )
        return UnavailableError(f"S3 gave no proper answer until the deadline: {error}", **facts)


class _MissingError(Exception):
    """There is no such object, or it `ends_early`, before the range. Never leaves this module."""

    def __init__(self, *, ends_early: bool) -> None:
        super().__init__()
        self.ends_early = ends_early


def _is_slowing(error: Exception) -> bool:
    return code_of(error) in _SLOW or status_of(error) == 503


def _refusal(error: Exception, operation: str, bucket: str) -> Exception | None:
    """The error of a request that no retry mends. Returns None if a retry may mend it."""
    code = code_of(error)
    if lacks_credentials(error) or _is_slowing(error) or code in _RETRIED:
        return None
    if code in _MISSING | _ENDED and operation != "HeadBucket":
        return _MissingError(ends_early=code in _ENDED)
    if code in ("NoSuchBucket", "404"):
        message = f"the bucket does not exist; correct {PREFIX}objects, or make it: with Terraform (infra/)"
    elif code in ELSEWHERE:
        message = (
            f"the bucket is in another Region, whose traffic costs money; name one in the Region of the tables in "
            f"{PREFIX}objects, or set {PREFIX}region"
        )
    elif operation == "DeleteObjectVersions" and code == "AccessDenied":
        message = (
            f"S3 refuses to delete a version of an object. Grant s3:DeleteObjectVersion to the role that runs this; if "
            f"Object Lock retains the version, or it has a legal hold, end that. Then repeat the command: {error}"
        )
    elif code in _NOT_THERE:
        message = f"this service has no such request of S3: {error}"
    elif status_of(error) == 403 or code in _DENIED:
        message = (
            f"AWS denies permission for {operation} on the bucket, or refuses the credentials; grant it to the role "
            f"that runs this: {error}"
        )
    elif isinstance(error, boto_errors.IncompleteReadError):
        return None
    elif fate_of(error) is Fate.REFUSED or status_of(error) in range(400, 500):
        message = f"S3 refuses the request: {error}"
    else:
        return None
    return ConfigurationError(message, operation=operation, bucket=bucket)
