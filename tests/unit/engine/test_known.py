"""What an executor knows of stores: cached parts, buckets and routes."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.storage.meter import Meter
from tests.support.contents import parts_of
from tests.support.engine_driver import Engines, fold, read, save_snapshot, write, write_versions
from tests.support.memory_tables import MemoryTables
from tests.support.samples import State, attempt, numbers

pytestmark = [pytest.mark.usefixtures("always_worth_it"), pytest.mark.parametrize("tables", ["memory"], indirect=True)]

MIB = 1024 * 1024


@pytest.fixture
def engine(engines: Engines) -> Engine:
    return engines(cache_bytes=MIB)


def cost_of(engine: Engine, store: str, version: VersionId) -> tuple[State, Meter]:
    opening = engine.open(store, *version)
    return fold(opening.chunks, fold(opening.snapshot_chunks)), opening.meter


def test_what_was_committed_here_costs_nothing_to_open(engine: Engine, store: str) -> None:
    """A rollback, a moved partition, a second reader: versions named by their attempts cost no request at all."""
    versions = write_versions(engine, store, 30)
    for version in (versions[30], versions[7], versions[1]):
        state, meter = cost_of(engine, store, version)
        assert state == numbers(version[0])
        assert (meter.requests, meter.read_units) == (0, 0)
        assert (meter.cache_hits, meter.cache_misses) == (version[0], 0)


def test_a_version_without_attempt_reads_the_list_each_time(engine: Engine, engines: Engines, store: str) -> None:
    """Another executor may have made the version again in a newer run: the list is read, and only the list."""
    one = write(engine, store, attempt(1), {b"a": b"1"})
    write(engine, store, attempt(2), {b"a": b"2"}, base=one)
    state, meter = cost_of(engine, store, VersionId(2, NO_ATTEMPT))
    assert (state, meter.requests, meter.cache_misses) == ({b"a": b"2"}, 1, 0)
    write(engines(), store, attempt(3), {b"a": b"3"}, base=one, run="run-2")
    assert cost_of(engine, store, VersionId(2, NO_ATTEMPT))[0] == {b"a": b"3"}
    assert cost_of(engine, store, VersionId(2, attempt(2)))[0] == {b"a": b"2"}


def test_what_was_read_costs_nothing_the_next_time(engine: Engine, engines: Engines, store: str) -> None:
    """A second reader on an executor that did not write: a snapshot's buckets and the parts after it, read once."""
    writer = engines()
    versions = write_versions(writer, store, 12)
    save_snapshot(writer, store, versions[8], read(writer, store, *versions[8]))
    state, first = cost_of(engine, store, versions[12])
    assert first.cache_hits == 0
    assert first.cache_misses > 4
    repeat, second = cost_of(engine, store, versions[12])
    assert repeat == state == numbers(12)
    assert (second.requests, second.cache_hits, second.cache_misses) == (0, first.cache_misses, 0)
    for near in (versions[8], versions[10]):
        assert cost_of(engine, store, near)[1].requests == 0
    # Parts before the snapshot are not on the route.
    assert cost_of(engine, store, versions[7])[1].requests > 0


def test_a_snapshot_made_here_costs_nothing_to_open(engine: Engine, store: str) -> None:
    """Its buckets are cached as they are written, and the routes to later versions begin there."""
    versions = write_versions(engine, store, 12)
    save_snapshot(engine, store, versions[10], read(engine, store, *versions[10]))
    opening = engine.open(store, *versions[12])
    assert (opening.snapshot, len(opening.entries)) == (10, 2)
    assert fold(opening.chunks, fold(opening.snapshot_chunks)) == numbers(12)
    assert opening.meter.requests == 0
    version = write(engine, store, attempt(13), {b"13": b"13"}, base=versions[12])
    assert cost_of(engine, store, version)[1].requests == 0


def test_a_version_on_another_branch_is_looked_up(engine: Engine, store: str) -> None:
    """Only the route to the last version is cached; a version that is not on it is looked up in the list."""
    versions = write_versions(engine, store, 5)
    other = write(engine, store, attempt(44), {b"other": b"1"}, base=versions[3])
    assert cost_of(engine, store, versions[5])[0] == numbers(5)
    expected = {b"1": b"1", b"2": b"2", b"3": b"3", b"other": b"1"}
    assert cost_of(engine, store, other)[0] == expected
    assert cost_of(engine, store, other)[1].requests == 0
    with pytest.raises(VersionMissingError):
        engine.open(store, 5, attempt(44))


def test_without_room_nothing_is_kept(engines: Engines, store: str) -> None:
    """`cacheMb` 0: every open reads; and state that is larger than the cache does not pass through it."""
    none = engines(cache_bytes=0)
    versions = write_versions(none, store, 3)
    for _ in range(2):
        meter = cost_of(none, store, versions[3])[1]
        assert (meter.requests, meter.cache_hits, meter.cache_misses) == (2, 0, 3)
    little = engines(cache_bytes=2 * 600)
    assert cost_of(little, store, versions[1])[1].cache_misses == 1
    assert cost_of(little, store, versions[1])[1].cache_hits == 1
    assert cost_of(little, store, versions[3])[1].cache_hits == 1
    assert cost_of(little, store, versions[1])[1].cache_hits == 1


def test_a_cached_route_is_replaced_after_clean_up(engines: Engines, store: str) -> None:
    """A route with parts that clean-up has deleted is an error once, and is looked up again then."""
    engine = engines(cache_bytes=1)
    engine.known_stores.routes.limit_bytes = MIB
    versions = write_versions(engine, store, 10)
    other = engines()
    save_snapshot(other, store, versions[9], read(other, store, *versions[9]))
    other.maintenance.clean_up(store, "run-1", *versions[10], retain=2, least=1, most=0)
    with pytest.raises(CorruptStateError, match="is not in its table"):
        cost_of(engine, store, versions[10])
    assert cost_of(engine, store, versions[10])[0] == numbers(10)
    with pytest.raises(VersionMissingError):
        engine.open(store, *versions[5])


def test_corrupt_parts_are_not_kept(engine: Engine, engines: Engines, tables: MemoryTables, store: str) -> None:
    """Only checked parts are cached: a corrupt part is an error each time, until it is repaired."""
    versions = write_versions(engines(), store, 3)
    key, item = parts_of(tables, store)[1]
    tables.write([(key, item | {"records": 7})])
    for _ in range(2):
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            cost_of(engine, store, versions[3])
    tables.write([(key, item)])
    assert len(cost_of(engine, store, versions[3])[0]) == 3


def test_finding_a_version_reads_no_part(engine: Engine, engines: Engines, store: str) -> None:
    """Opening without rows costs one Query, and then nothing."""
    versions = write_versions(engines(), store, 20)
    opening = engine.find(store, *versions[20])
    assert (opening.meter.requests, opening.meter.cache_misses) == (1, 0)
    assert (list(opening.chunks), list(opening.snapshot_chunks)) == ([], [])
    assert engine.find(store, *versions[20]).meter.requests == 0
    with pytest.raises(VersionMissingError):
        engine.find(store, 21, NO_ATTEMPT)
    assert opening.base == EMPTY
