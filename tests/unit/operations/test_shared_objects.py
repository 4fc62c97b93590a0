"""Tables that share `objects`, and tables that were restored from a backup of others: whose objects are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_manifest
from dynastate.format.keys import VersionId, meta_key
from dynastate.format.objects import ObjectId
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores, locations_of_others
from dynastate.operations.regions.copy import copy_stores, plan_copy
from dynastate.settings import Settings
from tests.support.contents import entry, graph, named_objects
from tests.support.engine_driver import Engines, begin, closing, read, save_snapshot, write, write_versions
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, numbers

pytestmark = pytest.mark.usefixtures("always_worth_it")
STORE = "orders/0/0/default"
S3_URL = "s3://bucket/state"
OF_LIVE = f"{S3_URL}/live-groups"
OF_OTHERS = f"{S3_URL}/other-groups"
#: With a threshold of 0, all parts that are not inline go to objects.
ALL: dict[str, Any] = {"objects": S3_URL, "objects_threshold_kb": 0}


@pytest.fixture
def live() -> MemoryTables:
    return MemoryTables("live-groups")


@pytest.fixture
def engines(live: MemoryTables) -> Iterator[Engines]:
    yield from closing(live)


@pytest.fixture
def newest(engines: Engines) -> VersionId:
    """The newest of twelve versions of the query that runs, with a snapshot of the eighth."""
    return run_query(engines(**ALL))


@pytest.fixture
def restored(live: MemoryTables, newest: VersionId) -> MemoryTables:  # what is restored
    tables = MemoryTables("other-groups", live.objects)
    tables.items = deepcopy(live.items)
    return tables


def run_query(engine: Engine) -> VersionId:
    versions = write_versions(engine, STORE, 12)
    save_snapshot(engine, STORE, versions[8], numbers(8))
    return versions[12]


def go_on(engine: Engine, base: VersionId, last: int, run: str) -> VersionId:
    for number in range(base.version + 1, last + 1):
        by = attempt(number + 100 * (run != "run-1"))
        base = write(engine, STORE, by, {b"%d" % number: b"%d" % number}, base=base, run=run)
    save_snapshot(engine, STORE, base, numbers(last), run=run)
    return base


def objects_in(tables: MemoryTables, location: str) -> dict[ObjectId, bytes]:
    return {place: data for place, data in tables.objects.objects.items() if place.location == location}


def is_whole(tables: MemoryTables, engine: Engine, newest: VersionId) -> bool:
    """Whether every version can be read, and nothing is missing or orphaned."""
    readable = graph(tables, STORE).versions()
    assert all(read(engine, STORE, *entry(tables, STORE, version).id) == numbers(version) for version in readable)
    assert read(engine, STORE, *newest) == numbers(newest.version)
    return verify(tables, STORE).findings == ()


def test_tables_that_share_a_bucket(live: MemoryTables, engines: Engines, newest: VersionId) -> None:
    """Clean-up, verify and drop of one pair of tables take no object of the other's for an orphan."""
    others = MemoryTables("other-groups", live.objects)
    engine = engines(others, **ALL)
    crashed = begin(engine, STORE, attempt(99), {b"1": b"other"})
    crashed.flush()
    crashed._pending.wait(5)
    run_query(engine)
    objects_before = objects_in(live, OF_LIVE)
    assert len(objects_before) > 12
    assert {each.what for each in verify(others, STORE).findings} == {"orphaned"}
    last = go_on(engines(others, **ALL), VersionId(12, newest.attempt), 16, "run-2")
    assert clean_store(engine, others, STORE, 2).other_locations == ()
    engines(others, **ALL).maintenance.clean_up(STORE, "run-2", *last, retain=2, least=0, most=0)
    assert set(objects_in(others, OF_OTHERS)) == named_objects(others, STORE), "its own orphans are deleted"
    assert is_whole(others, engine, last)
    assert drop_stores(others, [STORE])
    assert objects_in(others, OF_OTHERS) == {}
    assert objects_in(live, OF_LIVE) == objects_before
    assert is_whole(live, engines(), newest)


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "without its meta item"])
def test_restored_tables_are_dropped(
    live: MemoryTables, restored: MemoryTables, engines: Engines, newest: VersionId, *, is_lost: bool
) -> None:
    """The query whose tables they were restored from keeps all its objects, the newer ones too."""
    newest = go_on(engines(**ALL), newest, 15, "run-1")
    objects_before = dict(live.objects.objects)
    if is_lost:
        del restored.items[meta_key(STORE)]
    assert locations_of_others(restored, [STORE]) == [OF_LIVE]
    assert drop_stores(restored, [STORE])
    assert live.objects.objects == objects_before
    assert is_whole(live, engines(), newest)


def test_restored_tables_go_on(live: MemoryTables, restored: MemoryTables, engines: Engines, newest: VersionId) -> None:
    """A query that continues on them reads the old objects, deletes none, and needs none after a snapshot."""
    assert is_whole(restored, engines(restored), newest)
    assert verify(restored, STORE).other_locations == (OF_LIVE,)
    ahead = go_on(engines(**ALL), newest, 15, "run-1")
    objects_before = objects_in(live, OF_LIVE)
    assert {each.what for each in verify(restored, STORE).findings} == set(), "the live query's are no orphans"
    engine = engines(restored, **ALL)
    last = go_on(engine, newest, 20, "run-2")
    assert compact_store(engine, restored, STORE) is None
    assert verify(restored, STORE).other_locations == (OF_LIVE,)
    last = go_on(engine, last, 21, "run-2")
    assert clean_store(engine, restored, STORE, 2).other_locations == (OF_LIVE,)
    assert objects_in(live, OF_LIVE) == objects_before
    assert verify(restored, STORE).other_locations == ()
    last = go_on(engine, last, 22, "run-2")
    assert clean_store(engine, restored, STORE, 2).other_locations == (), "of those that are left it tells once"
    assert set(objects_in(live, OF_OTHERS)) == named_objects(restored, STORE)
    assert is_whole(live, engines(), ahead)
    for place in objects_before:
        del live.objects.objects[place]
    assert is_whole(restored, engines(restored), last)


def test_buckets_of_other_tables_are_not_carried(restored: MemoryTables, engines: Engines, newest: VersionId) -> None:
    """The first snapshot on restored tables writes all buckets: the live query deletes those that it replaces."""
    engine = engines(restored, **ALL)
    base = write(engine, STORE, attempt(13), {b"13": b"13"}, base=newest, run="run-2")
    save_snapshot(engine, STORE, base, numbers(13), run="run-2")
    snapshot = graph(restored, STORE).snapshot(*base)
    assert snapshot is not None
    assert read_manifest(restored, STORE, snapshot).locations == {OF_OTHERS}


def test_a_lost_object_of_other_tables_is_missing(restored: MemoryTables, newest: VersionId) -> None:
    """What clean-up of the live query has deleted since is reported, and names the place."""
    lost = entry(restored, STORE, newest.version).object_ids(STORE)
    for place in lost:
        del restored.objects.objects[place]
    report = verify(restored, STORE)
    assert [each.what for each in report.findings] == ["missing"]
    assert not report.is_whole


def test_a_copy_to_tables_that_share_the_bucket(live: MemoryTables, engines: Engines, newest: VersionId) -> None:
    """The same `objects` will do, since the target has a location of its own there; a drop at either end is its own."""
    target, settings = MemoryTables("other-groups", live.objects), Settings()
    objects_before = dict(live.objects.objects)
    copy_stores(live, target, plan_copy(live, target, "orders", settings, objects=S3_URL), settings)
    assert {place.name for place in objects_in(live, OF_OTHERS)} == {place.name for place in objects_before}
    assert graph(target, STORE).required_meta.objects == {OF_OTHERS}
    drop_stores(live, [STORE])
    assert objects_in(live, OF_LIVE) == {}
    assert is_whole(target, engines(target), newest)


def test_copy_of_a_restoration(live: MemoryTables, restored: MemoryTables, engines: Engines, newest: VersionId) -> None:
    """It has the objects that the restored tables name, and none that the live query has written since."""
    named = named_objects(restored, STORE)
    target, settings = MemoryTables("third-groups", live.objects), Settings()
    stranger = ObjectId(f"{S3_URL}/third-groups", f"{STORE}#delta/{1:020d}/{attempt(7).hex()}/000000")
    live.objects.put(stranger, b"strange")
    go_on(engines(**ALL), newest, 15, "run-1")
    objects_before = objects_in(live, OF_LIVE)
    plan = plan_copy(restored, target, "orders", settings, objects=S3_URL)
    assert copy_stores(restored, target, plan, settings).objects == plan.objects == len(named)
    copied = objects_in(live, f"{S3_URL}/third-groups")
    assert {place.name for place in copied} == {place.name for place in named}
    assert objects_in(live, OF_LIVE) == objects_before
    assert is_whole(target, engines(target), newest)
