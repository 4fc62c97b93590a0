"""How long the items of a running query have what it removed: the computed bound beside a search in all items."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest

from dynastate.engine import snapshot_threshold
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import EMPTY, META, VersionId
from dynastate.operations.cost.removal import RemovalDelay, RemovalSettings, delay_of, removal_of_lists
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.storage.tables import Tables
from tests.support.engine_driver import Engines, take_snapshot, write
from tests.support.samples import Changes, State, attempt, namespace_of, noise, query_run
from tests.support.search import matches_in

#: Batches from the one that puts a row to the one that removes it.
LIFE = 3
ROWS = 60
MARK = re.compile(rb"row-(\d+);")
BATCH_S = 10.0


def mark(batch: int) -> bytes:
    return b"row-%d;" % batch


@dataclass
class RunningQuery:
    """A store of a query with maintenance after each `ticks` batches, as the provider does it (Maintenance.scala).

    Each batch puts a marked row, and removes the one of `LIFE` batches earlier; `ROWS` others stay.
    """

    engine: Engine
    store: str
    settings: RemovalSettings
    ticks: int
    version: VersionId = EMPTY
    state: State = field(default_factory=dict)
    changes: dict[int, set[bytes]] = field(default_factory=dict)
    offered_at: int = 0
    cleaned_at: int = 0

    def batch(self, changes: Changes | None = None) -> None:
        """Commit `changes`, by default the usual ones; the first batch also puts the other rows."""
        number = self.version.version + 1
        if changes is None:
            changes = {mark(number): noise(100, str(number))}
            if number > LIFE:
                changes[mark(number - LIFE)] = None
        if number == 1:
            changes = dict(changes) | {b"%d" % row: noise(100, f"row {row}") for row in range(ROWS)}
        chunks = [changes] if changes else []
        self.version = write(self.engine, self.store, attempt(number), *chunks, base=self.version)
        self.changes[number] = set(changes)
        self.state = {key: value for key, value in {**self.state, **changes}.items() if value is not None}
        if number % self.ticks == 0:
            self.maintain()

    def maintain(self) -> None:
        number = self.version.version
        if number - self.offered_at >= self.settings.offers:
            self.offered_at = number
            snapshot = take_snapshot(
                self.engine, self.store, self.version, self.state, self.changed_since, min_deltas=self.settings.offers
            )
            assert snapshot is None or snapshot.commit()
        if not self.cleaned_at or number - self.cleaned_at >= self.settings.least:
            arguments = (max(2, self.settings.retain), self.settings.least, self.settings.most)
            _, left = self.engine.maintenance.clean_up(self.store, "run-1", *self.version, *arguments)
            self.cleaned_at = 0 if left else number

    def restart(self, settings: RemovalSettings) -> None:
        """Continue with a new provider: it has offered no snapshot, and cleaned up nothing."""
        self.settings, self.offered_at, self.cleaned_at = settings, 0, 0

    def changed_since(self, base: int) -> set[bytes]:
        return {key for version, keys in self.changes.items() if version > base for key in keys}


@pytest.fixture
def few_versions_max(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is made after 40 versions, however little they changed."""
    monkeypatch.setattr(snapshot_threshold, "VERSIONS_MAX", 40)


def longest(query: RunningQuery, tables: Tables, batches: int) -> int:
    """The most batches after the one that removed a row until no item has it; of all rows, once clean-up has begun."""
    removed_at: dict[int, int] = {}
    waits: dict[int, int] = {}
    for number in range(1, batches + 1):
        query.batch()
        if number > LIFE:
            removed_at[number - LIFE] = number
        marks = {int(each) for each in matches_in(tables, [query.store], MARK)}
        assert set(range(max(1, number - LIFE + 1), number + 1)) <= marks, "rows of the state are there"
        waits |= {row: number - at for row, at in removed_at.items() if row not in marks and row not in waits}
    assert len(waits) > batches // 3
    return max(waits.values())


@dataclass(frozen=True)
class Case:
    """Settings, batches between two runs of maintenance, and by how many batches the bound is above what is measured.

    The bound is for maintenance at any time; here it is at the same distances.
    """

    settings: RemovalSettings
    ticks: int = 1
    slack: int = 0


OFTEN = RemovalSettings(retain=5, extra=0, min_deltas=1, snapshot_threshold=0)
CASES = {
    "a snapshot of each version": Case(OFTEN),
    "maintenance after each third batch": Case(OFTEN, 3, slack=1),
    "few deltas": Case(RemovalSettings(retain=10, min_deltas=4, snapshot_threshold=0)),
    "snapshots closer than clean-ups": Case(RemovalSettings(retain=30, min_deltas=4, snapshot_threshold=0), 3, slack=6),
    "by price": Case(RemovalSettings(retain=10, min_deltas=4, snapshot_threshold=0.25), 2, slack=4),
    "in several turns": Case(
        RemovalSettings(retain=10, extra=1, min_deltas=12, snapshot_threshold=0, most=3), 2, slack=23
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_removed_rows_are_gone_by_the_bound(name: str, engines: Engines, tables: Tables, store: str) -> None:
    """All rows that 150 batches removed, each in another phase of snapshots and clean-ups."""
    case = CASES[name]
    settings = replace(case.settings, maintenance_s=case.ticks * BATCH_S - 1)
    query = RunningQuery(engines(snapshot_threshold=settings.snapshot_threshold), store, settings, case.ticks)
    waited = longest(query, tables, 150)
    removal = removal_of_lists(*read_lists(tables, store), settings, BATCH_S)
    assert removal.expected.batches - waited == case.slack
    assert removal.expected.batches <= removal.longest.batches
    assert removal.held_by == ()


@pytest.mark.usefixtures("few_versions_max")
@pytest.mark.parametrize("threshold", [0, 100])
def test_rows_of_a_query_that_changes_nothing_more_are_gone_by_the_bound(
    threshold: int, engines: Engines, tables: Tables, store: str
) -> None:
    """No further change is worth a snapshot: only the number of versions is, and the rows go all the same."""
    settings = RemovalSettings(retain=5, extra=4, min_deltas=4, snapshot_threshold=threshold, maintenance_s=5)
    query = RunningQuery(engines(snapshot_threshold=threshold), store, settings, ticks=1)
    for _ in range(45):
        query.batch()
    query.batch(dict.fromkeys(map(mark, range(43, 46))))
    waited = 0
    while matches_in(tables, [store], MARK):
        query.batch({})
        waited += 1
    assert waited <= delay_of(settings, BATCH_S).batches
    assert waited > removal_of_lists(*read_lists(tables, store), settings, BATCH_S).expected.retained


def waited_for(query: RunningQuery, tables: Tables, changes: Changes) -> int:
    """Batches with `changes` after one that removes all marked rows, until no item has them."""
    query.batch(dict.fromkeys(key for key in query.state if MARK.match(key)))
    for waited in range(400):
        if not matches_in(tables, [query.store], MARK):
            return waited
        query.batch(changes)
    raise AssertionError("the rows stay")


@pytest.mark.usefixtures("few_versions_max")
def test_the_rest_of_the_last_turn_waits_for_a_later_snapshot(engines: Engines, tables: Tables, store: str) -> None:
    """Turns of 9 versions end with the version that removed the rows and another one: fewer than 3."""
    settings = RemovalSettings(retain=10, min_deltas=4, snapshot_threshold=0, maintenance_s=9, most=9)
    query = RunningQuery(engines(snapshot_threshold=0), store, settings, ticks=1)
    for _ in range(30):
        query.batch()
    for _ in range(49):
        query.batch({})
    waited = waited_for(query, tables, {})
    assert 40 < waited <= delay_of(settings, BATCH_S).batches


@pytest.mark.usefixtures("few_versions_max")
def test_versions_that_wait_for_clean_up_count(engines: Engines, tables: Tables, store: str) -> None:
    """The query retains fewer versions after a restart: clean-up deletes the others first, 3 after each batch."""
    settings = RemovalSettings(retain=5, extra=0, min_deltas=2, snapshot_threshold=0, maintenance_s=9, most=3)
    before_restart = replace(settings, retain=300)
    query = RunningQuery(engines(snapshot_threshold=0), store, before_restart, ticks=1)
    for _ in range(100):
        query.batch()
    query.restart(settings)
    removal = removal_of_lists(*read_lists(tables, store), settings, BATCH_S)
    waited = waited_for(query, tables, {b"0": b"changed"})
    assert delay_of(settings, BATCH_S).batches < waited <= removal.expected.batches <= removal.longest.batches
    assert removal.expected.batches - waited <= 5
    assert removal.held_by == ()


def test_a_restart_adds_to_it(engines: Engines, tables: Tables, store: str) -> None:
    """The provider that begins after 5 batches offers a snapshot at once, which is not worth it yet."""
    settings = RemovalSettings(retain=10, extra=0.5, min_deltas=8, snapshot_threshold=0, maintenance_s=9)
    query = RunningQuery(engines(snapshot_threshold=0), store, settings, ticks=1)
    while len(query.changes) < 20 or query.offered_at != query.version.version:
        query.batch()
    query.batch(dict.fromkeys(key for key in query.state if MARK.match(key)))
    for _ in range(5):
        query.batch({b"0": b"changed"})
    query.restart(settings)
    waited = 5 + waited_for(query, tables, {b"0": b"changed"})
    delay = delay_of(settings, BATCH_S, worth=1)
    assert delay.batches < waited <= delay.batches + settings.offers - 1 + delay.clean_up


def test_compact_and_clean_shorten_it_once(engine: Engine, tables: Tables, store: str) -> None:
    """A snapshot after the removal, some versions, and a clean-up that retains as many."""
    query = RunningQuery(engine, store, OFTEN, ticks=1_000)
    for _ in range(20):
        query.batch()
    query.batch(dict.fromkeys(map(mark, range(18, 21))))
    assert compact_store(engine, tables, store)
    for _ in range(3):
        assert matches_in(tables, [store], MARK)
        query.batch({})
    clean_store(engine, tables, store, retain=3)
    assert not matches_in(tables, [store], MARK)


def test_what_holds_rows_longer_is_said(engines: Engines, tables: Tables, store: str) -> None:
    """A fork, the origin of a fork, objects in S3, and a clean-up that deletes too little."""
    fork = f"fork-{store}"
    query = RunningQuery(engines(snapshot_threshold=0), store, OFTEN, ticks=1)
    for _ in range(12):
        query.batch()
    settings = replace(OFTEN, maintenance_s=60)

    def reasons(of: str, settings: RemovalSettings = settings) -> list[str]:
        return [each.partition(" ")[0] for each in removal_of_lists(*read_lists(tables, of), settings, BATCH_S).held_by]

    assert (reasons(store), reasons(store, replace(settings, most=6))) == ([], ["maxVersionsToDeletePerMaintenance"])
    fork_namespace(tables, namespace_of(store), namespace_of(fork), None)
    assert (reasons(store), reasons(fork)) == (["forks"], [namespace_of(store)])
    in_s3 = f"s3-{store}"
    write(engines(objects="s3://bucket", objects_threshold_kb=0), in_s3, attempt(1), {b"key": noise(1000)})
    assert reasons(in_s3) == ["an"]


def test_a_store_without_versions(engine: Engine, tables: Tables, store: str) -> None:
    """A run has entered it, and committed nothing yet: only the bound is known."""
    RunningQuery(engine, store, OFTEN, ticks=1).batch()
    _, items = read_lists(tables, store)
    items = {key: item for key, item in items.items() if key.sort == META}
    removal = removal_of_lists(VersionGraph(store, items.items()), items, OFTEN, BATCH_S)
    assert removal.expected == removal.longest == delay_of(OFTEN, BATCH_S)


def test_versions_of_another_location(engine: Engine, tables: Tables, store: str) -> None:
    """What the old location has committed on a branch of its own stays after an adoption."""
    base = write(engine, store, attempt(1), {b"key": b"1"})
    write(engine, store, attempt(2), {b"key": b"2"}, base=base)
    other = "file:/other"
    adopt_stores(tables, [store], other)
    newest = base
    for number in range(3, 20):
        newest = write(engine, store, attempt(number), {b"key": b"3"}, base=newest, run=query_run("run-2", other))
    (reason,) = removal_of_lists(*read_lists(tables, store), OFTEN, BATCH_S).held_by
    assert reason.startswith("another checkpoint location")


def test_an_unknown_pace_and_wrong_settings_are_refused(engine: Engine, tables: Tables, store: str) -> None:
    RunningQuery(engine, store, OFTEN, ticks=1).batch()
    with pytest.raises(ConfigurationError, match="give it with --every SECONDS"):
        removal_of_lists(*read_lists(tables, store), OFTEN)
    with pytest.raises(ConfigurationError, match="extra must be 0 or more"):
        replace(OFTEN, extra=-1)


def test_the_defaults() -> None:
    """The figures of docs/erase.md."""
    assert delay_of(RemovalSettings(), 10) == RemovalDelay(10_014, 29, 100, 35, 0)
    assert delay_of(RemovalSettings(), 60) == RemovalDelay(10_009, 29, 100, 30, 0)
    shortest = RemovalSettings(retain=20, extra=0, snapshot_threshold=0)
    assert delay_of(shortest, 10) == RemovalDelay(15, 0, 20, 6, 0)
    assert delay_of(shortest, 10).minutes(10, 60) == pytest.approx(7.8, abs=0.05)
