"""`open_state` on stores that the engine wrote: rows, versions, changes, partitions, and their cost."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine import opening, pace
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.changes import MERGE, PUT, decode_changes, encode_changes, key_hash
from dynastate.format.changes import Change as RowChange
from dynastate.format.keys import EMPTY, VersionId, meta_key
from dynastate.format.parts import Chunk
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.reader.arrow import write_parquet
from dynastate.reader.state import open_state
from dynastate.reader.view import Change, Past, StateView
from tests.support.contents import graph
from tests.support.engine_driver import Engines
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, attempt, query_run
from tests.support.store_builder import Row, StoreBuilder, counted, family, struct, user
from tests.unit.reader.conftest import Open

pytestmark = pytest.mark.usefixtures("always_worth_it")
NAMES = [f"user-{number:02d}" for number in range(40)]


def row(name: str, count: int, note: str = "") -> dict[str, Any]:
    return {"user": name, "count": count, "note": note}


def by_user(state: StateView) -> list[dict[str, Any]]:
    return sorted(state, key=lambda each: str(each["user"]))


def test_get_and_iterate(written: StoreBuilder, opened: Open) -> None:
    state = opened(written.store)
    assert (state.version, len(state), state.families) == (3, 2, ("default",))
    assert state.get({"user": "a"}) == row("a", 2)
    assert state.get({"user": "b"}) is None
    assert state.get({"user": None}) is None
    assert by_user(state) == [row("a", 2), row("c", 1)]


def test_a_wrong_key_is_refused(written: StoreBuilder, opened: Open) -> None:
    """A missing or unknown column, or a value of another type, is an error, not an absent key."""
    state = opened(written.store)
    for key in ({}, {"name": "a"}, {"user": "a", "count": 2}, {"user": 1}):
        with pytest.raises(ConfigurationError, match=r"column.* a key looks like {'user': 'a'}"):
            state.get(key)
    with pytest.raises(
        ConfigurationError, match=r"column user must be of type string, such as 'a': not a str; .* value=1$"
    ):
        state.get({"user": 1})
    other: Any
    for other in (3, None, "user", ["a"]):
        for ask in (state.get, state.history):
            with pytest.raises(ConfigurationError, match=r"a key is a dict of its columns; .* {'user': 'a'} got="):
                ask(other)


def test_the_error_for_a_wrong_key_has_a_key_of_the_right_shape(engine: Engine, store: str, opened: Open) -> None:
    """Of structs, as map and list state have them, and of keys that are ordered."""
    user_key, map_key = struct([("user", "string")]), struct([("k", "long")])
    ordered = {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [0]}
    families = (
        family(1, "by", key=[("key", user_key), ("userKey", map_key)]),
        family(2, "seen", key=[("key", user_key)], multiple=True),
        family(3, "ordered", key=[("at", "long"), ("user", "string")], key_encoder=ordered),
    )
    StoreBuilder(engine, store, *families).commit()
    keys: dict[str, dict[str, Any]] = {
        "by": {"key": {"user": "a"}, "userKey": {"k": 1}},
        "seen": {"key": {"user": "a"}},
        "ordered": {"at": 1, "user": "a"},
    }
    for name, key in keys.items():
        state = opened(store, family=name)
        assert state.get(key) is None
        with pytest.raises(ConfigurationError, match=re.escape(f"a key looks like {key}")):
            state.get({"user": "u1"})
        with pytest.raises(ConfigurationError, match=r"column \w+ must be of type \w+, such as .*a key looks like {"):
            state.get(dict.fromkeys(key, "x"))


def test_a_closed_reader_is_reported(written: StoreBuilder, opened: Open) -> None:
    """A use after `with` says so, also of a view at another version."""
    state = opened(written.store)
    view = state.at(1)
    state.close()
    for read in (state.refresh, lambda: list(state), lambda: view.get(user("a")), lambda: state.history(user("a"))):
        with pytest.raises(ConfigurationError, match=r"the state is closed; read it before close\(\)"):
            read()


def test_at_other_versions(written: StoreBuilder, opened: Open) -> None:
    state = opened(written.store)
    assert state.versions() == [1, 2, 3]
    assert by_user(state.at(1)) == [row("a", 1), row("b", 1)]
    assert state.at(2).get({"user": "b"}) == row("b", 1)
    assert len(state.at(2)) == 3
    assert state.version == 3
    with pytest.raises(VersionMissingError, match=r"cannot be read; .*version=4 versions=1-3"):
        state.at(4)
    with pytest.raises(VersionMissingError):
        state.at(0)
    assert state.at(np.int64(2)).version == 2


@pytest.mark.parametrize("version", ["x", 1.0, True, [1]])
def test_a_version_is_a_whole_number(written: StoreBuilder, opened: Open, version: Any) -> None:
    state = opened(written.store)
    reads: list[Callable[[], Any]] = [
        lambda: state.at(version),
        lambda: list(state.changes(version)),
        lambda: list(state.changes(1, version)),
        lambda: list(state.diff(1, version)),
        lambda: list(state.diff(version, 1)),
    ]
    for read in reads:
        with pytest.raises(ConfigurationError, match=r"a version is a whole number, such as 41; .* version=") as wrong:
            read()
        assert wrong.value.facts == {"version": repr(version)}


def test_changes(written: StoreBuilder, opened: Open) -> None:
    state = opened(written.store)
    assert list(state.changes(1)) == [
        Change(2, "put", row("a", 2)),
        Change(2, "put", row("c", 1)),
        Change(3, "remove", {"user": "b"}),
    ]
    assert [each.version for each in state.changes(0, 2)] == [1, 1, 2, 2]
    assert list(state.changes(3)) == list(state.changes(5, 2)) == []
    assert not list(state.diff(2, 2))
    assert len(list(state.diff(0, 1))) == 2
    with pytest.raises(VersionMissingError):
        list(state.changes(1, 9))


def test_history(written: StoreBuilder, opened: Open) -> None:
    state = opened(written.store)
    assert state.history({"user": "a"}) == [Past(1, row("a", 1)), Past(2, row("a", 2))]
    assert state.history({"user": "b"}) == [Past(1, row("b", 1)), Past(3, None)]
    assert state.history({"user": "c"}) == [Past(2, row("c", 1))]
    assert state.history({"user": "d"}) == []
    written.commit((user("a"), counted(2)))
    assert state.refresh()
    assert state.history({"user": "a"})[-1] == Past(2, row("a", 2)), "the same value again is no change"


@pytest.mark.parametrize("is_forked", [False, True])
def test_versions_without_their_snapshot_are_reported_as_deleted(
    written: StoreBuilder, engine: Engine, tables: MemoryTables, opened: Open, *, is_forked: bool
) -> None:
    """Versions without their snapshot may still be listed: clean-up has not ended, or a fork has pinned the list.

    They are reported as deleted, also after a clean-up that retains more.
    """
    for number in range(4, 46):
        written.commit((user("a"), counted(number)))
        if number in (19, 42):
            assert compact_store(engine, tables, written.store) is not None
        if number == 43 and is_forked:
            fork_namespace(tables, written.store.partition("/")[0], "test", None)
    run, newest, oldest = written.run, written.version, 42 if is_forked else 19
    if is_forked:
        assert clean_store(engine, tables, written.store, 2).oldest == 42
    else:
        assert engine.maintenance.clean_up(written.store, run, *newest, 2, 1, 5)[1] > 0
    assert min(graph(tables, written.store).versions()) < oldest
    state = opened(written.store)
    assert state.versions() == list(range(oldest, 46))
    assert inspect_store(tables, written.store).oldest == oldest
    assert [each.version for each in state.history(user("a"))] == list(range(oldest, 46))
    with pytest.raises(VersionMissingError, match=f"versions={oldest}-45"):
        state.at(oldest - 1)
    assert engine.maintenance.clean_up(written.store, run, *newest, 40, 1, 0)[0].items_deleted == 0
    assert opened(written.store).versions() == list(range(oldest, 46))


@pytest.mark.parametrize("seed", range(3))
def test_random_versions(engine: Engine, store: str, opened: Open, tables: MemoryTables, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311  # the same rows at every run
    models = random_models(StoreBuilder(engine, store), dice, lambda: compact_store(engine, tables, store))
    state = opened(store)
    for number in range(1, 16):
        view = state.at(number)
        assert by_user(view) == [models[number][name] for name in sorted(models[number])]
        assert len(view) == len(models[number])
        for name in dice.sample(NAMES, 5):
            assert view.get(user(name)) == models[number].get(name)
    for name in NAMES:
        steps = [(models[each - 1].get(name), Past(each, models[each].get(name))) for each in range(1, 16)]
        assert state.history(user(name)) == [past for row_before, past in steps if past.row != row_before]
    for low, high in ((1, 15), (4, 9), (12, 3)):
        differing = {str(each.key["user"]): (each.before, each.after) for each in state.diff(low, high)}
        pairs = {name: (models[low].get(name), models[high].get(name)) for name in NAMES}
        assert differing == {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def random_models(
    builder: StoreBuilder, dice: random.Random, compact: Callable[[], object]
) -> list[dict[str, dict[str, Any]]]:
    """Commit 15 versions, with a snapshot after every fifth; the rows of each by their users, from version 0 on."""
    models = [dict[str, dict[str, Any]]()]
    for number in range(1, 16):
        model = dict(models[-1])
        changes: list[tuple[Row, Row | None]] = []
        for name in dice.sample(NAMES, dice.randint(0, 8)):
            if name in model and dice.random() < 0.4:
                del model[name]
                changes.append((user(name), None))
            else:
                model[name] = row(name, number, "x" * dice.randrange(20))
                changes.append((user(name), counted(number, model[name]["note"])))
        builder.commit(*changes)
        models.append(model)
        if number % 5 == 0:
            assert compact() is not None
    return models


def test_lists_and_families(engine: Engine, store: str, opened: Open) -> None:
    """A list state has its values in one column; with several state variables the family must be given."""
    listed = family(1, "seen", value=(("at", "long"),), multiple=True)
    timers = family(2, "$timers", value=(("__dummy__", "void"),), internal=True)
    builder = StoreBuilder(engine, store, family(), listed, timers)
    builder.commit((user("a"), {"at": 1}), (user("a"), {"at": 2}), of=1)
    builder.commit((user("a"), {"at": 3}), (user("b"), {"at": 4}), of=1)
    builder.commit((user("a"), {"__dummy__": None}), of=2)
    state = opened(store)
    assert (state.family, state.has_lists, len(state)) == ("seen", True, 2)
    assert state.get({"user": "a"}) == {"user": "a", "values": [{"at": 1}, {"at": 2}, {"at": 3}]}
    assert state.get({"user": "b"}) == {"user": "b", "values": [{"at": 4}]}
    assert state.at(1).get({"user": "a"}) == {"user": "a", "values": [{"at": 1}, {"at": 2}]}
    assert [(each.kind, each.row["values"]) for each in state.changes(1, 2)] == [
        ("append", [{"at": 3}]),
        ("put", [{"at": 4}]),
    ]
    assert [len(each.row["values"]) for each in state.history({"user": "a"}) if each.row] == [2, 3]
    (changed, _) = sorted(state.diff(1, 2), key=lambda each: str(each.key))
    assert (changed.before, changed.after) == (state.at(1).get(user("a")), state.at(2).get(user("a")))
    assert list(opened(store, "$timers")) == [{"user": "a", "__dummy__": None}]
    assert list(opened(store, "default")) == []
    with pytest.raises(ConfigurationError, match=r"no column family x; it has default, seen, \$timers"):
        opened(store, "x")
    builder.families.append(family(3, "other"))
    builder.commit()
    with pytest.raises(ConfigurationError, match="say which column family; this store has seen, other"):
        opened(store)
    # A family that an older version does not have has no rows there.
    assert opened(store, "other").at(2).get(user("a")) is None
    assert list(opened(store, "other").at(2)) == []
    assert list(opened(store, "other").at(2).changes(0)) == []


def test_a_state_variable_that_was_dropped_and_added_again(engine: Engine, store: str, opened: Open) -> None:
    """The version that drops a family removes its rows: these are changes like others."""
    first, second = family(), family(1, "second")
    builder = StoreBuilder(engine, store, first, second)
    builder.commit((user("a"), counted(1)), (user("b"), counted(1)), of=1)
    described = [RowChange(PUT, 1, key, None) for _, key in list(builder.state)]
    write_attempt = engine.begin(store, query_run(builder.run), *builder.version, attempt(2))
    hashes = [key_hash(each.key) for each in described]
    write_attempt.append(Chunk(len(described), min(hashes), max(hashes), encode_changes(described)))
    write_attempt.commit({0: 0}, json.dumps({"families": [first]}, separators=(",", ":")))
    builder.version, builder.families = VersionId(2, attempt(2)), [first]
    builder.state.clear()
    builder.commit()
    builder.families = [first, second]
    builder.commit((user("b"), counted(1)), of=1)
    state = opened(store, "second")
    assert state.history(user("a")) == [Past(1, row("a", 1)), Past(2, None)]
    assert state.history(user("b")) == [Past(1, row("b", 1)), Past(2, None), Past(4, row("b", 1))]
    assert [(each.version, each.kind, each.row["user"]) for each in state.changes(1)] == [
        (2, "remove", "a"),
        (2, "remove", "b"),
        (4, "put", "b"),
    ]
    for last in (2, 3):
        changes = sorted(state.diff(1, last), key=lambda each: str(each.key))
        assert [(each.key["user"], each.before, each.after) for each in changes] == [
            ("a", row("a", 1), None),
            ("b", row("b", 1), None),
        ]
    assert [each.key["user"] for each in state.diff(1, 4)] == ["a"]


@pytest.mark.parametrize("was", [4, 25])
def test_a_version_behind_a_restart(engine: Engine, tables: MemoryTables, store: str, opened: Open, was: int) -> None:
    """The query restarted at an earlier version, and clean-up deleted the base of its old ones: not corrupt.

    Found by the simulation: make sim SEED=423.
    """
    builder = StoreBuilder(engine, store).count_to(was)
    behind = opened(store, cache_mb=0)
    builder.take_back(2).count(103)
    compact_store(engine, tables, store)
    builder.count(*range(104, 107))
    assert clean_store(engine, tables, store, 1).items > 0
    for look in (lambda: behind.get(user("a")), lambda: list(behind)):
        with pytest.raises(VersionMissingError, match="the query restarted at an earlier one; refresh"):
            look()
    assert behind.refresh()
    assert behind.get(user("a")) == row("a", 106)
    # They are reported as corrupt, also where the newest version is unknown.
    tables.items = {key: item for key, item in tables.items.items() if key.role == "snapshot"}
    with pytest.raises(CorruptStateError):
        list(behind)
    tables.items = {key: item for key, item in tables.items.items() if not key.sort.startswith("schema")}
    with pytest.raises(CorruptStateError):
        list(behind)


def test_changes_after_a_version_that_was_made_again(engine: Engine, store: str, opened: Open) -> None:
    """They are refused to a reader that was there, with the newest version that is common."""
    builder = StoreBuilder(engine, store).count_to(10)
    state, behind, late = opened(store), opened(store), opened(store)
    builder.take_back(5).count(106, 107)
    assert state.refresh()
    assert (state.version, state.versions()) == (7, list(range(1, 8)))
    for view in (state, state.at(7), state.of_family(state.family)):
        for base in range(6, 11):
            with pytest.raises(VersionMissingError, match=r"taken back.*common=5") as refused:
                list(view.changes(base))
            assert refused.value.facts["common"] == 5
    with pytest.raises(VersionMissingError, match="has not made this version"):
        list(state.changes(11))
    assert [each.row["count"] for each in state.changes(5)] == [106, 107]

    builder.count(*range(108, 113))
    assert late.refresh()
    assert late.version == 12
    with pytest.raises(VersionMissingError, match=r"taken back.*common=5"):
        list(late.changes(10))
    assert not late.refresh()
    with pytest.raises(VersionMissingError, match=r"taken back.*common=5"):
        list(late.changes(10))
    assert state.refresh()
    assert [each.row["count"] for each in state.changes(7)] == list(range(108, 113))
    assert [each.row["count"] for each in behind.changes(8)] == [9, 10], "it stays where it is"


@pytest.mark.parametrize("base", [2, 5])
def test_changes_after_clean_up(engine: Engine, tables: MemoryTables, store: str, opened: Open, base: int) -> None:
    """The oldest listed version says which one it was built on: the reader's, or one that was made again."""
    builder = StoreBuilder(engine, store).count_to(5)
    state = opened(store)
    builder.take_back(base).count(*range(101 + base, 106))
    compact_store(engine, tables, store)
    builder.count(106, 107)
    clean_store(engine, tables, store, 2)
    assert state.refresh()
    assert state.versions() == [6, 7]
    if base == 5:
        assert [each.row["count"] for each in state.changes(5)] == [106, 107]
    else:
        for first in range(1, 6):
            with pytest.raises(
                VersionMissingError, match=r"(has deleted|that was read remains).*: read all rows again store="
            ) as refused:
                list(state.changes(first))
            assert "common" not in refused.value.facts
    assert state.get(user("a")) == row("a", 107)


def test_a_location_that_is_adopted_again(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """Only its checkpoint says from which version its query starts: until it commits, the other's is the newest."""
    builder = StoreBuilder(engine, store).count_to(5)
    adopt_stores(tables, [store], "file:/moved/state")
    other = StoreBuilder(engine, store, run="moved", location="file:/moved/state")
    other.version, other.state = VersionId(3, attempt(3)), builder.state
    other.count(104, 105, 106)
    adopt_stores(tables, [store], CHECKPOINT)
    with opened(store) as state:
        assert (state.version, state.get(user("a"))) == (6, row("a", 106))
        builder.run = "run-2"
        builder.commit((user("a"), counted(6)))
        assert state.refresh()
        assert (state.version, state.get(user("a"))) == (6, row("a", 6))
        with pytest.raises(VersionMissingError, match=r"taken back.*common=3"):
            list(state.changes(6))


def test_a_version_that_was_made_again_is_a_new_one(engine: Engine, store: str, opened: Open) -> None:
    """With the same number as before."""
    builder = StoreBuilder(engine, store).count_to(3)
    state = opened(store)
    builder.take_back(2).count(103)
    assert state.refresh()
    assert (state.version, state.get(user("a"))) == (3, row("a", 103))
    with pytest.raises(VersionMissingError, match=r"taken back.*common=2"):
        list(state.changes(3))


def test_a_list_that_was_removed_and_merged_again_does_not_differ(engine: Engine, store: str, opened: Open) -> None:
    """A list that is removed and merged again with its old value does not differ between the versions.

    Found by the simulation: make sim SEED=108.
    """
    builder = StoreBuilder(engine, store, family(value=(("at", "long"),), multiple=True))
    builder.commit((user("a"), {"at": 1}))
    removed, put = builder._record(0, user("a"), None), builder._record(0, user("a"), {"at": 1})
    under_way = engine.begin(store, query_run(builder.run), *builder.version, attempt(2))
    for change in (removed, put._replace(operation=MERGE)):
        digest = key_hash(change.key)
        under_way.append(Chunk(1, digest, digest, encode_changes([change])))
    under_way.commit({0: 1}, json.dumps({"families": builder.families}))
    state = opened(store)
    assert state.get(user("a")) == state.at(1).get(user("a")) == {"user": "a", "values": [{"at": 1}]}
    assert [each.kind for each in state.changes(1)] == ["remove", "append"]
    assert list(state.diff(1, 2)) == []
    assert [each.version for each in state.history(user("a"))] == [1]


def test_equal_column_names_are_made_distinct(engine: Engine, store: str, opened: Open) -> None:
    builder = StoreBuilder(engine, store, family(value=(("user", "long"), ("sum", "long"), ("sum", "long"))))
    builder.commit((user("a"), {"user": 1, "sum": 2, "sum#2": 3}))
    state = opened(store)
    assert state.get({"user": "a"}) == {"user": "a", "user#2": 1, "sum": 2, "sum#2": 3}
    assert state.value_columns.names == ("user#2", "sum", "sum#2")


def test_whole_numbers_beside_nulls_are_not_rounded_by_pandas(engine: Engine, store: str, opened: Open) -> None:
    """Not in a column, and not in a list."""
    large, longs = 2**53 + 1, {"type": "array", "elementType": "long", "containsNull": True}
    builder = StoreBuilder(engine, store, family(value=(("n", "long"), ("l", longs))))
    builder.commit((user("a"), {"n": large, "l": [large, None]}), (user("b"), {"n": None, "l": None}))
    frame = opened(store).to_pandas().set_index("user")
    assert str(frame["n"].dtype) == "Int64"
    assert (frame["n"]["a"], list(frame["l"]["a"])) == (large, [large, None])
    assert frame["n"].isna()["b"]


def test_a_refresh_reads_only_new_items(written: StoreBuilder, opened: Open) -> None:
    state = opened(written.store)
    for name in "abc":
        state.get(user(name))
    for number in range(4, 30):
        written.commit((user("a"), counted(number)))
        meter_before = replace(state.meter)
        assert state.refresh()
        assert state.meter.requests - meter_before.requests == 1
        assert state.get(user("a")) == row("a", number)
        assert state.meter.requests - meter_before.requests == 2
        assert state.meter.items_read - meter_before.items_read <= 2 + 3  # a part; a list or two, meta, schema
    meter_before = replace(state.meter)
    assert not state.refresh()
    assert state.get(user("c")) == row("c", 1)
    assert state.meter.requests - meter_before.requests == 1


@pytest.mark.parametrize("was", [5, 15])
def test_the_newest_version_is_that_of_the_newest_run(engine: Engine, store: str, opened: Open, was: int) -> None:
    """The newest version is that of the newest run, though an older run had committed higher ones."""
    old = StoreBuilder(engine, store)
    for number in range(1, was + 1):
        old.commit((user("old"), counted(number)))
    state = opened(store)
    new = StoreBuilder(engine, store, run="run-2")
    new.commit((user("new"), counted(1)), by=attempt(77))
    assert state.refresh()
    assert (state.version, list(state), state.versions()) == (1, [row("new", 1)], [1])
    with pytest.raises(VersionMissingError):
        state.at(5)
    with pytest.raises(VersionMissingError, match=r"taken back.*common=0"):
        list(state.changes(was))
    assert [each.row["count"] for each in state.changes(0)] == [1]


def test_a_reader_discards_deleted_versions(
    written: StoreBuilder, engine: Engine, tables: MemoryTables, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted versions are discarded after a while, so that a reader may run for months."""
    monkeypatch.setattr(opening, "ADDED_MAX", 20)
    state = opened(written.store)
    for number in range(4, 100):
        written.commit((user("a"), counted(number)))
        if number % 5 == 0:
            compact_store(engine, tables, written.store)
            clean_store(engine, tables, written.store, 2)
        assert state.refresh()
        assert state.get(user("a")) == row("a", number)
        assert len(state.versions()) <= 20 + 2 + 10  # and those of the list that the last clean-up left


def test_a_version_that_is_deleted(written: StoreBuilder, engine: Engine, tables: MemoryTables, opened: Open) -> None:
    state = opened(written.store, cache_mb=0)
    old = state.at(1)
    written.count_to(11)
    assert compact_store(engine, tables, written.store) is not None
    written.commit((user("a"), counted(12)))
    clean_store(engine, tables, written.store, 2)
    with pytest.raises(VersionMissingError):
        old.get(user("a"))
    assert state.refresh()
    assert by_user(state) == [row("a", 12), row("c", 1)]
    assert state.history(user("a"))[-1] == Past(12, row("a", 12))


def test_fall_back_from_a_snapshot(written: StoreBuilder, engine: Engine, tables: MemoryTables, opened: Open) -> None:
    """Readers fall back to older data, as recovery does; without any, the error names the table."""
    assert compact_store(engine, tables, written.store) is not None
    manifest = next(key for key in tables.items if key.sort.startswith("snapshot_manifest/"))
    tables.items[manifest]["data"] = b"corrupt"
    assert by_user(opened(written.store)) == [row("a", 2), row("c", 1)]
    part = next(key for key in tables.items if key.role == "delta")
    del tables.items[part]
    with pytest.raises(CorruptStateError, match="table=dynastate-delta"):
        list(opened(written.store))


def test_frames(engine: Engine, store: str, opened: Open) -> None:
    value = (("at", "timestamp"), ("price", "decimal(30,2)"), ("tags", {"type": "array", "elementType": "string"}))
    builder = StoreBuilder(engine, store, family(value=value))
    moment = datetime(2024, 5, 1, tzinfo=timezone.utc)
    builder.commit((user("a"), {"at": moment, "price": None, "tags": ["x", None]}))
    state = opened(store)
    table = state.to_arrow()
    assert [str(field.type) for field in table.schema] == [
        "string",
        "timestamp[us, tz=UTC]",
        "decimal128(30, 2)",
        "list<item: string>",
    ]
    assert table.to_pylist() == list(state)
    assert list(state.to_pandas()["at"]) == [moment]
    assert state.at(1).to_arrow() == table


def test_a_type_that_parquet_lacks_is_refused(engine: Engine, store: str, opened: Open, tmp_path: Path) -> None:
    """A struct without fields, which Arrow has and Parquet has not, is an error."""
    builder = StoreBuilder(engine, store, family(value=(("nothing", struct([])),)))
    builder.commit()
    state = opened(store)
    with pytest.raises(ConfigurationError, match=r"a column does not fit into Parquet: .*struct"):
        write_parquet(state.columns, state, tmp_path / "rows.parquet", lambda _: None)


@pytest.mark.parametrize("missing", ["pyarrow", "pandas"])
def test_frames_are_extras(written: StoreBuilder, opened: Open, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    state = opened(written.store)
    assert len(list(state)) == 2
    with pytest.raises(ConfigurationError, match=re.escape(f"{missing} is not installed here; pip install")):
        state.to_pandas()


def test_an_empty_state_has_columns(engine: Engine, store: str, opened: Open) -> None:
    StoreBuilder(engine, store).commit()
    assert opened(store).to_arrow().schema.names == ["user", "count", "note"]
    other = f"{store}-global"
    StoreBuilder(engine, other, family(key=())).commit(({}, counted(5)))
    state = opened(other)
    assert state.get({}) == {"count": 5, "note": ""}
    assert state.to_arrow().num_rows == 1


def test_open_state_over_http(http: BotoTables, engines: Engines, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}.items():
        monkeypatch.setenv(name, value)
    StoreBuilder(engines(http), store).count_to(1)
    with open_state(store, endpoint=http.settings.endpoint, region=http.settings.region) as state:
        assert list(state) == [row("a", 1)]
    with pytest.raises(ConfigurationError, match="table nowhere"):
        open_state(store, endpoint=http.settings.endpoint, region=http.settings.region, snapshot_table="nowhere")


def test_snapshots_on_request_are_those_of_executors(
    engine: Engine, store: str, tables: MemoryTables, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second snapshot writes the changed buckets only; lists and large rows are among the rows."""
    monkeypatch.setattr(pace, "PAUSE_MAX_S", 0.0)
    lists = family(1, "seen", value=(("at", "string"),), multiple=True)
    builder = StoreBuilder(engine, store, family(), lists)
    names = [f"user-{number:05d}" for number in range(3_000)]
    builder.commit(*((user(name), counted(1, "n" * 500)) for name in names))
    builder.commit(*((user("a"), {"at": f"{n}" * 9_000}) for n in range(100)), of=1)
    assert engine.maintenance.snapshot(store, "run-1", *builder.version, 1, 10)[0] is None
    first = compact_store(engine, tables, store)
    assert first is not None
    assert (first.version, first.rows) == (2, 3_001)
    builder.commit((user(names[7]), counted(7)))
    second = compact_store(engine, tables, store)
    assert second is not None
    assert second.bytes_written < first.bytes_written / 2
    assert compact_store(engine, tables, store) is None
    opening = engine.open(store, *builder.version)
    assert (opening.snapshot, opening.entries) == (3, ())
    contents: dict[tuple[int, bytes], list[bytes]] = {}
    for chunk in opening.snapshot_chunks:
        for change in decode_changes(chunk.changes):
            values = contents.setdefault((change.family, change.key), [])
            values.append(change.value or b"")
    assert contents == builder.state
    assert len(opened(store, "seen").get(user("a"))["values"]) == 100  # type: ignore[index]  # it is there


def test_compact_and_clean_act_for_the_writing_run(written: StoreBuilder, engine: Engine, tables: MemoryTables) -> None:
    """Compact and clean leave the epoch as it is, so that the query runs on; an unknown store is an error."""
    meta = meta_key(written.store)
    meta_item = dict(tables.items[meta])
    assert compact_store(engine, tables, written.store) is not None
    clean_store(engine, tables, written.store, 2)
    assert tables.items[meta] == meta_item
    written.commit((user("a"), counted(9)))
    with pytest.raises(VersionMissingError, match="no state of this store"):
        compact_store(engine, tables, f"{written.store}-none")


def test_compact_and_clean_leave_a_new_run_alone(
    written: StoreBuilder, engine: Engine, engines: Engines, tables: MemoryTables, opened: Open
) -> None:
    """Parts that a new run has written at an old version, and not committed yet, are not deleted."""
    written.count_to(11)
    other = engines()
    key = meta_key(written.store)
    fresh = StoreBuilder(other, written.store, run="run-2")
    under_way = other.begin(written.store, query_run("run-2"), *EMPTY, attempt(99))
    record = fresh._record(0, user("b"), counted(1))
    digest = key_hash(record.key)
    under_way.append(Chunk(1, digest, digest, encode_changes([record])))
    under_way._submit()
    under_way._pending.wait(10)
    items_before = dict(tables.items)
    for upkept in (
        lambda: compact_store(engine, tables, written.store),
        lambda: clean_store(engine, tables, written.store, 2),
    ):
        with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
            upkept()
    assert tables.items == items_before
    under_way.commit({0: 1}, json.dumps({"families": [family()]}))
    assert tables.items[key]["epoch"] == 2
    clean_store(engine, tables, written.store, 2)
    assert list(opened(written.store)) == [row("b", 1)]
