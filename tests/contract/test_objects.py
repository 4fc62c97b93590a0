"""What the engine asks of S3, on each implementation of the seam and on two of S3 itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB, credentials
from dynastate.dynamodb.s3 import S3Objects
from dynastate.errors import ConfigurationError
from dynastate.format.objects import ObjectId, ObjectStream
from dynastate.runtime import Limits
from dynastate.storage.meter import Meter
from dynastate.storage.objects import (
    DELETES_MAX,
    NO_VERSION,
    Objects,
    ObjectVersion,
    delete_objects,
    delete_versions,
    read_stream,
    stored_versions,
)
from tests.support.memory_tables import MemoryObjects
from tests.support.s3mock import s3mock

#: A store's name as Spark makes it, with a namespace of all characters that one may have.
STORE = "A.b_c-9/0/17/left-keyToNumValues"


@pytest.fixture(
    params=["memory", pytest.param("http", marks=pytest.mark.emulator), pytest.param("s3mock", marks=pytest.mark.slow)],
    scope="module",
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Objects, str]]:
    """An S3, and a location in it that is empty at first."""
    if request.param == "memory":
        yield MemoryObjects(), f"s3://{BUCKET}/prefix"
        return
    with pytest.MonkeyPatch.context() as environment:
        for name, value in credentials().items():
            environment.setenv(name, value)
        if request.param == "s3mock":
            with s3mock(tmp_path_factory.mktemp("s3mock")) as settings:
                objects = S3Objects(settings)
                yield objects, settings.objects
                objects.close()
        else:
            embedded: EmbeddedDynamoDB = request.getfixturevalue("embedded")
            objects = S3Objects(replace(embedded.settings, request_deadline_s=5))
            yield objects, f"s3://{BUCKET}/prefix"
            objects.close()


@pytest.fixture
def objects(place: tuple[Objects, str]) -> Iterator[Objects]:
    """The S3, whose location is empty after each test."""
    bucket, location = place
    yield bucket
    delete_objects(bucket, list(bucket.names(location, "")))


@pytest.fixture
def location(place: tuple[Objects, str]) -> str:
    return place[1]


def test_an_object_comes_back(objects: Objects, location: str) -> None:
    """All of it, a range of it, and what is there of a range that begins within it or after it."""
    object_id, meter = ObjectId(location, f"{STORE}#delta/1/a/000000"), Meter()
    data = bytes(range(256)) * 4
    objects.metered(meter).put(object_id, data)
    objects.metered(meter).put(object_id, data)
    assert (meter.puts, meter.object_bytes_written) == (2, 2 * len(data))
    meter = Meter()
    assert objects.metered(meter).get(object_id, 0, len(data)) == data
    assert objects.metered(meter).get(object_id, 255, 258) == data[255:258]
    assert objects.metered(meter).get(object_id, 1_000, 2_000) == data[1_000:]
    assert objects.metered(meter).get(object_id, 1_024, 2_000) == b""
    assert objects.metered(meter).get(object_id._replace(name="another"), 0, 10) is None
    assert (meter.gets, meter.object_bytes_read) == (5, len(data) + 3 + 24)


def test_an_object_of_eight_mebibytes(objects: Objects, location: str) -> None:
    """The largest object, and a stream that goes on in the next one."""
    stream = ObjectStream(location, f"{STORE}#bucket/1/a")
    data = b"0123456789abcdef" * (Limits.object_bytes // 16)
    objects.put(stream.object(0), data)
    objects.put(stream.object(1), b"end")
    meter = Meter()
    assert read_stream(objects.metered(meter), stream, Limits.object_bytes - 3, Limits.object_bytes + 3) == b"defend"
    assert meter.gets == 2
    assert read_stream(objects.metered(meter), stream, Limits.object_bytes + 1, Limits.object_bytes + 9) == b"nd"
    assert read_stream(objects.metered(meter), stream, 2 * Limits.object_bytes, 2 * Limits.object_bytes + 9) is None


def test_names_come_in_order(objects: Objects, location: str) -> None:
    """The names of one prefix, ascending, without those of other prefixes and locations, however many."""
    ids = [ObjectId(location, f"{STORE}#delta/{number:06d}") for number in range(1_005)]
    others = [ObjectId(location, f"{STORE}2#delta/1"), ObjectId(f"{location}2", f"{STORE}#delta/1")]
    for place in [*reversed(ids), *others]:
        objects.put(place, b"x")
    meter = Meter()
    assert list(objects.metered(meter).names(location, f"{STORE}#")) == ids
    assert meter.puts >= 1
    assert list(objects.names(location, "nothing")) == []
    meter = Meter()
    delete_objects(objects.metered(meter), [*ids, *others])
    assert meter.objects_deleted == 1_007
    assert meter.requests == 3
    assert meter.puts == 0
    assert list(objects.names(location, "")) == []


def test_deletes(objects: Objects, location: str) -> None:
    object_id = ObjectId(location, "one")
    objects.put(object_id, b"1")
    objects.delete([object_id, ObjectId(location, "two")])
    objects.delete([object_id])
    assert objects.get(object_id, 0, 1) is None
    assert DELETES_MAX == 1_000


def test_a_bucket_is_checked(objects: Objects, location: str) -> None:
    """A bucket that is there can be used; of one that is not, the message says what to do."""
    assert objects.check(location) == []
    if isinstance(objects, S3Objects):
        (reason,) = objects.check("s3://not-there/prefix")
        assert "the bucket does not exist; correct spark.sql" in reason
        with pytest.raises(ConfigurationError, match="the bucket does not exist"):
            objects.put(ObjectId("s3://not-there", "x"), b"x")


def test_a_bucket_without_versions(objects: Objects, location: str) -> None:
    """It has one of each object, which is deleted as such."""
    object_id = ObjectId(location, f"{STORE}#delta/1")
    objects.put(object_id, b"1")
    assert not objects.keeps_versions(location)
    versions = list(stored_versions(objects, location, f"{STORE}#"))
    assert versions == [ObjectVersion(object_id)]
    delete_versions(objects, versions)
    assert objects.get(object_id, 0, 1) is None


def test_a_bucket_with_versions(objects: Objects, request: pytest.FixtureRequest) -> None:
    """Deleted objects, delete markers, and what was there before can be listed, and be deleted for good."""
    location = "s3://with-versions/prefix"
    if "s3mock" in request.node.name:
        pytest.skip("S3Mock forgets that a bucket keeps versions")
    if isinstance(objects, MemoryObjects):
        objects = MemoryObjects(has_versions=True)
    else:
        assert isinstance(objects, S3Objects)
        boto3 = objects._client.current().boto3
        boto3.create_bucket(Bucket="with-versions")
        objects.put(ObjectId(location, "before"), b"0")
        boto3.put_bucket_versioning(Bucket="with-versions", VersioningConfiguration={"Status": "Enabled"})
    ids = [ObjectId(location, f"{STORE}#delta/{number}") for number in range(3)]
    for object_id in ids:
        objects.put(object_id, b"1")
    objects.delete(ids[:2])
    assert objects.keeps_versions(location)
    versions = list(stored_versions(objects, location, f"{STORE}#"))
    assert [each.object_id for each in versions if each.is_current] == ids[2:]
    assert sorted(each.object_id for each in versions) == sorted([*ids, *ids[:2]])
    assert all(each.version_id for each in versions)
    meter = Meter()
    delete_versions(objects.metered(meter), [*versions, ObjectVersion(ObjectId(location, "none"), NO_VERSION)])
    assert meter.objects_deleted == 6
    assert list(stored_versions(objects, location, f"{STORE}#")) == []
    assert objects.get(ids[2], 0, 1) is None
    if isinstance(objects, S3Objects):
        (before,) = stored_versions(objects, location, "")
        assert before == ObjectVersion(ObjectId(location, "before"), NO_VERSION)
        objects.delete_versions([before])
        assert list(objects.versions(location, "")) == []
