"""Small commits, whose changes are within the version entry: no part is written, read or deleted."""

from __future__ import annotations

from contextlib import closing

import pytest

from dynastate.engine.catalog import find_stores
from dynastate.engine.commit import INLINE_BYTES_MAX
from dynastate.engine.engine import Engine
from dynastate.format.keys import EMPTY, VersionId
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.contents import entry, parts_of
from tests.support.engine_driver import (
    Engines,
    begin,
    commit,
    fold,
    make_engine,
    read,
    save_snapshot,
    write,
    write_versions,
)
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, State, attempt, chunk, namespace_of, numbers

SMALL: State = {b"a": b"1", b"b": b"2"}


def incompressible(size: int) -> State:
    """Make one row whose changes are `size` bytes, and no shorter in any codec."""
    overhead = len(chunk({b"k": b""}).changes)
    return {b"k": bytes(range(256))[: size - overhead]}


def test_few_changes_are_within_the_entry(engines: Engines, tables: Tables, store: str) -> None:
    """One request commits them, and they come with the version list."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX)
    first = write(engine, store, attempt(1), {b"c": b"3"})
    version, counted = commit(engine, store, attempt(2), SMALL, base=first)
    assert parts_of(tables, store) == []
    assert (counted["requests"], counted["writeUnits"], counted["parts"]) == (1, 1, 0)
    assert counted["rawBytes"] == len(chunk(SMALL).changes)
    listed = entry(tables, store, 2)
    assert (listed.parts, listed.records, listed.bounds) == (0, 2, b"")
    opening = engines().open(store, *version)
    assert fold(opening.chunks) == SMALL | {b"c": b"3"}
    assert (opening.meter.requests, opening.records) == (1, 3)
    assert verify(tables, store).is_whole


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("more", [0, 1])
def test_limit_of_compressed_bytes(engines: Engines, tables: Tables, store: str, compression: str, more: int) -> None:
    """Changes of that size are within the entry; one byte more, and they are a part."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX, compression=compression)
    state = incompressible(INLINE_BYTES_MAX + more)
    version = write(engine, store, attempt(1), state)
    assert len(parts_of(tables, store)) == more
    assert read(engine, store, *version) == state
    dense = {b"key %d" % number: bytes(40) for number in range(20)}
    version = write(engine, store, attempt(2), dense, base=version)
    assert len(parts_of(tables, store)) == more
    assert read(engine, store, *version) == state | dense


def test_the_engine_of_a_sidecar_writes_them(memory: MemoryTables) -> None:
    """It is the default, without a setting."""
    with closing(Engine(memory, Settings())) as engine:
        assert engine.commits.inline_bytes == INLINE_BYTES_MAX


def test_a_flush_leaves_them_for_the_entry(engines: Engines, tables: Tables, store: str) -> None:
    """What may still be inline is not queued before the commit, and an abort leaves none; more than one chunk is."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX)
    begin(engine, store, attempt(1), SMALL).abort()
    assert parts_of(tables, store) == []
    under_way = begin(engine, store, attempt(1), SMALL)
    under_way.flush()
    result = under_way.commit({0: 2}, SCHEMA)
    assert (result.entry.parts, parts_of(tables, store)) == (0, [])
    under_way = begin(engine, store, attempt(2), {b"a": b"3"}, base=VersionId(1, attempt(1)))
    under_way.flush()
    under_way.append(chunk({b"b": b"4"}))
    assert under_way.commit({0: 2}, SCHEMA).entry.parts == 2
    assert read(engine, store, 2) == {b"a": b"3", b"b": b"4"}


def test_snapshots_and_clean_up(always_worth_it: None, engines: Engines, tables: Tables, store: str) -> None:
    """They count as changes; a snapshot has them, and clean-up deletes them with their entries."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX)
    versions = write_versions(engine, store, 25)
    save_snapshot(engine, store, versions[20], numbers(20))
    assert read(engine, store, *versions[25]) == numbers(25)
    engine.maintenance.clean_up(store, "run-1", *versions[25], 3, 0, 0)
    assert read(engines(), store, *versions[25]) == numbers(25)
    assert read(engines(), store, *versions[25], have=[versions[23]]) == {b"24": b"24", b"25": b"25"}
    assert verify(tables, store).is_whole
    assert parts_of(tables, store) == []


def test_a_fork_has_them_in_its_own_lists(engines: Engines, tables: Tables, store: str) -> None:
    """It goes on where the origin is gone; parts stay where they are."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX)
    large: State = {b"large": bytes(range(256)) * 4}
    version = write(engine, store, attempt(2), SMALL, base=write(engine, store, attempt(1), large))
    copy = f"{namespace_of(store)}-fork"
    fork_namespace(tables, namespace_of(store), copy, None)
    (forked,) = find_stores(tables, copy)
    assert read(engines(), forked, *version) == large | SMALL
    assert [len(parts_of(tables, each)) for each in (store, forked)] == [1, 0]
    assert verify(tables, forked).is_whole


def units_of(store: str, inline_bytes: int, changed_bytes: int) -> int:
    """Count the write units of a hundred small commits, of their deletes, and of the clean-ups between them."""
    tables = MemoryTables()
    engine = make_engine(tables, inline_bytes=inline_bytes, cache_bytes=1 << 20)
    version, units = write(engine, store, attempt(1), incompressible(changed_bytes)), 0
    for number in range(2, 102):
        by = attempt(number)
        version, counted = commit(engine, store, by, incompressible(changed_bytes), base=version)
        units += counted["writeUnits"]
        if number % 30 == 0:
            save_snapshot(engine, store, version, incompressible(changed_bytes), bits=0)
            meter, _ = engine.maintenance.clean_up(store, "run-1", *version, retain=10, least=1, most=0)
            units += meter.write_units + meter.delete_units
    engine.close()
    return units


def test_they_cost_less_up_to_the_limit(always_worth_it: None, store: str) -> None:
    """Units of commits and clean-up: much less for few changes, less at the limit, more above it."""
    ratios = [
        units_of(store, 1 << 20, size) / units_of(store, 0, size)
        for size in (80, INLINE_BYTES_MAX, 2 * INLINE_BYTES_MAX)
    ]
    assert ratios[0] < 0.65
    assert ratios[0] < ratios[1] < 1 < ratios[2], ratios


def test_rows_are_found_without_hashes(engines: Engines, store: str) -> None:
    """A reader of one row, or of one bucket, gets them all, since they are there."""
    engine = engines(inline_bytes=INLINE_BYTES_MAX)
    version = write(engine, store, attempt(1), SMALL, base=EMPTY)
    assert fold(engine.lookup(store, *version, digest=0).chunks) == SMALL
    assert fold(engine.buckets(store, *version, bits=8, numbers=[0]).chunks) == SMALL
