"""Routes, without tables."""

from __future__ import annotations

import pytest

from dynastate.engine.route import BUCKET_BYTES, ENTRY_BYTES, SIZE_BYTES, Route
from dynastate.errors import InternalError
from dynastate.format.codec import LZ4
from dynastate.format.keys import Attempt, VersionId
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.objects import ObjectParts
from dynastate.format.version_list import InlineChanges
from tests.support.samples import A, B, C, D, entry_of

STORE = "orders/0/0/default"
BUCKETS = (Bucket(records=5), Bucket(records=6))


def manifest(version: int, by: Attempt) -> SnapshotManifest:
    return SnapshotManifest(version, by, by, base=0, bits=1, buckets=BUCKETS)


#: Versions 1 to 3, from nothing; the route from a snapshot of version 2.
ENTRIES = (entry_of(1, A), entry_of(2, B, A, records=2), entry_of(3, C, B, records=3))
WHOLE = Route(STORE, None, None, ENTRIES, {bytes(8): "schema"}, shards=4)
SHORT = Route(STORE, manifest(2, B), ENTRIES[1], ENTRIES[2:], WHOLE.schemas, shards=4)


def test_the_end_of_a_route_is_its_version() -> None:
    assert (WHOLE.end.id, SHORT.end.id) == ((3, C), (3, C))
    assert WHOLE.schema == "schema"
    with pytest.raises(InternalError, match=f"a route leads to no version store={STORE}"):
        _ = Route(STORE, None, None, (), {}, shards=4).end


def test_routes_to_earlier_versions() -> None:
    """A route that begins with a snapshot does not lead to versions before the snapshot's."""
    for number, by in ((1, A), (2, B), (3, C)):
        route = WHOLE.to(number, by)
        assert route is not None
        assert route.end.id == (number, by)
    start = SHORT.to(2, B)
    assert start is not None
    assert (start.entries, start.end.id) == ((), (2, B))
    assert [SHORT.to(1, A), SHORT.to(2, D), WHOLE.to(3, D), WHOLE.to(4, D)] == [None] * 4


def test_a_child_extends_a_route() -> None:
    child = entry_of(4, D, C, schema=b"another!")
    route = SHORT.then(child, "later schema")
    assert (route.end, route.schema, route.snapshot) == (child, "later schema", SHORT.snapshot)
    assert SHORT.end.id == (3, C), "a route never changes"


def test_a_snapshot_on_a_route_shortens_it() -> None:
    assert WHOLE.by(manifest(2, B)) == SHORT
    assert WHOLE.by(manifest(2, D)) is None, "a snapshot of another attempt"
    assert WHOLE.by(manifest(4, D)) is None


def test_only_later_changes_are_read() -> None:
    assert WHOLE.since({VersionId(1, A), VersionId(2, D)}) == ((1, A), ENTRIES[1:])
    assert SHORT.since({VersionId(2, B)}) == ((2, B), ENTRIES[2:])
    assert SHORT.since({VersionId(1, A)}) == ((1, A), ENTRIES[1:]), "the snapshot's version has its own parent"
    assert SHORT.since({VersionId(3, D)}) is None


def test_sums_of_a_route() -> None:
    """Rows of the snapshot are counted with the changes after it. Memory grows with what a route names."""
    assert (WHOLE.records, SHORT.records) == (5, 11 + 3)
    assert (WHOLE.bits, SHORT.bits) == (0, 1)
    assert WHOLE.size == 3 * ENTRY_BYTES
    assert SHORT.size == ENTRY_BYTES + 2 * BUCKET_BYTES
    inline = entry_of(4, D, C, stored_bytes=70, inline=InlineChanges(LZ4, bytes(70)))
    in_objects = entry_of(5, A, D, parts=2, stored_bytes=9, objects=ObjectParts("s3://bucket", (4, 5)))
    longer = SHORT.then(inline, "schema").then(in_objects, "schema")
    assert longer.size - SHORT.size == 2 * ENTRY_BYTES + 70 + 2 * SIZE_BYTES
