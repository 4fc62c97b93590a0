"""Snapshots."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_manifest
from dynastate.errors import InternalError
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, graph
from tests.support.engine_driver import fold, read, save_snapshot, take_snapshot, write, write_versions
from tests.support.samples import attempt, chunk

pytestmark = pytest.mark.usefixtures("always_worth_it")


def test_only_changed_buckets_are_written(engine: Engine, tables: Tables, store: str) -> None:
    """A second snapshot reuses buckets of the first, and marks buckets that became empty."""
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(engine, store, attempt(1), state)
    save_snapshot(engine, store, first, state)
    before = buckets_of(tables, store)
    gone = next(iter(state))
    second = write(engine, store, attempt(2), {gone: None}, base=first)
    left = {key: value for key, value in state.items() if key != gone}
    assert save_snapshot(engine, store, second, left, lambda _: {gone}).base == 1
    assert len(buckets_of(tables, store)) == len(before) + 1
    assert read(engine, store, *second) == left
    third = write(engine, store, attempt(3), dict.fromkeys(left), base=second)
    save_snapshot(engine, store, third, {}, lambda _: set(left))
    opening = engine.open(store, *third)
    assert (opening.snapshot, fold(opening.snapshot_chunks)) == (3, {})
    snapshot = graph(tables, store).snapshot(3, attempt(3))
    assert snapshot is not None
    kept = read_manifest(tables, store, snapshot)
    assert {bucket.emptied for bucket in kept.buckets} == {3}


def test_an_unfinished_snapshot_is_not_used(engine: Engine, tables: Tables, store: str) -> None:
    """No reader uses a snapshot that is still being written, and no second one is made of its version."""
    versions = write_versions(engine, store, 12)
    under_way = take_snapshot(engine, store, versions[11], {b"x": b"y"})
    assert under_way is not None
    assert engine.open(store, *versions[12]).snapshot == 0
    assert take_snapshot(engine, store, versions[11], {}) is None
    under_way.abort()
    assert buckets_of(tables, store) == []
    assert graph(tables, store).snapshots() == []


def test_rows_outside_their_bucket_are_refused(engine: Engine, store: str) -> None:
    """A provider that sends rows to another bucket than theirs has a defect; it makes no snapshot."""
    version = write(engine, store, attempt(1), {b"1": b"1"})
    under_way, _ = engine.maintenance.snapshot(store, "run-1", *version, state_bytes=4 << 20, min_deltas=1)
    assert under_way is not None
    under_way.bucket(0)
    with pytest.raises(InternalError, match="in no bucket, or in another"):
        under_way.append(chunk({b"%d" % number: b"" for number in range(50)}))
    with pytest.raises(InternalError, match="out of order"):
        under_way.bucket(0)
    under_way.abort()
