"""verify: every defect is found and named, nothing else is, and nothing is written."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator
from itertools import count, product
from uuid import uuid4

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.wire import to_wire
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError
from dynastate.format.changes import key_hash
from dynastate.format.items import Item, item_key
from dynastate.format.keys import EMPTY, Attempt, Key, Role, VersionId, snapshot_key, store_shard, version_list_key
from dynastate.format.meta import QueryRun
from dynastate.format.namespace import namespace_item, namespace_key
from dynastate.operations.inspection import verify as verify_module
from dynastate.operations.inspection.findings import Checked, Finding, Report
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.storage.meter import Meter
from tests.support.clients import FailingClient
from tests.support.contents import parts_of
from tests.support.corruption import SECOND_SNAPSHOT, STORE, IntactStore, damages, intact_store, is_harmless, lost_list
from tests.support.engine_driver import begin, make_engine, recover, save_snapshot, take_snapshot, write, write_versions
from tests.support.faults import Dying, FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt, chunk, numbers, query_run, singles

SEED = 20_250_106
MOVED = "file:/moved/state"
pytestmark = pytest.mark.usefixtures("always_worth_it")
#: Items of which so much is tried; the test of bad bytes tries more, on readers.
DAMAGES = 250


def listed(report: Report) -> list[tuple[str, str]]:
    """Kind and sort key of each finding."""
    return [(finding.what, finding.key.sort) for finding in report.findings]


def readable(report: Report) -> set[VersionId]:
    return {VersionId(each.version, each.attempt) for each in report.versions if each.is_readable}


def can_recover(whole: IntactStore, tables: MemoryTables) -> set[VersionId]:
    """The versions that an engine opens."""
    at = make_engine(tables, parallel_requests=1)
    versions = set()
    for node, state in whole.states.items():
        with contextlib.suppress(CorruptStateError, VersionMissingError):
            assert recover(at, STORE, *node) == state
            versions.add(node)
    at.close()
    return versions


@pytest.mark.parametrize("cleaned", [False, True], ids=["all versions", "cleaned up"])
def test_a_whole_store_has_no_findings(*, cleaned: bool) -> None:
    """In a store with every kind of item all versions can be read, every item is read, and nothing is reported."""
    whole = intact_store(cleaned=cleaned)
    tables = whole.tables()
    report = verify(tables, STORE)
    assert (report.findings, report.more, report.is_whole) == ((), 0, True)
    assert readable(report) == set(whole.states)
    assert {each.epoch for each in report.versions} == {1, 2}
    assert not any(each.is_dead for each in report.versions)
    assert report.snapshots == 2
    data = [
        item["data"]
        for key, item in tables.items.items()
        if key.store_shard.startswith(f"{STORE}#") and (key.role == "delta" or key.sort.startswith("bucket/"))
    ]
    assert report.items == len(data)
    assert report.stored_bytes == sum(len(each) for each in data if isinstance(each, bytes))


@pytest.mark.slow
@pytest.mark.parametrize("cleaned", [False, True], ids=["all versions", "cleaned up"])
def test_items_that_recovery_cannot_read_are_reported(*, cleaned: bool) -> None:
    """Exactly the versions that an engine opens are reported as readable, and the defective item is named."""
    print(f"seed={SEED}")  # noqa: T201  # shown by pytest when the test fails
    whole = intact_store(cleaned=cleaned)
    chance = random.Random(SEED)  # noqa: S311  # which damages, no secret
    every = list(damages(whole.items, SEED, 3))
    for damage in chance.sample(every, DAMAGES):
        tables = whole.tables(damage)
        report = verify(tables, STORE)
        assert readable(report) == can_recover(whole, tables), f"{damage}: {report.findings}"
        if report.is_whole:
            # The loss of a list's last entries, or of the newest list of several, cannot be noticed; their parts are
            # orphaned.
            is_loss = damage.kind == "list" and damage.attribute in ("item", "versions")
            assert is_loss or is_harmless(damage, cleaned=False), damage  # a snapshot that is not done is none
            lost = set(whole.states) - readable(report)
            orphaned = {each for finding in report.findings for each in finding.named_by}
            assert not lost or lost & orphaned, damage
        else:
            named = {finding.key for finding in report.findings if finding.what != "orphaned"}
            # A snapshot's item says which manifest there is, and the meta item where parts lie: those are then missed.
            assert named & set(damage.changes) or damage.kind in ("snapshot", "meta", "list"), f"{damage}: {named}"


def delete(tables: MemoryTables, sort: str) -> Key:
    """Delete the items whose sort keys begin so; return the first of them."""
    keys = [key for key in sorted(tables.items) if key.sort.startswith(sort) and key.store_shard.startswith(STORE)]
    for key in keys:
        del tables.items[key]
    return keys[0]


def test_each_lost_item_is_reported_with_the_item_that_names_it() -> None:
    """Two missing parts of one version are reported with the list that names them; later versions cannot be read."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    first = delete(tables, f"{3:020d}/{attempt(3).hex()}/000000")
    second = delete(tables, f"{3:020d}/{attempt(3).hex()}/000002")
    report = verify(tables, STORE)
    why, by = "list/0000000000000000 names it", frozenset([VersionId(3, attempt(3))])
    assert report.findings == (Finding("missing", first, why, by), Finding("missing", second, why, by))
    # Version 4 has a snapshot.
    assert sorted(set(whole.states) - readable(report)) == [(3, attempt(3))]
    assert report.lines(tables.names)[2] == f"cannot be read: version=3 attempt={attempt(3).hex()}"


def test_a_corrupt_record_of_runs_is_reported(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """No run can begin, also where every version can be read."""
    write_versions(memory_engine, store, 2)
    namespace = store.split("/", maxsplit=1)[0]
    key = namespace_key(namespace)
    record = namespace_item(namespace, "run", "query", "file:/state")
    memory.items[key] = record
    assert verify(memory, store).is_whole
    memory.items[key] = record | {"epoch": 7}
    report = verify(memory, store)
    assert [(each.what, each.key) for each in report.findings] == [("corrupt", key)]
    assert "no run of the query can begin: the record of the namespace's runs is corrupt" in report.findings[0].why
    assert (report.is_whole, report.readable) == (False, {1, 2})


def test_a_lost_list_is_reported_by_the_versions_that_need_it() -> None:
    """Without the first version list, and without a snapshot above it, no version of the second list can be read."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    key = delete(tables, "list/0000000000000000")
    delete(tables, f"snapshot/{SECOND_SNAPSHOT:020d}")
    delete(tables, f"snapshot_manifest/{SECOND_SNAPSHOT:020d}")
    report = verify(tables, STORE)
    missing = [finding for finding in report.findings if finding.what == "missing"]
    assert [(finding.key, finding.why) for finding in missing] == [
        (key, f"version 9 by attempt {attempt(9).hex()}, which version 10 needs, nor a snapshot of it")
    ]
    assert readable(report) == set()
    assert [(each.version, each.is_readable, each.is_dead) for each in report.versions] == [
        (version, False, False) for version in (10, 11, 12)
    ]


def test_a_truncated_list_is_reported_by_its_gap() -> None:
    """Versions 3 to 9 are deleted from their list, which recovery does not notice: version 10 has a snapshot."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    key = version_list_key(STORE, 3)
    versions = tables.items[key]["versions"]
    assert isinstance(versions, list)
    tables.items[key] = tables.items[key] | {"versions": versions[:2]}
    report = verify(tables, STORE)
    why = "the version list of 3-9 is lost: none of them is listed, but older ones are"
    assert [finding for finding in report.findings if finding.what != "orphaned"] == [Finding("missing", key, why)]
    assert {version for version, _ in readable(report)} == {1, 2, 10, 11, 12}
    assert {finding.named_by for finding in report.findings if finding.what == "orphaned"} >= {
        frozenset([VersionId(3, attempt(3))])
    }


SNAPSHOTS = {"a snapshot in each list": (4, 8, 14, 18, 24, 28), "a snapshot": (14,), "no snapshot": ()}


@pytest.mark.parametrize("cleaned", [False, True], ids=["all versions", "cleaned up"])
@pytest.mark.parametrize("snapshots", SNAPSHOTS.values(), ids=SNAPSHOTS)
@pytest.mark.parametrize("lost", [5, 15, 25], ids=["the oldest", "a middle one", "the newest"])
def test_a_lost_version_list(
    memory_engine: Engine, memory: MemoryTables, store: str, lost: int, snapshots: tuple[int, ...], *, cleaned: bool
) -> None:
    """It is a defect wherever it differs from a clean-up that deletes the oldest versions, whoever reads the others."""
    versions = write_versions(memory_engine, store, 27)
    for version in snapshots[:-1] if len(snapshots) > 1 else snapshots:
        save_snapshot(memory_engine, store, versions[version], numbers(version), lambda _: set())
    if cleaned:
        memory_engine.maintenance.clean_up(store, "run-1", *versions[27], 24, 0, 0)
    assert verify(memory, store).findings == ()
    lost_list(memory.items, store, lost).apply(memory)
    report = verify(memory, store)
    missing = [finding for finding in report.findings if finding.what == "missing"]
    if lost == 5 and any(version > 8 for version in snapshots):  # as where a clean-up was cut off
        assert (missing, report.is_whole) == ([], True)
        assert {finding.what for finding in report.findings} == {"orphaned"}
    else:
        assert not report.is_whole
        assert version_list_key(store, lost) in [finding.key for finding in missing]


@pytest.mark.parametrize("retain", [23, 24], ids=["of the version below", "of the lowest version"])
@pytest.mark.parametrize("snapshots", [(4, 20), (4,)], ids=["with a newer one", "the only one"])
def test_a_lost_snapshot_item(
    memory_engine: Engine, memory: MemoryTables, store: str, snapshots: tuple[int, ...], retain: int
) -> None:
    """It is reported where the lowest versions are read from it, and its manifest and buckets are no orphans."""
    versions = write_versions(memory_engine, store, 27)
    for version in snapshots:
        save_snapshot(memory_engine, store, versions[version], numbers(version))
    memory_engine.maintenance.clean_up(store, "run-1", *versions[27], retain, 0, 0)
    assert verify(memory, store).findings == ()
    key = snapshot_key(store, *versions[4])
    del memory.items[key]
    report = verify(memory, store)
    lowest = 27 - retain + 1
    assert [(each.what, each.key, each.named_by) for each in report.findings] == [
        ("missing", key, frozenset([versions[lowest]]))
    ]
    assert f"without it version {lowest} and those after it cannot be read" in report.findings[0].why
    assert report.readable == ({*range(20, 28)} if len(snapshots) == 2 else set())
    assert not any(each.is_dead for each in report.versions)


def test_a_lost_snapshot_item_with_carried_buckets(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Buckets that an earlier snapshot wrote are no orphans either."""
    versions = write_versions(memory_engine, store, 12)
    save_snapshot(memory_engine, store, versions[4], numbers(4), lambda _: set())
    save_snapshot(memory_engine, store, versions[6], numbers(6), lambda _: {b"5", b"6"})
    save_snapshot(memory_engine, store, versions[11], numbers(11))
    memory_engine.maintenance.clean_up(store, "run-1", *versions[12], 6, 0, 0)
    assert verify(memory, store).findings == ()
    del memory.items[snapshot_key(store, *versions[6])]
    assert listed(verify(memory, store)) == [("missing", snapshot_key(store, *versions[6]).sort)]


@pytest.mark.parametrize("is_carried", [False, True], ids=["own buckets", "all of its buckets are carried on"])
def test_a_snapshot_that_clean_up_deletes_is_not_lost(
    memory_engine: Engine, memory: MemoryTables, store: str, *, is_carried: bool
) -> None:
    """Wherever the clean-up is cut off, and when the request that wrote the manifest comes again then."""
    versions = write_versions(memory_engine, store, 4)
    save_snapshot(memory_engine, store, versions[4], numbers(4), lambda _: set())
    full = {bucket_of(key) for key in numbers(4)}
    added = next(key for number in count(10) if bucket_of(key := b"%d" % number) not in full)
    versions.append(write(memory_engine, store, attempt(5), {added: added}, base=versions[4]))
    for number in range(6, 28):
        versions.append(write(memory_engine, store, attempt(number), base=versions[-1]))
    memory_engine.maintenance.clean_up(store, "run-1", *versions[27], 23, 0, 0)
    state = numbers(4) | {added: added}
    save_snapshot(memory_engine, store, versions[20], state, (lambda _: {added}) if is_carried else None)
    late = {key: item for key, item in memory.items.items() if key.sort.startswith(f"snapshot_manifest/{4:020d}")}
    items, deletions = dict(memory.items), 0
    for requests, applied in product(range(1, 100), (False, True)):
        dying = Dying(memory, requests, applied=applied)
        killed_engine = make_engine(dying)
        with contextlib.suppress(UnavailableError):
            killed_engine.maintenance.clean_up(store, "run-1", *versions[27], 2, 0, 0)
        killed_engine.close()
        assert verify(memory, store).is_whole
        memory.items |= late
        report = verify(memory, store)
        if snapshot_key(store, *versions[4]) not in memory.items:
            deletions += 1
            assert report.is_whole, report.findings
        memory.items = dict(items)
        if dying.left >= 0:
            break
    assert deletions > 5


def bucket_of(key: bytes) -> int:
    """The bucket of a key, of the eight of a snapshot."""
    return key_hash(key) >> 29


@pytest.mark.parametrize("most", range(1, 20))
def test_a_bounded_clean_up_loses_no_snapshot(
    memory_engine: Engine, memory: MemoryTables, store: str, most: int
) -> None:
    """Versions that it leaves cannot be read, and snapshots of theirs were deleted, or are being written."""
    versions = write_versions(memory_engine, store, 26)
    save_snapshot(memory_engine, store, versions[4], numbers(4), lambda _: set())
    save_snapshot(memory_engine, store, versions[9], numbers(9), lambda _: set())
    memory_engine.maintenance.clean_up(store, "run-1", *versions[26], 22, 0, 0)
    save_snapshot(memory_engine, store, versions[22], numbers(22))
    memory_engine.maintenance.clean_up(store, "run-1", *versions[26], 2, 0, most)
    assert verify(memory, store).is_whole
    snapshot = take_snapshot(memory_engine, store, versions[25], numbers(25))
    assert snapshot is not None
    assert verify(memory, store).is_whole


def test_a_snapshot_of_a_run_that_is_over_is_not_lost(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Its executor was suspended while the next run deleted it, wrote all of it later, and was killed."""
    versions = write_versions(memory_engine, store, 14)
    save_snapshot(memory_engine, store, versions[4], numbers(4), lambda _: set())
    late = take_snapshot(memory_engine, store, versions[9], numbers(9))
    assert late is not None
    versions += write_versions(memory_engine, store, 10, base=versions[14], run="run-2")[1:]
    memory_engine.maintenance.clean_up(store, "run-2", *versions[24], 19, 0, 0)
    assert snapshot_key(store, *versions[9]) not in memory.items
    late.abort = lambda: None  # type: ignore[method-assign]
    assert not late.commit()
    assert any(key.sort.startswith(f"snapshot_manifest/{9:020d}") for key in memory.items)
    assert verify(memory, store).is_whole
    save_snapshot(memory_engine, store, versions[22], numbers(22), run="run-2")
    engine = make_engine(memory)
    engine.maintenance.clean_up(store, "run-2", *versions[24], 2, 0, 2)
    engine.close()
    assert verify(memory, store).is_whole


def test_the_newest_of_several_runs_version_list(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """After a restart, only a snapshot of one of its versions shows the loss; else the parts are orphaned."""
    versions = write_versions(memory_engine, store, 14)
    versions += write_versions(memory_engine, store, 10, base=versions[14], run="run-2")[1:]
    lost_list(memory.items, store, 24).apply(memory)
    report = verify(memory, store)
    assert report.is_whole
    above = "of an attempt above the next version: of a query that was taken back, or its list is lost"
    assert sorted((next(iter(each.named_by)).version, each.why) for each in report.findings) == [
        (20, "of an attempt that no version list names: under way, or failed"),
        *((version, above) for version in range(21, 25)),
    ]


def test_the_only_version_list(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Parts of a second version show the loss; attempts at the first version may fail."""
    for number in (0xA, 0xB):
        under_way = begin(memory_engine, store, attempt(number), {b"1": b"1"})
        under_way.commit = None  # type: ignore[assignment,method-assign]  # never
    versions = write_versions(memory_engine, store, 1)
    items = memory.items
    memory.items = {key: item for key, item in items.items() if not key.sort.startswith("list/")}
    assert verify(memory, store).is_whole
    memory.items = items
    write(memory_engine, store, attempt(2), {b"2": b"2"}, base=versions[1])
    lost_list(memory.items, store, 2).apply(memory)
    assert [(each.what, each.why) for each in verify(memory, store).findings if each.what == "missing"] == [
        ("missing", "the version list of 1 is lost: none of them is listed, but there are parts of what follows them")
    ]


def test_a_bounded_clean_up_of_an_adopted_store_is_no_loss(
    memory_engine: Engine, memory: MemoryTables, store: str
) -> None:
    """Of a branch that was left, versions remain above those that are deleted; the former location's are below."""

    def make(run: QueryRun, base: VersionId, versions: int) -> list[VersionId]:
        history = [base]
        for number in range(base.version + 1, base.version + versions + 1):
            under_way = memory_engine.begin(store, run, *history[-1], Attempt(uuid4().bytes))
            under_way.append(chunk({b"%d" % number: run.id.encode()}))
            under_way.commit({0: 0}, SCHEMA)
            history.append(VersionId(number, under_way.attempt))
        return history

    old = make(query_run("old"), EMPTY, 4)
    adopt_stores(memory, [store], MOVED)
    make(query_run("left", MOVED), old[4], 5)
    newest = make(query_run("new", MOVED), old[3], 3)[-1]
    assert compact_store(memory_engine, memory, store) is not None
    newest = make(query_run("new", MOVED), newest, 4)[-1]
    for more in (True, False):
        _, rest = memory_engine.maintenance.clean_up(store, "new", *newest, 2, 0, 2 if more else 0)
        assert (rest > 0) is more
        assert verify(memory, store).findings == ()


def test_versions_of_earlier_queries_and_locations_are_no_lost_lists(
    memory_engine: Engine, memory: MemoryTables, store: str
) -> None:
    """A query that starts over, fails and is cleaned up at any request leaves no defect, below nor above the others."""
    versions = write_versions(memory_engine, store, 26)
    save_snapshot(memory_engine, store, versions[22], numbers(22), lambda _: set())
    memory_engine.maintenance.clean_up(store, "run-1", *versions[26], 2, 0, 0)
    begin(memory_engine, store, attempt(0xF), *singles(26, b"f"), base=versions[26])  # a whole request
    base = EMPTY
    for number in range(1, 8):
        base = write(memory_engine, store, attempt(100 + number), {b"k": b"%d" % number}, base=base, run="run-2")
        assert verify(memory, store).is_whole
    items = dict(memory.items)
    for requests in range(1, 100):
        dying = Dying(memory, requests)
        engine = make_engine(dying)
        with contextlib.suppress(UnavailableError):
            engine.maintenance.clean_up(store, "run-2", *base, 2, 0, 0)
        engine.close()
        report = verify(memory, store)
        assert report.is_whole, report.findings
        memory.items = dict(items)
        if dying.left >= 0:
            break
    assert requests > 5


def test_without_its_meta_item_nothing_can_be_read() -> None:
    """Without the meta item the places of parts are unknown, and no item is reported as orphaned."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    delete(tables, "meta")
    report = verify(tables, STORE)
    assert listed(report) == [("missing", "meta")]
    assert readable(report) == set()
    assert (report.items, len(report.versions)) == (0, len(whole.states))


def test_orphans_are_no_failure(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Parts of an attempt under way, a snapshot that is being written and foreign items are orphaned, by maker."""
    versions = write_versions(memory_engine, store, 3)
    under_way = begin(memory_engine, store, attempt(0xA), *singles(26), base=versions[3])
    under_way._pending.wait(5)
    snapshot = take_snapshot(
        memory_engine, store, versions[3], {b"1": b"1", b"2": b"2", b"3": b"3"}, lambda _: set(), bits=1
    )
    assert snapshot is not None
    snapshot._end_bucket()
    snapshot._write()
    shard = store_shard(store, 2)
    foreign: list[tuple[Role, Item]] = [
        ("delta", {"store_shard": shard, "part": "someone else's"}),
        ("snapshot", {"store_shard": shard, "entry": "someone else's"}),
    ]
    memory.write([(Key(role, shard, "someone else's"), item) for role, item in foreign])
    report = verify(memory, store)
    counts = {(finding.key.role, finding.why): finding.items for finding in report.findings}
    assert counts == {
        ("delta", "of an attempt that no version list names: under way, or failed"): 25,
        ("delta", "none of dynastate's own"): 1,
        ("snapshot", "of a snapshot that is being written, or was abandoned"): 2,
        ("snapshot", "none of dynastate's own"): 1,
    }
    assert report.is_whole
    assert readable(report) == set(versions[1:])


def test_an_item_in_the_wrong_place_is_missing_and_orphaned() -> None:
    """A part in the wrong shard is missing in the one, and orphaned in the other."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    key = delete(tables, f"{1:020d}/")
    other = key._replace(store_shard=store_shard(STORE, (int(key.store_shard[-1]) + 1) % 4))
    tables.items[other] = whole.items[key] | item_key(other)
    report = verify(tables, STORE)
    assert [(finding.what, finding.key) for finding in report.findings] == [("missing", key), ("orphaned", other)]
    assert report.findings[1].why == "of a listed attempt, where that has no part"


def test_abandoned_attempts_are_no_failure(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The versions of a deleted checkpoint are abandoned once clean-up deletes their base, and go with the next."""
    old = write_versions(memory_engine, store, 12)
    versions = [EMPTY]
    for number in range(1, 7):
        key = b"%d" % number
        versions.append(write(memory_engine, store, attempt(100 + number), {key: key}, base=versions[-1], run="run-2"))
    state = numbers(4)
    save_snapshot(memory_engine, store, versions[4], state, lambda _: set(), "run-2")
    memory_engine.maintenance.clean_up(store, "run-2", *versions[6], 2, 0, 4)
    report = verify(memory, store)
    assert report.findings == ()
    assert readable(report) == {versions[5], versions[6]}
    assert {VersionId(each.version, each.attempt) for each in report.versions if each.is_dead} == set(old[5:9])
    # An unreadable version of the newest run is never reported as abandoned.
    memory.items = {key: item for key, item in memory.items.items() if not key.sort.startswith("snapshot/")}
    report = verify(memory, store)
    assert ("missing", snapshot_key(store, *versions[4]).sort) in listed(report)
    assert {each.version for each in report.versions if not each.is_readable and not each.is_dead} == {5, 6}


def test_an_unfinished_clean_up_is_no_failure(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Versions whose base it has deleted are abandoned, as long as newer ones have a snapshot."""
    versions = write_versions(memory_engine, store, 12)
    state = numbers(8)
    save_snapshot(memory_engine, store, versions[8], state, lambda _: set())
    memory_engine.maintenance.clean_up(store, "run-1", *versions[12], 2, 0, 3)
    report = verify(memory, store)
    assert report.findings == ()
    assert readable(report) == set(versions[8:])
    assert {VersionId(each.version, each.attempt) for each in report.versions if each.is_dead} == set(versions[4:8])


def test_concurrent_writes_are_not_findings(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Commits, snapshots and clean-ups between any two requests of verify are not findings."""
    versions = write_versions(memory_engine, store, 8)
    states = {number: numbers(number) for number in range(1, 200)}
    first_report = verify(memory, store)
    assert first_report.is_whole
    requests = 0

    def act(_: str) -> None:
        nonlocal requests
        requests += 1
        number = versions[-1][0] + 1
        versions.append(
            write(memory_engine, store, attempt(number), {b"%d" % number: b"%d" % number}, base=versions[-1])
        )
        if requests % 3 == 0:
            save_snapshot(memory_engine, store, versions[-1], states[number], lambda _: set())
            memory_engine.maintenance.clean_up(store, "run-1", *versions[-1], 2, 0, 0)

    for start in range(3):  # which of the requests clean-up comes at
        requests = start
        report = verify(FailingTables(memory, act), store)
        assert [finding for finding in report.findings if finding.what != "orphaned"] == []
        assert report.is_whole
        assert requests > 8
        lost = [each for each in report.versions if not each.is_readable and not each.is_dead]
        assert lost == []


def test_verify_only_reads_and_consistently(moto: BotoTables, failing_client: FailingClient, store: str) -> None:
    """Every request is Query, GetItem or BatchGetItem with ConsistentRead, also with findings."""
    at = make_engine(moto)
    versions = write_versions(at, store, 3)
    corrupt = write(at, store, attempt(9), {b"9": b"9"}, base=versions[3])
    (key, item), *_ = parts_of(moto, store)
    failing_client.put_item(TableName=moto.names["delta"], Item=to_wire(item) | {"strange": {"BOOL": True}})
    moto.delete([parts_of_version[0] for parts_of_version in parts_of_all(moto, store, corrupt[0])])
    start = len(failing_client.requests)
    report = verify(moto, store)
    assert listed(report) == [("corrupt", key.sort), ("missing", f"{4:020d}/{attempt(9).hex()}/000000")]
    requests = failing_client.requests[start:]
    assert {operation for operation, _ in requests} == {"query", "batch_get_item"}
    for operation, arguments in requests:
        reads = arguments["RequestItems"].values() if operation == "batch_get_item" else [arguments]
        assert all(each["ConsistentRead"] is True for each in reads)
    at.close()


def parts_of_all(tables: BotoTables, store: str, version: int) -> Iterator[tuple[Key]]:
    """Keys of the parts of a version."""
    for shard in range(4):
        low, high = f"{version:020d}", f"{version + 1:020d}"
        for key in tables.list_keys("delta", store_shard(store, shard), low, high):
            yield (key,)


def test_keys_are_compared_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever windows end, no named item is reported as an orphan, and every orphan is found once."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    orphans = 0
    for key, item in whole.items.items():
        if key.role == "delta" and key.store_shard.startswith(STORE):
            other = key._replace(sort=key.sort.replace("/0000", "/f000", 1))
            tables.items[other] = item | item_key(other)
            orphans += 1
    for size in (1, 2, 7, 10_000):
        monkeypatch.setattr(verify_module, "KEYS_LISTED", size)
        report = verify(tables, STORE)
        assert {finding.what for finding in report.findings} == {"orphaned"}
        assert sum(finding.items for finding in report.findings) == orphans


def test_memory_is_bounded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A store of 60 MB is read a window at a time, in less than 15 MB of memory."""
    chance = random.Random(1)  # noqa: S311  # bytes that do not compress
    base = EMPTY
    for number in range(1, 7):
        rows = [{b"%d" % row: chance.randbytes(100_000)} for row in range(100)]
        base = write(memory_engine, store, attempt(number), *rows, base=base)
    progress: list[tuple[int, int]] = []
    tracemalloc.start()
    report = verify(memory, store, lambda stores, total: progress.append((stores, total)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.is_whole
    assert report.stored_bytes > 60_000_000
    assert peak < 15_000_000
    assert progress[0] == (0, 600)
    assert progress[-1] == (600, 600)
    assert [stores for stores, _ in progress] == sorted(stores for stores, _ in progress)


def test_findings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings beyond the limit are counted only, and the store is not whole."""
    monkeypatch.setattr(verify_module, "FINDINGS_MAX", 2)
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    tables.items = {key: item for key, item in tables.items.items() if key.role == "snapshot"}
    report = verify(tables, STORE)
    assert len(report.findings) == 2
    assert report.more > 10
    assert not report.is_whole
    assert f"and {report.more} more findings" in report.lines(tables.names)


def test_a_store_that_is_not_there_is_an_error(memory: MemoryTables) -> None:
    """A misspelt name is an error, not a whole store."""
    with pytest.raises(VersionMissingError, match="the tables hold nothing of this store"):
        verify(memory, "ns/0/0/default")
    with pytest.raises(ConfigurationError, match="a store name must have"):
        verify(memory, "ns#0")


def test_only_missing_and_corrupt_items_fail(memory: MemoryTables, store: str) -> None:
    """A report with missing or corrupt items is not whole; orphans and abandoned attempts are allowed."""
    key = Key("delta", store, "part")
    checked = (Checked(1, attempt(1), 1, is_readable=False, is_dead=True),)
    for what, is_whole in (("missing", False), ("corrupt", False), ("orphaned", True)):
        finding = Finding(what, key, "why")  # type: ignore[arg-type]  # one of the three
        assert Report(store, checked, 0, 0, 0, (finding,), 0, Meter()).is_whole is is_whole
