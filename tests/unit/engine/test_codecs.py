"""Stores whose rows are compressed with zstd, with LZ4, and with both."""

from __future__ import annotations

import sys

import pytest

from dynastate.engine.catalog import find_stores
from dynastate.errors import ConfigurationError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.storage.tables import Tables
from tests.support.contents import everything_of
from tests.support.engine_driver import Engines, read, save_snapshot, write
from tests.support.samples import State, attempt, namespace_of

pytestmark = pytest.mark.usefixtures("always_worth_it")


def rows(first: int, count: int = 40) -> State:
    """Make rows that both codecs make smaller."""
    return {b"row %d" % number: b"a value that repeats itself " * 3 for number in range(first, first + count)}


def codecs_of(items: list[Item]) -> set[object]:
    return {item["codec"] for item in items if "codec" in item}


def fill(engines: Engines, store: str, *codecs: str) -> tuple[State, int]:
    """Write two versions and a snapshot by an engine of each codec; return the state and the newest version."""
    version, state = EMPTY, State()
    for codec in codecs:
        engine = engines(compression=codec)
        for _ in range(2):
            changes = rows(10 * version.version)
            version, state = write(engine, store, attempt(version.version + 1), changes, base=version), state | changes
        # Buckets without changes are carried over from the snapshot before, of the other codec.
        save_snapshot(engine, store, version, state, lambda since: {*rows(10 * since), *rows(10 * since + 10)})
    return state, version.version


def test_a_store_changes_its_codec(engines: Engines, tables: Tables, store: str) -> None:
    """Engines of either setting read what both have written: rows, snapshots, forks, and `verify` finds it whole."""
    state, newest = fill(engines, store, "zstd", "lz4", "zstd")
    assert codecs_of(everything_of(tables, store)) >= {"zstd", "lz4"}
    for codec in ("lz4", "zstd"):
        assert read(engines(compression=codec), store, newest) == state
        assert read(engines(compression=codec), store, 3) == rows(0) | rows(10) | rows(20)
    assert verify(tables, store).is_whole
    copy = f"{namespace_of(store)}-fork"
    fork_namespace(tables, namespace_of(store), copy, None)
    (forked,) = find_stores(tables, copy)
    assert read(engines(), forked, newest) == state
    base = engines().lineage(forked).newest.id
    version = write(engines(compression="zstd"), forked, attempt(77), {b"more": b"1"}, base=base)
    assert read(engines(), forked, *version) == state | {b"more": b"1"}


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_all_rows_are_in_the_codec_that_is_set(engines: Engines, tables: Tables, store: str, codec: str) -> None:
    """Parts of commits and items of buckets."""
    fill(engines, store, codec)
    assert codecs_of(everything_of(tables, store)) == {codec}


def test_rows_without_package(engines: Engines, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zstandard its rows are refused with what to install: no snapshot is skipped, nothing is corrupt."""
    state, newest = fill(engines, store, "zstd")
    reader = engines()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        for call in (lambda: read(reader, store, newest), lambda: verify(tables, store)):
            with pytest.raises(ConfigurationError, match="pip install zstandard"):
                call()
    opening = reader.open(store, newest, attempt(newest))
    assert opening.snapshot == newest
    assert read(reader, store, newest) == state
