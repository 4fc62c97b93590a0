"""Reads of parts: how many at once, how much ahead, and checks of what was read."""

from __future__ import annotations

import threading

import pytest

from dynastate.engine import reader, windows
from dynastate.engine.engine import Engine
from dynastate.errors import CorruptStateError
from dynastate.format.keys import NO_ATTEMPT
from dynastate.format.parts import part_items
from dynastate.runtime import Limits
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.contents import parts_of
from tests.support.engine_driver import make_engine, read, write
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.samples import A, chunk, noise


def test_chunks_are_applied_in_the_order_they_were_appended(engine: Engine, tables: Tables, store: str) -> None:
    """More parts than one read brings, over all shards: of several changes to a key the last chunk's counts."""
    count = 2 * Limits.window_parts + 7
    chunks = [{b"same": b"%d" % number, b"own %d" % number: noise(40, str(number))} for number in range(count)]
    write(engine, store, A, *chunks)
    assert {key.store_shard for key, _ in parts_of(tables, store)} == {f"{store}#{shard}" for shard in range(4)}
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert [each.changes for each in opening.chunks] == [chunk(each).changes for each in chunks]
    assert read(engine, store, 1)[b"same"] == b"%d" % (count - 1)


def test_reading_ahead_is_bounded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """While a slow provider takes its rows, or stops, at most one window is read ahead."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * Limits.window_parts)))
    memory.calls.clear()
    opening = memory_engine.open(store, 1, NO_ATTEMPT)
    assert memory.called("get") == []
    chunks = iter(opening.chunks)
    for number in range(10 * Limits.window_parts):
        next(chunks)
        assert len(memory.called("get")) <= number // Limits.window_parts + 2
    assert next(chunks, None) is None
    unread = memory_engine.open(store, 1, NO_ATTEMPT).chunks
    next(unread)
    del unread
    assert len(read(memory_engine, store, 1)) == 10 * Limits.window_parts, "an unread opening blocks nothing"
    assert {len(call.keys) for call in memory.called("get")} == {Limits.window_parts}


@pytest.mark.parametrize("sidecars", [1, 4])
def test_all_openings_share_what_is_read_ahead(
    sidecars: int, memory: MemoryTables, memory_engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen slow openings read a window each, and not more ahead than fits into their sidecar's part."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * Limits.window_parts)))
    window_bytes = Limits.window_parts * windows.part_bytes(memory_engine.open(store, 1, NO_ATTEMPT).entry)
    monkeypatch.setattr(reader, "READ_AHEAD_BYTES_MAX", 4 * window_bytes * sidecars)
    engine = make_engine(memory, parallel_requests=8 * sidecars, sidecars=sidecars)
    memory.calls.clear()
    openings = [iter(engine.open(store, 1, NO_ATTEMPT).chunks) for _ in range(16)]
    for opening in openings:
        next(opening)
    assert engine._reader._ahead_bytes == (4 + 15) * window_bytes
    assert all(len(list(opening)) == 10 * Limits.window_parts - 1 for opening in openings[:8])
    assert len(memory.called("get")) <= 8 * 10 + 8 + 4
    del opening, openings
    assert engine._reader._ahead_bytes == 0
    engine.close()


@pytest.mark.parametrize(
    ("sidecars", "cache_kb", "routes_kb", "threads"),
    [(None, 65_536, 32_768, 8), (1, 65_536, 32_768, 8), (3, 21_845, 10_922, 2), (64, 1024, 512, 1)],
)
def test_sidecars_divide_what_one_would_have(
    sidecars: int | None, cache_kb: int, routes_kb: int, threads: int, memory: MemoryTables
) -> None:
    """The caches and the requests of an executor are divided among its sidecars; each may send one request."""
    engine = Engine(memory, Settings(sidecars=sidecars))
    assert engine.known_stores.parts.limit_bytes // 1024 == cache_kb
    assert engine.known_stores.routes.limit_bytes // 1024 == routes_kb
    assert len(engine._writer._workers) == engine._reader._parallel == threads
    engine.close()


def test_several_reads_are_under_way_at_once(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    write(failing_engine, store, A, *({b"%d" % number: b"1"} for number in range(4 * Limits.window_parts)))
    pair = threading.Barrier(2, timeout=10)

    def meet(verb: str) -> None:
        if verb == "get":
            pair.wait()

    failing_tables._before = meet
    assert len(read(failing_engine, store, 1)) == 4 * Limits.window_parts


def test_a_part_replaced_by_another_whole_one_is_found(engine: Engine, tables: Tables, store: str) -> None:
    """The entry's digest reveals a part with a valid checksum that is not the one that was committed."""
    write(engine, store, A, {b"a": b"1"}, {b"b": b"2"})
    _, (key, _) = parts_of(tables, store)
    ((other, item),) = part_items(store, 1, A, 1, 4, chunk({b"b": b"3"}))
    assert other == key
    tables.write([(key, item)])
    with pytest.raises(CorruptStateError) as failed:
        read(engine, store, 1)
    message = str(failed.value)
    assert "parts do not agree with the version list or manifest that names them" in message
    assert f"version=1 attempt={A.hex()} parts=2" in message
    assert f"store={store}" in message or f"store_shard={store}#" in message
