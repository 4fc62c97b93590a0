"""Copies of a namespace in other tables: every item, nothing before it is whole, and refusals."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal

import pytest

from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine.catalog import find_stores, of_namespace
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, Key, meta_key
from dynastate.format.meta import DROPPED, FORKS, MARKED, OBJECTS
from dynastate.operations import copy as copying
from dynastate.operations.copy import Copied, PagedTables, copy_stores, plan_copy
from dynastate.operations.drop import drop_stores
from dynastate.operations.fork import fork_namespace
from dynastate.operations.verify import verify
from dynastate.settings import Settings
from tests.support.engine_driver import (
    Engines,
    State,
    attempt,
    closing,
    named_objects,
    namespace_of,
    numbers,
    read,
    save_snapshot,
    write,
    write_versions,
)
from tests.support.fakes import Dying, MemoryTables, without_list

SETTINGS = Settings()
BLOCKS = "s3://blocks/here"
ELSEWHERE = "s3://others/there"


@pytest.fixture
def source() -> MemoryTables:
    """The tables to copy from."""
    return MemoryTables()


@pytest.fixture
def target() -> MemoryTables:
    """The tables to copy to."""
    return MemoryTables()


@pytest.fixture
def make(source: MemoryTables) -> Iterator[Engines]:
    """Make engines on the source."""
    yield from closing(source)


@pytest.fixture
def stores(make: Engines, store: str) -> list[str]:
    """Two stores with versions in two groups and a snapshot."""
    engine = make()
    both = [store, store.replace("/0/0/", "/0/1/")]
    assert both[0] != both[1]
    for each in both:
        made = write_versions(engine, each, 12)
        save_snapshot(engine, each, made[7], numbers(7))
    return both


def copy(source: PagedTables, target: PagedTables, store: str, blocks: str = "") -> Copied:
    """Plan a copy of a store's namespace, and carry it out."""
    plan = plan_copy(source, target, namespace_of(store), SETTINGS, blocks=blocks)
    return copy_stores(source, target, plan, SETTINGS)


def without_pins(items: dict[Key, Item]) -> dict[Key, Item]:
    return {key: {name: value for name, value in item.items() if name != FORKS} for key, item in items.items()}


def test_copy_has_every_item(source: MemoryTables, target: MemoryTables, stores: list[str]) -> None:
    """Both ends are equal, every version can be read, and verify finds no error."""
    plan = plan_copy(source, target, namespace_of(stores[0]), SETTINGS)
    assert not target.items
    done = copy_stores(source, target, plan, SETTINGS)
    assert target.items == source.items
    items = len(without_list(source.items))
    assert (done.stores, done.items, done.written) == (2, items, items)
    assert plan.items <= done.items
    assert 0.5 * done.write_units < plan.write_units < 2 * done.write_units
    for store in stores:
        assert verify(target, store).findings == ()
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert read(engine, stores[1], 12) == numbers(12)


def test_copy_again_writes_nothing(source: MemoryTables, target: MemoryTables, stores: list[str]) -> None:
    """Equal items are not written; a lost, a changed and a strange one are as at the source afterwards."""
    copy(source, target, stores[0])
    assert copy(source, target, stores[0]).written == 0
    parts = [key for key in target.items if key.role == "delta"]
    del target.items[parts[0]]
    target.items[parts[1]] = target.items[parts[1]] | {"data": b"changed"}
    strange = Key("delta", parts[2].store_shard, "strange")
    target.items[strange] = dict(target.items[parts[2]])
    assert copy(source, target, stores[0]).written == 2
    assert target.items == source.items


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_copy_that_dies_at_any_request_is_completed(
    source: MemoryTables, target: MemoryTables, stores: list[str], *, applied: bool
) -> None:
    """Until it is whole the target has no store that is found; the same call completes it."""
    for last in range(1_000):
        dying = Dying(target, last, applied=applied)
        with suppress(UnavailableError):
            copy(source, dying, stores[0])
        if dying.left >= 0:
            break
        if target.items != source.items:
            with pytest.raises(ConfigurationError, match="no store of this namespace"):
                of_namespace(target, namespace_of(stores[0]), Meter())
    else:
        raise AssertionError("it does not end")
    assert last > 10
    assert target.items == source.items


def test_pins_of_forks_stay(source: MemoryTables, target: MemoryTables, stores: list[str]) -> None:
    """Forks are of the source; a fork itself is refused, as its rows are those of its origin."""
    fork_namespace(source, namespace_of(stores[0]), "fork", None, Meter())
    assert any(FORKS in item for item in source.items.values())
    copy(source, target, stores[0])
    own = {key: item for key, item in source.items.items() if not key.store_shard.startswith("fork/")}
    assert target.items == without_pins(own)
    with pytest.raises(ConfigurationError, match="this store is a fork"):
        plan_copy(source, target, "fork", SETTINGS)


def change(source: MemoryTables, store: str, also: Item) -> None:
    source.items[meta_key(store)] = source.items[meta_key(store)] | also


REFUSED: dict[str, tuple[Callable[[MemoryTables, MemoryTables, str], object], str]] = {
    "dropped": (lambda source, _, store: change(source, store, {DROPPED: MARKED}), "is being dropped"),
    "in S3": (
        lambda source, _, store: change(source, store, {OBJECTS: frozenset(["s3://b/p"])}),
        "give the copy another location there: --to-blocks s3://bucket/prefix",
    ),
    "gone": (lambda source, _, store: drop_both(source, store), "no store of this namespace"),
    "other state": (
        lambda source, target, store: target.items.update(
            {meta_key(store): source.items[meta_key(store)] | {"epoch": 9}}
        ),
        "the target has other state of this namespace",
    ),
}


def drop_both(source: Tables, store: str) -> None:
    drop_stores(source, list(find_stores(source, namespace_of(store), Meter())), Meter())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_copied_is_refused(
    name: str, source: MemoryTables, target: MemoryTables, stores: list[str]
) -> None:
    """The error comes before anything is written."""
    spoil, says = REFUSED[name]
    spoil(source, target, stores[0])
    before = dict(target.items)
    with pytest.raises(ConfigurationError, match=says):
        copy(source, target, stores[0])
    assert target.items == before


def test_query_that_writes_meanwhile_is_noticed(
    source: MemoryTables, target: MemoryTables, stores: list[str], make: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the copy is found, and the next one, after the query has stopped, is whole."""
    engine, once = make(), [True]
    original = copying._Store.copy

    def copy_and_go_on(self: copying._Store) -> int:
        done = original(self)
        if once:
            once.clear()
            write_versions(engine, stores[0], 1)
        return done

    monkeypatch.setattr(copying._Store, "copy", copy_and_go_on)
    with pytest.raises(ConfigurationError, match="a query or clean-up wrote to this namespace"):
        copy(source, target, stores[0])
    assert not find_stores(target, namespace_of(stores[0]), Meter())
    copy(source, target, stores[0])
    assert target.items == source.items


def test_target_that_changes_is_noticed(
    source: MemoryTables, target: MemoryTables, stores: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that is not as it was written fails the comparison, and no meta item is written."""
    original = copying._Store.compare

    def spoiled(self: copying._Store) -> copying.Content:
        part = next(key for key in target.items if key.role == "delta")
        target.items[part] = target.items[part] | {"data": b"changed"}
        return original(self)

    monkeypatch.setattr(copying._Store, "compare", spoiled)
    with pytest.raises(CorruptStateError, match="an item of the copy is not that of the source"):
        copy(source, target, stores[0])
    assert not find_stores(target, namespace_of(stores[0]), Meter())


# ---------------------------------------------------------------------------------------------------- blocks in S3


def noise(last: int) -> State:
    """Make rows that do not compress, and are too long for a version entry."""
    return {b"%d" % number: random.Random(number).randbytes(3_000) for number in range(1, last + 1)}  # noqa: S311


@pytest.fixture
def with_objects(make: Engines, store: str) -> str:
    """A store of 12 versions whose parts and buckets are in objects of two locations, and in items."""
    base = EMPTY
    for last, blocks in ((4, BLOCKS), (8, ""), (12, f"{BLOCKS}/later")):
        engine = make(blocks=blocks, put_price=Decimal(0))
        for number in range(last - 3, last + 1):
            row = {b"%d" % number: noise(number)[b"%d" % number]}
            base = write(engine, store, attempt(number), row, base=base, run=f"run-{last}")
        if blocks:
            save_snapshot(engine, store, base, noise(last), run=f"run-{last}")
    return store


def test_objects_are_in_the_other_location(source: MemoryTables, target: MemoryTables, with_objects: str) -> None:
    """All of both locations are there, under what names them, and every version is that of the source."""
    done = copy(source, target, with_objects, ELSEWHERE)
    there = {place.name: data for place, data in target.objects.objects.items() if place.location == ELSEWHERE}
    assert there == {place.name: data for place, data in source.objects.objects.items()}
    assert len(target.objects.objects) == done.objects == len(there) > 4
    assert done.object_bytes == sum(map(len, there.values()))
    assert {place.location for place in source.objects.objects} == {BLOCKS, f"{BLOCKS}/later"}
    assert named_objects(target, with_objects) == set(target.objects.objects)
    assert verify(target, with_objects).findings == ()
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert all(read(engine, with_objects, version) == noise(version) for version in (1, 5, 12))


def test_copy_with_objects_that_dies_is_completed(
    source: MemoryTables, target: MemoryTables, with_objects: str
) -> None:
    """The same call completes it; then lost, changed and strange objects are as they should be."""
    for last in range(1_000):
        dying = Dying(target, last, applied=True)
        with suppress(UnavailableError):
            copy(source, dying, with_objects, ELSEWHERE)
        if dying.left >= 0:
            break
    else:
        raise AssertionError("it does not end")
    whole = dict(target.objects.objects)
    assert copy(source, target, with_objects, ELSEWHERE).written == 0
    first, second, *_ = sorted(whole)
    del target.objects.objects[first]
    target.objects.objects[second] = b"changed"
    target.objects.objects[first._replace(name=f"{first.name}-strange")] = b"strange"
    with pytest.raises(AssertionError, match="an object that changes"):  # the double refuses it; S3 replaces it
        copy(source, target, with_objects, ELSEWHERE)
    del target.objects.objects[second]
    assert copy(source, target, with_objects, ELSEWHERE).written > 0
    assert target.objects.objects == whole


def test_objects_need_another_location(source: MemoryTables, target: MemoryTables, with_objects: str) -> None:
    """Without one, or with that of the source, nothing is written."""
    for blocks in ("", BLOCKS):
        with pytest.raises(ConfigurationError, match="give the copy another location there"):
            copy(source, target, with_objects, blocks)
    assert not target.items


def test_object_that_changes_is_noticed(
    source: MemoryTables, target: MemoryTables, with_objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison fails, and no meta item is written."""
    original = copying._Store.compare

    def spoiled(self: copying._Store) -> copying.Content:
        target.objects.objects[next(iter(target.objects.objects))] = b"changed"
        return original(self)

    monkeypatch.setattr(copying._Store, "compare", spoiled)
    with pytest.raises(CorruptStateError, match="an object of the copy is not that of the source"):
        copy(source, target, with_objects, ELSEWHERE)
    assert not find_stores(target, namespace_of(with_objects), Meter())
