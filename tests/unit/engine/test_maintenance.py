"""When a store is cleaned up, and when a snapshot is begun."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.format.keys import VersionId
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.contents import graph
from tests.support.engine_driver import Engines, clean_up, read, save_snapshot, write, write_versions
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, numbers

always_worth_it = pytest.mark.usefixtures("always_worth_it")


@always_worth_it
def test_bounds_of_clean_up(engine: Engine, tables: Tables, store: str) -> None:
    """Fewer than `least` versions are left for later; more than `most` are deleted in several turns."""
    versions = write_versions(engine, store, 30)
    save_snapshot(engine, store, versions[20], numbers(20))
    assert clean_up(engine, store, versions[30], retain=5, least=21).items_deleted == 0
    for oldest, count in ((8, 13), (15, 6), (21, 0)):
        assert engine.maintenance.clean_up(store, "run-1", *versions[30], 5, 1, most=7)[1] == count
        assert graph(tables, store).versions() == list(range(oldest, 31))


@always_worth_it
def test_one_clean_up_of_a_store_at_a_time(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A caller that timed out asks again while the first clean-up still runs; a second one would pay for all twice."""
    asked_again: list[tuple[Meter, int]] = []

    def ask_again(verb: str) -> None:
        if verb == "delete":
            asked_again.append(engine.maintenance.clean_up(store, "run-1", *versions[30], 5, 1, 0))

    engine = engines(FailingTables(memory, ask_again))
    versions = write_versions(engine, store, 30)
    save_snapshot(engine, store, versions[20], numbers(20))
    assert clean_up(engine, store, versions[30], retain=5).items_deleted > 0
    assert asked_again
    assert all(each == (Meter(), 0) for each in asked_again)
    assert clean_up(engine, store, versions[30], retain=2).items_deleted == 0


@always_worth_it
def test_only_the_newest_run_cleans_up(engine: Engine, store: str) -> None:
    """An executor of a run that was replaced does not know what the new one depends on."""
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[18], numbers(18))
    write(engine, store, attempt(99), {b"new": b"run"}, run="run-2")
    assert clean_up(engine, store, versions[20], retain=2).items_deleted == 0
    assert read(engine, store, 1) == {b"new": b"run"}
    # The new run has one version only: all it could remove are those below it.
    assert clean_up(engine, store, VersionId(1, attempt(99)), retain=2, run="run-2").items_deleted == 0


def test_a_declined_offer_reads_nothing(engines: Engines, store: str) -> None:
    """Nor does one of an executor that has read the store; any other reads it once, and knows it from then on."""
    engine, newer = (engines(cache_bytes=2**20) for _ in range(2))

    def offer(by: Engine, of: VersionId, min_deltas: int = 2) -> int:
        snapshot, meter = by.maintenance.snapshot(store, "run-1", *of, 1, min_deltas)
        assert snapshot is None
        assert (meter.read_units > 0) == (meter.requests > 0)
        return meter.requests

    versions = write_versions(engine, store, 60)
    assert offer(engine, versions[60], 61) == 0, "too few versions"
    save_snapshot(engine, store, versions[60], numbers(60))
    assert offer(engine, versions[60]) == 0, "it has a snapshot"
    versions += write_versions(engine, store, 10, versions[60])[1:]
    assert [offer(engine, versions[version]) for version in (70, 65)] == [0, 0], "too few bytes"
    read(newer, store, *versions[70])
    assert offer(newer, versions[70]) == 0
    # Another executor that writes to the store without having read it.
    other = engines(cache_bytes=2**20)
    versions += write_versions(other, store, 2, versions[70])[1:]
    assert offer(other, versions[72]) == 2, "version lists and a manifest"
    versions += write_versions(other, store, 2, versions[72])[1:]
    assert [offer(other, versions[version]) for version in (74, 73)] == [0, 0]
    # What this one knows may be old: it reads, and finds that another has made a snapshot.
    versions += write_versions(other, store, 60, versions[74])[1:]
    save_snapshot(newer, store, versions[130], numbers(130))
    assert offer(other, versions[134]) == 2
    assert offer(other, versions[134]) == 0
    assert offer(engines(), versions[134]) == offer(engines(), versions[134]) == 1, "nothing is cached"
