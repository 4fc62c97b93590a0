"""Failures of S3: retries until the deadline, and messages."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Any

import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.retries import RetryPolicy
from dynastate.dynamodb.s3 import S3Objects
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.objects import ObjectId
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.objects import ObjectVersion

PLACE = ObjectId("s3://bucket/prefix", "n/0/0/default#delta/1/a/000000")
DEADLINE_S = 30


def answered(code: str, status: int, operation: str = "PutObject") -> boto_errors.ClientError:
    return boto_errors.ClientError(
        {"Error": {"Code": code, "Message": "said so"}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )


class CutBody(BytesIO):
    """The body of an answer that is cut off."""

    def read(self, *_: object) -> bytes:
        raise boto_errors.IncompleteReadError(actual_bytes=3, expected_bytes=6)


class FakeClient:
    """A boto3 client of S3 with one object, whose next calls fail as planned, before or after they are applied."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: deque[Any] = deque()
        self.calls = 0

    def _call(self, apply: Callable[[], Any]) -> Any:
        self.calls += 1
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        result = apply()
        if fault is not None:
            raise fault[1]
        return result

    def put_object(self, Key: str, Body: bytes, **_: object) -> Any:  # noqa: N803  # boto3's names
        return self._call(lambda: self.objects.__setitem__(Key, Body))

    def get_object(self, Key: str, **_: object) -> Any:  # noqa: N803
        if self.faults and self.faults[0] == ("cut", None):
            self.faults.popleft()
            return {"Body": CutBody()}
        return self._call(lambda: {"Body": BytesIO(self.objects[Key])})

    def delete_objects(self, Delete: Any, **_: object) -> Any:  # noqa: N803
        names = [each["Key"] for each in Delete["Objects"]]
        match self.faults and self.faults[0]:
            case ("all" | "some" as which, code):
                self.faults.popleft()
                self.calls += 1
                for name in names[: which == "some"]:
                    self.objects.pop(name, None)
                failed = names[which == "some" :]
                return {"Errors": [{"Key": name, "Code": code, "Message": "said S3"} for name in failed]}
        return self._call(lambda: [self.objects.pop(name, None) for name in names] and {})

    def get_bucket_versioning(self, **_: object) -> Any:
        return self._call(dict)

    def close(self) -> None:
        """Do nothing."""


class At:
    """An S3 in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.client = FakeClient()
        policy = RetryPolicy(DEADLINE_S, lambda: self.now, self._sleep, random.Random(1))  # noqa: S311  # jitter
        policy.has_answered = True
        self.policy = policy
        self.objects = S3Objects(Settings(region="eu-west-1"), retries=policy, client=self.client)

    def _sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)

    def put(self) -> Meter:
        meter = Meter()
        self.objects.metered(meter).put(PLACE, b"object")
        return meter


@pytest.fixture
def at() -> At:
    """An S3 that has answered before."""
    return At()


@pytest.mark.parametrize(
    "fault",
    [
        *(answered(code, 503) for code in ("SlowDown", "ServiceUnavailable", "503")),
        *(answered(code, 400) for code in ("RequestTimeout", "BadDigest")),
        *(answered(str(status), status) for status in (408, 429)),
        answered("InternalError", 500),
        boto_errors.ReadTimeoutError(endpoint_url="https://s3"),
        boto_errors.EndpointConnectionError(endpoint_url="https://s3"),
        ("after", boto_errors.ConnectionClosedError(endpoint_url="https://s3")),
        boto_errors.NoCredentialsError(),
    ],
    ids=str,
)
def test_what_passes_is_retried(at: At, fault: Any) -> None:
    """Slow-downs, failures, lost answers, a proxy's limits, damaged bodies, missing credentials: it is sent again."""
    at.client.faults.extend([fault, fault])
    meter = at.put()
    assert at.client.objects == {PLACE.key: b"object"}
    assert (at.client.calls, meter.requests, meter.puts, meter.retries) == (3, 3, 3, 2)
    assert meter.object_bytes_written == 6
    assert 0 < at.now < DEADLINE_S
    assert meter.throttles == (2 if re.search("429|503|SlowDown|ServiceUnavailable", str(fault)) else 0)


def test_a_body_that_is_cut_off_is_read_again(at: At) -> None:
    at.put()
    at.client.faults.append(("cut", None))
    meter = Meter()
    assert at.objects.metered(meter).get(PLACE, 0, 6) == b"object"
    assert (meter.gets, meter.retries, meter.object_bytes_read) == (2, 1, 6)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (answered("SlowDown", 503), "S3 asked to slow down until the deadline"),
        (answered("InternalError", 500), "S3 gave no proper answer until the deadline"),
        (boto_errors.ReadTimeoutError(endpoint_url="https://s3"), "S3 gave no proper answer until the deadline"),
        (boto_errors.NoCredentialsError(), "no AWS credentials"),
    ],
    ids=str,
)
def test_the_deadline(at: At, fault: Exception, message: str) -> None:
    """Without an answer the request fails at the deadline, as one that Spark may retry."""
    at.client.faults.extend([fault] * 1_000)
    with pytest.raises(UnavailableError, match=message) as failed:
        at.put()
    assert DEADLINE_S <= at.now < DEADLINE_S + 6
    assert "bucket=bucket" in str(failed.value)
    assert at.client.objects == {}


def test_an_s3_that_never_answered(at: At) -> None:
    """A wrong endpoint is likelier than an outage, and is an error after some seconds."""
    at.policy.has_answered = False
    at.client.faults.extend([boto_errors.EndpointConnectionError(endpoint_url="http://nowhere")] * 1_000)
    with pytest.raises(ConfigurationError, match=r"S3 cannot be reached; check .*objectsEndpoint"):
        at.put()
    assert at.now < 15


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (answered("NoSuchBucket", 404), "the bucket does not exist; correct"),
        (answered("AccessDenied", 403), "AWS denies permission for PutObject on the bucket"),
        (answered("InvalidAccessKeyId", 403), "or refuses the credentials"),
        (answered("PermanentRedirect", 301), "the bucket is in another Region"),
        (answered("AuthorizationHeaderMalformed", 400), "the bucket is in another Region"),
        (answered("InvalidArgument", 400), "S3 refuses the request: .*InvalidArgument"),
        (answered("400", 400), "S3 refuses the request: "),
        (answered("413", 413), "S3 refuses the request: "),
    ],
    ids=str,
)
def test_an_error_for_good_is_raised_at_once(at: At, fault: Exception, message: str) -> None:
    """A wrong bucket, Region or permission fails with what to do, after one request."""
    at.client.faults.append(fault)
    with pytest.raises(ConfigurationError, match=message):
        at.put()
    assert (at.client.calls, at.now) == (1, 0)


def test_an_object_that_is_not_there(at: At) -> None:
    """It is none, and one that ends before the range is empty: no reason to retry."""
    at.client.faults.extend([answered("NoSuchKey", 404, "GetObject"), answered("InvalidRange", 416, "GetObject")])
    assert at.objects.get(PLACE, 0, 1) is None
    assert at.objects.get(PLACE, 0, 1) == b""


def test_deletes_in_part_are_completed(at: At) -> None:
    places = [PLACE._replace(name=f"n/{number}") for number in range(3)]
    at.client.objects = dict.fromkeys((place.key for place in places), b"")
    at.client.faults.append(("some", "InternalError"))
    meter = Meter()
    at.objects.metered(meter).delete(places)
    assert at.client.objects == {}
    assert (meter.objects_deleted, meter.requests, meter.puts) == (3, 2, 0)


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_deletes_that_all_fail_are_retried(at: At, code: str) -> None:
    """The answer has status 200, and an error for each object: within the deadline they are sent again."""
    at.client.objects = {PLACE.key: b""}
    at.client.faults.extend([("all", code)] * 3)
    meter = Meter()
    at.objects.metered(meter).delete([PLACE])
    assert (at.client.objects, at.client.calls, meter.retries) == ({}, 4, 3)
    assert 0 < at.now < DEADLINE_S
    at.client.faults.extend([("all", code)] * 1_000)
    with pytest.raises(UnavailableError, match="until the deadline"):
        at.objects.delete([PLACE])


def test_deletes_that_are_denied_are_not_retried(at: At) -> None:
    at.client.faults.append(("all", "AccessDenied"))
    with pytest.raises(ConfigurationError, match="AWS denies permission for DeleteObjects on the bucket"):
        at.objects.delete([PLACE])
    assert (at.client.calls, at.now) == (1, 0)


@pytest.mark.parametrize("said", ["not authorized", "object protected by object lock"])
def test_versions_that_may_not_be_deleted(at: At, said: str) -> None:
    """S3 gives the same code where a permission lacks and where Object Lock retains a version."""
    at.client.faults.append(answered("AccessDenied", 403, "DeleteObjects"))
    with pytest.raises(ConfigurationError, match=r"S3 refuses to delete a version of an object.*legal hold"):
        at.objects.delete_versions([ObjectVersion(PLACE, said)])
    assert at.client.calls == 1


def test_a_service_without_versions(at: At) -> None:
    """It is not sent again: no retry helps."""
    at.client.faults.append(answered("NotImplemented", 501, "GetBucketVersioning"))
    with pytest.raises(ConfigurationError, match="this service has no such request of S3"):
        at.objects.keeps_versions(PLACE.location)
    assert (at.client.calls, at.now) == (1, 0)
    assert not at.objects.keeps_versions(PLACE.location)


def test_after_a_stop_nothing_is_sent(at: At) -> None:
    """Requests are refused, also those that wait for their next try."""
    at.objects.stop()
    with pytest.raises(UnavailableError, match="was interrupted"):
        at.put()
    assert at.client.calls == 0
