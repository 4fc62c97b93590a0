"""Erasing where parts and buckets are in objects of S3, of which one has the rows of many keys."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.format.keys import meta_key
from dynastate.format.meta import ERASING
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import ErasedStore, ErasePlan, erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.storage.tables import Tables
from tests.support.contents import named_objects
from tests.support.crashes import each_request
from tests.support.engine_driver import Engines, clean_up, save_snapshot
from tests.support.forks import fork, new_of
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryObjects, MemoryTables
from tests.support.search import objects_of, objects_with, places_with
from tests.support.store_builder import StoreBuilder, counted, user
from tests.unit.operations.erase.test_erase import others, rows_at_each

pytestmark = pytest.mark.usefixtures("always_worth_it", "small_objects")

PERSON, SECRET = "marked-person", "marked-value"
MARKS = PERSON.encode(), SECRET.encode()
GIVEN = GivenKeys([user(PERSON)])
#: All parts and buckets are in objects.
ALL = {"objects": "s3://bucket/state", "objects_threshold_kb": 0}


@pytest.fixture(name="small_objects")
def shrink_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stream have several objects, and parts and buckets lie across their ends."""
    set_limits(monkeypatch, object_bytes=1_000)


@pytest.fixture
def versioned(snapshot_table: str = "dynastate-snapshot-group") -> MemoryTables:
    """Tables whose bucket keeps versions."""
    return MemoryTables(snapshot_table, MemoryObjects(has_versions=True))


class Built(StoreBuilder):
    """A store of some users, with snapshots in several buckets."""

    def __init__(self, engine: Engine, store: str, users: int = 40) -> None:
        super().__init__(engine, store)
        self.counts_values = True
        self.engine = engine
        self._since: dict[bytes, int] = {}
        notes = random.Random(1)  # noqa: S311  # values that do not compress
        self.commit(*((user(f"user-{number}"), counted(number, notes.randbytes(40).hex())) for number in range(users)))

    def snapshot(self) -> None:
        """Make a snapshot of the newest version, in eight buckets, which carries on what did not change."""
        rows = {key: values[0] for (_, key), values in self.state.items()}
        changed = self._changed()
        save_snapshot(self.engine, self.store, self.version, rows, lambda base: changed if base else set(rows))

    def _changed(self) -> set[bytes]:
        rows = {key: hash(values[0]) for (_, key), values in self.state.items()}
        changed = {key for key in {*rows, *self._since} if rows.get(key) != self._since.get(key)}
        self._since = rows
        return changed


def build(engine: Engine, store: str, *, with_person: bool = True) -> Built:
    """Make versions and snapshots with rows of a person, who comes, changes, goes, and comes again."""
    built = Built(engine, store)
    for number in range(2, 12):
        person = {3: counted(1, SECRET), 5: counted(2, SECRET), 7: None, 9: counted(3, SECRET)}
        changes = [(user(PERSON), person[number])] if with_person and number in person else []
        built.commit((user("user-1"), counted(100 + number)), *changes)
        if number in {4, 6, 8, 10}:
            built.snapshot()
    return built


def erase(tables: Tables, *stores: str) -> tuple[ErasePlan, Sequence[ErasedStore]]:
    plan = plan_erase(tables, stores, GIVEN)
    return plan, erase_stores(tables, plan, GIVEN).stores


def test_no_object_has_a_row_of_the_key(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Neither of attempts nor of snapshots; all other rows are what they were, and in objects as before."""
    build(engines(memory, **ALL), store)
    build(engines(memory, **ALL), new_of(store, "twin"), with_person=False)
    before = rows_at_each(memory, store)
    with_person = places_with(memory, [store], *MARKS)
    assert {name.split("#")[1].split("/")[0] for name in with_person} == {"delta", "bucket"}
    (absence,) = find_absence(memory, [store], GIVEN)
    assert (absence.rows, absence.versions, absence.is_absent) == (1, 4, False)

    plan, (erased,) = erase(memory, store)
    assert (plan.rows, plan.versions, len(erased.versions)) == (1, 4, 4)
    assert plan.snapshots == len(erased.snapshots) == 4
    assert plan.puts > 0
    assert {each.object_id.name for each in erased.objects_deleted} >= with_person
    assert not places_with(memory, [store], *MARKS)
    assert rows_at_each(memory, store) == others(before) == rows_at_each(memory, new_of(store, "twin"))
    assert not verify(memory, store, with_record=False).findings
    assert not [key for key in memory.keys("delta") if key.store_shard.startswith(f"{store}#")]
    (absence,) = find_absence(memory, [store], GIVEN)
    assert absence.is_absent
    assert plan_erase(memory, [store], GIVEN).is_empty
    drop_stores(memory, [store])
    assert not [name for name in objects_of(memory) if name.startswith(f"{store}#")]


def test_rows_in_parts_that_nothing_names(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The person is in no version any more, but in an object that another bucket needs."""
    engine = engines(memory, **ALL)
    built = Built(engine, store)
    built.commit((user(PERSON), counted(1, SECRET)))
    built.snapshot()
    built.commit((user(PERSON), None))
    built.snapshot()
    for number in range(25):
        built.commit((user("user-1"), counted(number)))
    clean_up(engine, store, built.version, 2)
    with_person = objects_with(objects_of(memory), *MARKS)
    assert with_person
    assert all("#bucket/" in each for each in with_person)
    (absence,) = find_absence(memory, [store], GIVEN)
    assert (absence.rows, absence.unsearched > 0, absence.is_absent) == (0, True, False)
    before = rows_at_each(memory, store)
    plan, _ = erase(memory, store)
    assert (plan.rows, plan.is_empty) == (0, False)
    assert not objects_with(objects_of(memory), *MARKS)
    assert rows_at_each(memory, store) == before
    assert find_absence(memory, [store], GIVEN)[0].is_absent


def test_forks_of_a_store_with_objects(engines: Engines, memory: MemoryTables, store: str) -> None:
    """What only the fork names is in objects of the origin, and is written as objects of the fork."""
    built, new = build(engines(memory, **ALL), store), new_of(store)
    fork(memory, store, 8)
    built.commit((user(PERSON), counted(9, SECRET)))
    before = {each: rows_at_each(memory, each) for each in (store, new)}
    plan, _ = erase(memory, new)
    assert {*plan.stores} == {store, new}
    assert not places_with(memory, [store, new], *MARKS)
    for each in (store, new):
        assert rows_at_each(memory, each) == others(before[each])
        assert not verify(memory, each, with_record=False).findings
    drop_stores(memory, [new])
    assert not [name for name in objects_of(memory) if name.startswith(f"{new}#")]
    assert rows_at_each(memory, store) == others(before[store])


def test_earlier_versions_of_objects(engines: Engines, versioned: MemoryTables, store: str) -> None:
    """A bucket that keeps versions has objects that clean-up has deleted: these are deleted for good, too."""
    engine = engines(versioned, **ALL)
    built = build(engine, store)
    for number in range(25):
        built.commit((user("user-1"), counted(number)))
    clean_up(engine, store, built.version, 2)
    assert any("?" in name for name in objects_with(objects_of(versioned), *MARKS))
    assert find_absence(versioned, [store], GIVEN)[0].unsearched
    before = rows_at_each(versioned, store)
    _, (erased,) = erase(versioned, store)
    assert not places_with(versioned, [store], *MARKS)
    assert not versioned.objects.earlier
    assert all(each.version_id for each in erased.objects_deleted)
    assert rows_at_each(versioned, store) == others(before)
    assert {*versioned.objects.objects} == named_objects(versioned, store)
    assert find_absence(versioned, [store], GIVEN)[0].is_absent


def test_versions_that_may_not_be_deleted(
    engines: Engines, versioned: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS denies it: that is an error before anything is marked."""
    build(engines(versioned, **ALL), store)
    plan = plan_erase(versioned, [store], GIVEN)

    def deny(*_: object) -> None:
        raise ConfigurationError("S3 refuses to delete a version of an object")

    monkeypatch.setattr(MemoryObjects, "delete_versions", deny)
    with pytest.raises(ConfigurationError, match="S3 refuses to delete a version of an object"):
        erase_stores(versioned, plan, GIVEN)
    assert ERASING not in versioned.items[meta_key(store)]


def test_objects_of_other_tables(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Tables that were restored need them, and may not delete them."""
    build(engines(memory, **ALL), store)
    restored = MemoryTables("restored-group", memory.objects)
    restored.items = dict(memory.items)
    with pytest.raises(ConfigurationError, match="need objects of other tables, from which these were restored"):
        plan_erase(restored, [store], GIVEN)
    assert restored.items == memory.items


@pytest.mark.slow
def test_killed_at_each_request_and_repeated(engines: Engines, versioned: MemoryTables, store: str) -> None:
    """Requests to S3 among them. Between the two, all other rows can be read at every version."""
    memory = versioned
    built = Built(engines(memory, **ALL), store, users=16)
    built.commit((user(PERSON), counted(1, SECRET)), (user("user-3"), counted(3)))
    built.snapshot()
    built.commit((user("user-3"), counted(4)))
    built.snapshot()
    expected = others(rows_at_each(memory, store))
    contents = (dict(memory.items), objects_of(memory))
    for _ in each_request(lambda tables: erase(tables, store), memory):
        if contents == (memory.items, objects_of(memory)):
            continue  # a read
        contents = (dict(memory.items), objects_of(memory))
        assert others(rows_at_each(memory, store, is_counted=False)) == expected
        erase(memory, store)
        assert not places_with(memory, [store], *MARKS)
        assert rows_at_each(memory, store) == expected
        assert not verify(memory, store, with_record=False).findings
        assert {*memory.objects.objects} == named_objects(memory, store)
        assert not memory.objects.earlier
