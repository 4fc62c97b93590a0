"""Scans of large stores: by ranges of hashes, each row once, changes read once, in bounded memory."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from io import BytesIO
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.manifest import bits_for
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader import scan, spill
from dynastate.reader.spill import SpillFile
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, family, user

pytestmark = [pytest.mark.usefixtures("always_worth_it", "ranges")]
RANGES_BITS = scan.ranges_bits
NAMES = [f"user-{number:03d}" for number in range(200)]
LISTS = family(1, "seen", multiple=True)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranges, whatever the size of the state, and changes in files."""
    monkeypatch.setattr(scan, "MEMORY_BYTES", 8)
    monkeypatch.setattr(scan, "ranges_bits", lambda _: 3)


@pytest.fixture
def written(memory_engine: Engine, store: str) -> StoreBuilder:
    """A store with lists beside its rows: all are put, some are changed, some removed; lists grow."""
    builder = StoreBuilder(memory_engine, store, family(), LISTS)
    builder.commit(*((user(name), counted(1)) for name in NAMES))
    builder.commit(*((user(name), counted(2)) for name in NAMES[::3]))
    builder.commit(*((user(name), None) for name in NAMES[::5]))
    for number in (1, 2):
        builder.commit(*((user(name), counted(number)) for name in NAMES[:50]), of=1)
    return builder


def rows_of(tables: MemoryTables, store: str, name: str, version: int | None = None) -> list[dict[str, Any]]:
    with StateReader(tables, Settings(cache_mb=0), store, name) as newest:
        return by_user(newest if version is None else newest.at(version))


def by_user(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["user"]))


def expected(version: int) -> list[dict[str, Any]]:
    counts = dict.fromkeys(NAMES, 1)
    counts |= dict.fromkeys(NAMES[::3], 2) if version > 1 else {}
    removals = NAMES[::5] if version > 2 else []
    return [{"user": name, **counted(count)} for name, count in counts.items() if name not in removals]


def test_each_row_is_read_once(memory: MemoryTables, written: StoreBuilder) -> None:
    """At every version, without a snapshot, and lists in the order of their values."""
    for version in (1, 2, 3, 5):
        assert rows_of(memory, written.store, "default", version) == expected(version)
    grown = [{"user": name, "values": [counted(1), counted(2)]} for name in NAMES[:50]]
    assert rows_of(memory, written.store, "seen") == grown


def test_changes_with_a_snapshot_come_once(memory: MemoryTables, memory_engine: Engine, written: StoreBuilder) -> None:
    """Each part of the changes after it once; its one bucket, which has rows of every range, for each of them."""
    compact_store(memory_engine, memory, written.store)
    for number in (3, 4):
        written.commit(*((user(name), counted(number)) for name in NAMES[:50]), of=1)
    grown = [{"user": name, "values": [counted(each) for each in (1, 2, 3, 4)]} for name in NAMES[:50]]
    assert rows_of(memory, written.store, "seen") == grown
    memory.calls.clear()
    assert rows_of(memory, written.store, "default") == expected(7)
    read = [key for call in memory.calls if call.verb != "query" for key in call.keys]
    parts = Counter(key for key in read if key.role == "delta")
    buckets = Counter(key for key in read if key.sort.startswith("bucket/"))
    assert (sorted(parts.values()), sorted(buckets.values())) == ([1, 1], [8])


def test_another_route_takes_over(memory: MemoryTables, memory_engine: Engine, written: StoreBuilder) -> None:
    """A snapshot that is made while rows are read begins the route of the other ranges, without a value twice."""
    with StateReader(memory, Settings(cache_mb=0), written.store, "seen") as state:
        rows = iter(state)
        rows_read = [next(rows)]
        compact_store(memory_engine, memory, written.store)
        rows_read += rows
    assert by_user(rows_read) == [{"user": name, "values": [counted(1), counted(2)]} for name in NAMES[:50]]


def test_a_lost_part_is_an_error(memory: MemoryTables, written: StoreBuilder) -> None:
    """It is not taken for another route without end."""
    part = next(key for key in memory.items if key.role == "delta")
    del memory.items[part]
    with pytest.raises(CorruptStateError, match="is not in its table"):
        rows_of(memory, written.store, "default")


def test_files_are_encrypted(memory: MemoryTables, written: StoreBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are read from the files, in which none of them can be read."""
    files: list[BytesIO] = []

    class Kept(BytesIO):
        def close(self) -> None:
            files.append(BytesIO(self.getvalue()))

    monkeypatch.setattr(spill, "TemporaryFile", Kept)
    assert rows_of(memory, written.store, "default") == expected(5)
    raw = b"".join(each.getvalue() for each in files)
    assert len(raw) > 200 * 20
    assert b"user-" not in raw


def test_blocks_are_encrypted_each_by_its_own_stream() -> None:
    """Equal blocks differ on disk, and what is read is what was appended, in memory or not."""
    for memory, count in ((0, 50), (100, 50), (10**6, 50)):
        with closing(SpillFile(memory)) as file:
            for number in range(count):
                file.write(bytes([number]) * 7)
            assert file.read() == file.read() == b"".join(bytes([number]) * 7 for number in range(count))
    with closing(SpillFile(0)) as file:
        for _ in range(2):
            file.write(bytes(64))
        on_disk = file._file
        assert on_disk is not None
        on_disk.seek(0)
        assert len({on_disk.read(64), on_disk.read(64), bytes(64)}) == 3


def test_a_full_disk_is_an_error(memory: MemoryTables, written: StoreBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill, "TemporaryFile", Full)
    with pytest.raises(ConfigurationError, match="No space left on device; set TMPDIR"):
        rows_of(memory, written.store, "default")


def test_ranges_follow_the_size_of_the_state() -> None:
    """Up to 8 MiB are one range, beyond that each has as much, until there are 128 of them."""
    sizes_mb = (0, 8, 9, 32, 1_024, 2_048)
    assert [1 << RANGES_BITS(bits_for(size << 20)) for size in sizes_mb] == [1, 1, 2, 4, 128, 128]
