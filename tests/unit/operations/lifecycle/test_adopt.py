"""Adoption of a namespace for another checkpoint location."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.keys import EMPTY, VersionId, meta_key
from dynastate.format.meta import parse_meta
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores, locations_of
from dynastate.storage.tables import Tables
from tests.support.contents import graph, items_of
from tests.support.engine_driver import Engines, begin, closing, read, write, write_versions
from tests.support.faults import FailingTables, Fault
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, SCHEMA, attempt, chunk, query_run

MOVED = "file:/moved/state"


def commit_from(engine: Engine, store: str, run: str, location: str, base: VersionId, number: int) -> VersionId:
    under_way = engine.begin(store, query_run(run, location), *base, attempt(number))
    under_way.append(chunk({b"k": b"%d" % number}))
    under_way.commit({0: 1}, SCHEMA)
    return VersionId(base.version + 1, attempt(number))


def test_a_checkpoint_that_was_moved(engines: Engines, tables: Tables, store: str) -> None:
    """Runs from the new location write from then on; the old location, and the run that is under way, may not."""
    old = engines()
    base = write(old, store, attempt(1), {b"k": b"1"})
    with pytest.raises(ConfigurationError, match=f"{CHECKPOINT}.*{MOVED}.*dynastate adopt"):
        commit_from(engines(), store, "run-2", MOVED, base, 2)
    adopted = adopt_stores(tables, [store], MOVED)
    assert (adopted.before, adopted.location, adopted.refused) == ((CHECKPOINT,), MOVED, 1)
    assert locations_of(tables, [store]) == (MOVED,)
    items_before = items_of(tables, store)
    with pytest.raises(ConfigurationError, match=r"may not commit any more.*adopted.*run=run-1"):
        write(old, store, attempt(3), {b"k": b"3"}, base=base)
    with pytest.raises(ConfigurationError, match=f"{MOVED}.*{CHECKPOINT}"):
        commit_from(engines(), store, "run-3", CHECKPOINT, base, 4)
    assert {sort: item for sort, item in items_of(tables, store).items() if not sort.startswith("0")} == items_before
    version = commit_from(engines(), store, "run-2", MOVED, base, 5)
    assert read(engines(), store, *version) == {b"k": b"5"}
    meta = parse_meta(store, items_of(tables, store)["meta"])
    assert [meta.location_at(epoch) for epoch in (1, 2, 3)] == [CHECKPOINT, MOVED, MOVED]


def test_every_old_run_is_refused(engines: Engines, tables: Tables, store: str) -> None:
    """Not only the newest one: an executor of any run may have been suspended before its commit."""
    base = write(engines(), store, attempt(1), {b"k": b"1"})
    suspended = [
        begin(engines(), store, attempt(10 + number), {b"k": b"old"}, base=base, run=f"run-{number}")
        for number in range(1, 4)
    ]
    assert adopt_stores(tables, [store], MOVED).refused == 3
    for each in suspended:
        with pytest.raises(ConfigurationError, match="may not commit any more"):
            each.commit({0: 1}, SCHEMA)
    assert graph(tables, store).versions() == [1]


def test_clean_up_with_a_limit_passes_what_another_location_made(engines: Engines, tables: Tables, store: str) -> None:
    """What it retains of the old location counts as nothing to delete, so that a limit does not stop at it."""
    engine = engines()
    versions = write_versions(engine, store, 4)
    adopt_stores(tables, [store], MOVED)
    fresh, base, rest = engines(), versions[2], 0
    for number in range(100, 120):
        base = commit_from(fresh, store, "run-2", MOVED, base, number)
    fresh.maintenance.snapshot(store, "run-2", *base, 100, 1, is_asked_for=True)[0].commit()  # type: ignore[union-attr]
    base = commit_from(fresh, store, "run-2", MOVED, base, 120)
    base = commit_from(fresh, store, "run-2", MOVED, base, 121)
    for _ in range(12):
        _, rest = fresh.maintenance.clean_up(store, "run-2", *base, 2, 1, 3)
    assert rest == 0
    assert graph(tables, store).versions() == [1, 2, 3, 4, 23, 24]
    assert verify(tables, store).is_whole
    assert read(engines(), store, *versions[4]) == {b"1": b"1", b"2": b"2", b"3": b"3", b"4": b"4"}


@pytest.mark.parametrize("versions", [8, 9, 10, 19])
def test_no_version_list_lets_the_old_run_pass(engines: Engines, tables: Tables, store: str, versions: int) -> None:
    """The next version of a run lies in the newest version list, or begins the next one: both refuse it."""
    engine = engines()
    history = write_versions(engine, store, versions)
    adopt_stores(tables, [store], MOVED)
    with pytest.raises(ConfigurationError, match="may not commit any more"):
        write(engine, store, attempt(99), {b"k": b"v"}, base=history[versions])
    assert graph(tables, store).versions() == list(range(1, versions + 1))
    base = history[versions]
    for number in range(100, 112):
        base = commit_from(engines(), store, "run-2", MOVED, base, number)
    assert read(engines(), store, *base)[b"k"] == b"111"


@pytest.mark.parametrize("versions", [0, 25])
def test_an_old_run_that_starts_over_does_not_pass(engines: Engines, tables: Tables, store: str, versions: int) -> None:
    """A run that begins at version 0, in a new store or below all lists that there are, is refused its first commit."""
    engine = engines()
    history = write_versions(engine, store, versions)
    if versions:
        engine.maintenance.snapshot(store, "run-1", *history[-2], 100, 1, is_asked_for=True)[0].commit()  # type: ignore[union-attr]
        engine.maintenance.clean_up(store, "run-1", *history[-1], 2, 1, 0)
        assert graph(tables, store).versions()[0] > 10
    over = begin(engines(), store, attempt(99), {b"k": b"v"}, run="run-2")
    adopt_stores(tables, [store], MOVED)
    with pytest.raises(ConfigurationError, match="may not commit any more"):
        over.commit({0: 1}, SCHEMA)


def test_an_adoption_that_was_cut_off_is_completed(memory: MemoryTables, store: str) -> None:
    """After a crash at any request the same call gives every store the new location, and refuses the old run."""
    failing, fresh_engines = FailingTables(memory), closing(memory)
    engines = next(fresh_engines)
    for verb in ("get", "update", "query", "put_new"):
        for applied in (False, True):
            each = f"{store}-{verb}-{applied}"
            stores = [f"{each}/0/0/default", f"{each}/0/1/default"]
            engine = engines()
            bases = {name: write(engine, name, attempt(1), {b"k": b"1"}) for name in stores}
            failing.fail(verb, None, Fault(UnavailableError("killed"), applied=applied))
            with pytest.raises(UnavailableError):
                adopt_stores(failing, stores, MOVED)
            failing.faults.clear()
            adopt_stores(failing, stores, MOVED)
            for name in stores:
                with pytest.raises(ConfigurationError, match="may not commit any more"):
                    write(engine, name, attempt(2), {b"k": b"2"}, base=bases[name])
                assert commit_from(engines(), name, "run-2", MOVED, bases[name], 3).version == 2


def test_what_the_old_location_made_can_be_adopted_again(engines: Engines, tables: Tables, store: str) -> None:
    """Clean-up for the new location leaves the versions of the old one readable, and their run continues from them."""
    engine = engines()
    versions = write_versions(engine, store, 4)
    engine.maintenance.snapshot(store, "run-1", *versions[4], 100, 1, is_asked_for=True)
    newest = write(engine, store, attempt(50), {b"kept": b"50"}, base=versions[4])
    adopt_stores(tables, [store], MOVED)
    fresh = engines()
    base = versions[3]
    for number in range(100, 130):
        base = commit_from(fresh, store, "run-2", MOVED, base, number)
        fresh.maintenance.clean_up(store, "run-2", *base, 2, 1, 0)
    assert read(engines(), store, *newest)[b"kept"] == b"50"
    assert set(graph(tables, store).versions()) >= {4, 5, 33}
    adopt_stores(tables, [store], CHECKPOINT)
    last = commit_from(engines(), store, "run-3", CHECKPOINT, newest, 200)
    assert read(engines(), store, *last)[b"kept"] == b"50"


def test_versions_of_an_earlier_query_are_deleted(engines: Engines, tables: Tables, store: str) -> None:
    """Versions of a checkpoint that was deleted go, also where their numbers are above those of the new one."""
    engine = engines()
    versions = write_versions(engine, store, 25)
    engine.maintenance.snapshot(store, "run-1", *versions[25], 100, 1, is_asked_for=True)
    base = EMPTY
    fresh = engines()
    for number in range(100, 106):
        base = commit_from(fresh, store, "run-2", CHECKPOINT, base, number)
        fresh.maintenance.clean_up(store, "run-2", *base, 2, 1, 0)
    assert graph(tables, store).versions() == [1, 2, 3, 4, 5, 6]
    sorts = {sort for sort in items_of(tables, store) if sort.startswith(("0", "snapshot", "bucket/"))}
    assert {int(sort.split("/")[0 if sort[0] == "0" else 1]) for sort in sorts} <= {1, 2, 3, 4, 5, 6}
    assert read(engines(), store, *base) == {b"k": b"105"}


def test_a_store_that_is_being_dropped_is_not_adopted(engines: Engines, tables: Tables, store: str) -> None:
    """It would be taken back from the drop."""
    write(engines(), store, attempt(1), {b"k": b"1"})
    key = meta_key(store)
    tables.write([(key, items_of(tables, store)["meta"] | {"dropped": 1})])
    with pytest.raises(ConfigurationError, match="being dropped, so it cannot be adopted"):
        adopt_stores(tables, [store], MOVED)
