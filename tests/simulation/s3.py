"""S3 in memory, as a boto3 client: the operations that dynastate uses. Every method acts at once."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from botocore.exceptions import IncompleteReadError

from tests.support.clients import client_error

Wire = dict[str, Any]
#: Names of a page of a list: small, so that schedules have several.
PAGE: Final = 3


class S3:
    """The objects of one bucket, by key. An object that would change is an error: each is written once, or again."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        #: Called with the key of each object that is deleted.
        self.on_delete: Callable[[str], None] = lambda _: None
        #: Whether no request arrives, and no answer comes back.
        self.is_cut = False

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, ChecksumCRC32: str) -> Wire:  # noqa: ARG002, N803
        assert self.objects.get(Key, Body) == Body, "an object that changes"
        assert Body
        self.objects[Key] = Body
        return {}

    def get_object(self, *, Bucket: str, Key: str, Range: str) -> Wire:  # noqa: ARG002, N803
        if Key not in self.objects:
            raise client_error("NoSuchKey", 404)
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        data = self.objects[Key][first : last + 1]
        if not data:
            raise client_error("InvalidRange", 416)
        return {"Body": BytesIO(data)}

    def list_objects_v2(self, *, Bucket: str, Prefix: str, ContinuationToken: str = "") -> Wire:  # noqa: ARG002, N803
        keys = [key for key in sorted(self.objects) if key.startswith(Prefix) and key > ContinuationToken]
        page = {"Contents": [{"Key": key} for key in keys[:PAGE]], "IsTruncated": len(keys) > PAGE}
        return page | ({"NextContinuationToken": keys[PAGE - 1]} if len(keys) > PAGE else {})

    def delete_objects(self, *, Bucket: str, Delete: Wire) -> Wire:  # noqa: ARG002, N803
        for entry in Delete["Objects"]:
            if self.objects.pop(entry["Key"], None) is not None:
                self.on_delete(entry["Key"])
        return {}

    def get_bucket_versioning(self, *, Bucket: str) -> Wire:  # noqa: ARG002, N803
        return {}

    def close(self) -> None:
        """Do nothing; a boto3 client has it."""


class CutBody(BytesIO):
    """A body whose connection ends before it does."""

    def read(self, *_: object) -> bytes:
        raise IncompleteReadError(actual_bytes=1, expected_bytes=2)
