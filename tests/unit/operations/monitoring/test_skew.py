"""Skew: the largest partitions, the heaviest keys, and the busiest partition key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dynastate.engine.engine import Engine
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.monitoring.skew import StoreLoad, busiest, read_keys, read_loads, skew_of
from dynastate.storage.meter import Meter
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, family, user

#: Rows that each partition gets in a batch.
ROWS = (10, 40, 10)
BATCHES = 9
EVERY_S = 120


@pytest.fixture
def grown(memory_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[StoreBuilder]:
    """An operator of three partitions, one of which gets more rows; a batch every two minutes."""
    now_ms = [1_700_000_000_000]
    monkeypatch.setattr(memory_engine.commits, "now_ms", lambda: now_ms[0])
    builders = [StoreBuilder(memory_engine, f"grown/0/{partition}/default") for partition in range(len(ROWS))]
    for batch in range(BATCHES):
        for partition, rows in enumerate(ROWS):
            names = (f"{batch}-{number}" for number in range(rows))
            builders[partition].commit(*((user(name), counted(1, "x" * 50)) for name in names))
        now_ms[0] += EVERY_S * 1000
    return builders


@pytest.fixture
def loads(memory: MemoryTables, grown: list[StoreBuilder]) -> list[StoreLoad]:
    return read_loads(memory, [each.store for each in grown])


def test_partitions(loads: Sequence[StoreLoad]) -> None:
    (group,) = skew_of(loads)
    assert (group.stores, group.partitions, group.rows) == ("grown/0/*/default", 3, BATCHES * sum(ROWS))
    assert [each.store.split("/")[2] for each in group.largest] == ["1", "0", "2"]
    assert group.rows_ratio == group.bytes_ratio == 2.0
    assert loads[0].rows == BATCHES * ROWS[0]
    assert loads[0].batch_s == EVERY_S


def test_bytes_are_estimated_from_the_newest_snapshot(
    memory: MemoryTables, memory_engine: Engine, grown: list[StoreBuilder], loads: Sequence[StoreLoad]
) -> None:
    """Of a state that is as its snapshot they are exact, and without one those of the changes."""
    compact_store(memory_engine, memory, grown[1].store)
    (load,) = read_loads(memory, [grown[1].store])
    assert load.bytes == loads[1].bytes
    rows = sum(len(key) + sum(map(len, values)) + 10 for (_, key), values in grown[1].state.items())
    assert load.bytes == rows


def test_the_busiest_partition_key(loads: Sequence[StoreLoad]) -> None:
    """Write units of the commits between the listed versions, over the shards of the store."""
    assert loads[0].units_s == pytest.approx(2 / EVERY_S)  # a part, and the version list
    assert loads[0].key_units_s == pytest.approx(2 / EVERY_S / 4)
    hot = replace(loads[1], units_s=8.0)
    assert busiest([loads[0], hot, loads[2]]) is hot
    assert busiest([]) is None


def test_sizes_of_lists_are_those_of_their_values(memory: MemoryTables, memory_engine: Engine, store: str) -> None:
    """A list has a record for each value: the sizes of partitions and of rows are of the same bytes."""
    builder = StoreBuilder(memory_engine, store, family(multiple=True))
    for number in range(20):
        builder.commit(*((user(f"u{each}"), counted(number, "x" * 30)) for each in range(5)))
        if number in (0, 10):
            (load,) = read_loads(memory, [store])
            assert load.bytes == read_keys(memory_engine, [load], 1, 1 << 20, Meter()).bytes
            compact_store(memory_engine, memory, store)
    (load,) = read_loads(memory, [store])
    report = read_keys(memory_engine, [load], 1, 1 << 20, Meter())
    assert (load.bytes, report.heaviest[0].values) == (report.bytes, 20)
    assert load.bytes > 5 * 20 * 30


def test_an_empty_snapshot_says_nothing_of_sizes(memory: MemoryTables, memory_engine: Engine, store: str) -> None:
    """The changes since tell them."""
    builder = StoreBuilder(memory_engine, store)
    builder.commit((user("a"), counted(1)))
    builder.commit((user("a"), None))
    assert compact_store(memory_engine, memory, store) is not None
    builder.commit(*[(user(f"{number:03d}"), counted(1)) for number in range(100)])
    (load,) = read_loads(memory, [store])
    assert load.rows == 100
    assert load.bytes > 100 * 20


def test_one_version_has_no_load(memory: MemoryTables, memory_engine: Engine, store: str) -> None:
    StoreBuilder(memory_engine, store).commit((user("a"), counted(1)))
    (load,) = read_loads(memory, [store])
    assert (load.units_s, load.batch_s, load.key_units_s) == (None, None, 0)
    assert not read_loads(memory, [f"{store}-none"])


def test_heaviest_keys(memory: MemoryTables, memory_engine: Engine, store: str) -> None:
    """Rows of all families but Spark's own, lists with the number of their values; sizes by powers of two."""
    families = family(), family(1, "seen", multiple=True), family(2, "$ttl", internal=True)
    builder = StoreBuilder(memory_engine, store, *families)
    builder.commit((user("whale"), counted(1, "x" * 5_000)), *((user(f"u{n}"), counted(1)) for n in range(100)))
    builder.commit(*((user("list"), counted(number, "y" * 400)) for number in range(10)), of=1)
    builder.commit((user("internal"), counted(1, "z" * 9_000)), of=2)
    loads = read_loads(memory, [store])
    report = read_keys(memory_engine, loads, 3, 1 << 20, Meter())
    assert [(each.family, each.key["user"], each.values) for each in report.heaviest[:2]] == [
        ("default", "whale", 1),
        ("seen", "list", 10),
    ]
    assert report.heaviest[0].bytes > 5_000 > report.heaviest[1].bytes > 4_000 > report.heaviest[2].bytes
    assert (report.rows, report.is_whole, sum(each.rows for each in report.sizes)) == (102, True, 102)
    assert report.bytes == sum(each.bytes for each in report.sizes)
    assert (report.quantile_bytes(0.5), report.quantile_bytes(1)) == (report.sizes[0].bytes_max, 8192)


def test_reading_ends_at_its_limit(memory_engine: Engine, loads: Sequence[StoreLoad]) -> None:
    """The largest partition is read first; what was not read is not counted."""
    one = loads[1].bytes
    whole = read_keys(memory_engine, loads, 5, 10 * one, Meter())
    assert (whole.stores, whole.rows, whole.is_whole) == (3, BATCHES * sum(ROWS), True)
    part = read_keys(memory_engine, loads, 5, one // 2, Meter())
    assert (part.stores, part.is_whole) == (1, False)
    assert part.rows < BATCHES * ROWS[1]
    assert part.bytes < one
    assert {each.store for each in part.heaviest} == {"grown/0/1/default"}
    assert read_keys(memory_engine, [], 5, 1, Meter()).rows == 0
