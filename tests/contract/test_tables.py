"""The contract of every implementation of the seam to DynamoDB."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from dynastate.engine.updates import advance_epoch, append_version
from dynastate.errors import ConfigurationError, InternalError, ItemFullError, UnavailableError
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Attempt, Key, part_key, store_shard, version_list_key
from dynastate.format.keys import meta_key as meta_key_of
from dynastate.format.meta import EPOCHS_KEPT
from dynastate.runtime import Limits
from dynastate.storage.limits import ITEM_BYTES_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update
from tests.support.memory_tables import MemoryTables

RUN = "6d0f7a3e-0000-4000-8000-000000000000"


@pytest.fixture(params=["memory", "moto", "http", "boto3"])
def tables(request: pytest.FixtureRequest) -> Tables:
    implementation: Tables = request.getfixturevalue(request.param)
    return implementation


def parts(store: str, count: int, size: int = 10) -> list[tuple[Key, Item]]:
    """Make items of the delta table, all in one shard."""
    keys = [part_key(store, 1, NO_ATTEMPT, sequence, 1) for sequence in range(count)]
    return [(key, item_key(key) | {"format": FORMAT, "data": bytes([n % 256]) * size}) for n, key in enumerate(keys)]


def everything(tables: Tables, store: str) -> list[tuple[Key, Item]]:
    return tables.query("delta", store_shard(store, 0), "0", "~")


def test_tables_that_fit_have_no_drift(tables: Tables) -> None:
    assert tables.check() == []


def test_items_come_back_with_every_kind_of_value(tables: Tables, store: str) -> None:
    key = part_key(store, 2**64 - 1, Attempt(b"\xff" * 16), 999_999, 1)
    values: Item = {
        "text": "dé\u2028jà \U0001f600 #/",
        "empty": "",
        "data": bytes(range(256)),
        "no_data": b"",
        "number": 2**63,
        "negative": -1,
        "list": [b"", b"\x00", b"two"],
        "empty_list": [],
        "map": {"a-run.id": 1, "#": 2},
        "empty_map": {},
    }
    tables.write([(key, item_key(key) | values)])
    assert tables.get([key]) == {key: item_key(key) | values}
    assert everything(tables, store) == [(key, item_key(key) | values)]


def test_get_leaves_out_missing_items(tables: Tables, store: str) -> None:
    (part,) = parts(store, 1)
    meta_key = meta_key_of(store)
    meta: Item = item_key(meta_key) | {"format": FORMAT}
    tables.write([part, (meta_key, meta)])
    keys = [part[0], meta_key, version_list_key(store, 1), part[0]._replace(sort="other")]
    assert tables.get(keys) == {part[0]: part[1], meta_key: meta}
    assert tables.get(keys[2:]) == {}


def test_a_hundred_keys_in_one_get(tables: Tables, store: str) -> None:
    """A hundred items come back by one call, also where they are more than one answer holds."""
    items = parts(store, 100, size=20_000)
    for start in range(0, 100, 25):
        tables.write(items[start : start + 25])
    assert tables.get([key for key, _ in items]) == dict(items)


def test_query_gives_a_range_in_order_with_both_ends(tables: Tables, store: str) -> None:
    """A query gives the items from the low to the high sort key, both with them, in byte order, of one partition."""
    keys = [Key("snapshot", store, sort) for sort in ("a", "b", "b0", "bé", "c", "d", "Z")]
    other = Key("snapshot", store + "0", "b")
    tables.write([(key, item_key(key)) for key in [other, *reversed(keys)]])
    pairs = tables.query("snapshot", store, "b", "c")
    assert [key.sort for key, _ in pairs] == ["b", "b0", "bé", "c"]
    assert [item for _, item in pairs] == [item_key(key) for key, _ in pairs]
    assert tables.query("snapshot", store, "e", "f") == []
    assert tables.query("delta", store, "a", "d") == []


def test_query_reads_every_page(tables: Tables, store: str) -> None:
    """What does not fit into one answer of 1 MB comes all the same, to the last item."""
    items = parts(store, 7, size=380_000)
    tables.write(items)
    assert everything(tables, store) == items


def test_write_replaces_and_is_seen_at_once(tables: Tables, store: str) -> None:
    ((key, item),) = parts(store, 1)
    tables.write([(key, item | {"more": 1})])
    tables.write([(key, item)])
    assert tables.get([key]) == {key: item}


def test_twenty_five_of_both_tables_in_one_write(tables: Tables, store: str) -> None:
    meta = meta_key_of(store)
    items = [*parts(store, 24), (meta, item_key(meta) | {"format": FORMAT})]
    tables.write(items)
    assert tables.get([key for key, _ in items]) == dict(items)


def test_delete_takes_existing_and_missing_keys(tables: Tables, store: str) -> None:
    items = parts(store, 5)
    tables.write(items)
    keys = [key for key, _ in items[:3]]
    tables.delete([*keys, keys[0]._replace(sort="never there")])
    tables.delete(keys)
    assert everything(tables, store) == items[3:]


def test_put_new_takes_a_key_once(tables: Tables, store: str) -> None:
    key = meta_key_of(store)
    assert tables.put_new(key, item_key(key) | {"who": "first"}) is True
    assert tables.put_new(key, item_key(key) | {"who": "second"}) is False
    assert tables.get([key]) == {key: item_key(key) | {"who": "first"}}


def test_append_version_keeps_the_order(tables: Tables, store: str) -> None:
    key = version_list_key(store, 1)
    for entry in (b"one", b"\x00two", b"one"):
        append_version(tables, key, entry, "run-1")
    versions: Item = {"format": FORMAT, "versions": [b"one", b"\x00two", b"one"]}
    assert tables.get([key]) == {key: item_key(key) | versions}


def test_a_list_that_should_exist_is_not_made(tables: Tables, store: str) -> None:
    """A fence does not become a list either; the error says which of both it is."""
    list_key, fence = version_list_key(store, 1), version_list_key(store, 10)
    fence_item = item_key(fence) | {"format": FORMAT, "refused": frozenset({"run-1"})}
    assert tables.put_new(fence, fence_item)
    for key, run, message in (
        (list_key, "run-1", "not listed"),
        (fence, "run-2", "not listed"),
        (fence, "run-1", "drop"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            append_version(tables, key, b"two", run, must_exist=True)
    assert tables.get([list_key, fence]) == {fence: fence_item}
    append_version(tables, list_key, b"one", "run-1")
    assert append_version(tables, list_key, b"two", "run-1", must_exist=True) == [b"one", b"two"]


def test_nothing_is_appended_unless_somebody_waits(tables: Tables, store: str) -> None:
    """A commit whose task has ended is an error of which nothing is stored."""
    key = version_list_key(store, 1)
    with pytest.raises(UnavailableError, match="this task ended before its commit was sent"):
        append_version(tables, key, b"one", "run-1", lambda: False)
    assert tables.get([key]) == {}


def test_an_item_with_400_kb_takes_nothing_more(tables: Tables, store: str) -> None:
    """What grows is refused by DynamoDB, and stays as it is: version lists and meta items."""
    list_key, meta = version_list_key(store, 1), meta_key_of(store)
    # The embedded DynamoDB counts more: bytes as they are sent, in base64, and a list before and after.
    full: Item = {"format": FORMAT, "versions": [bytes(60_000)]}
    others: Item = {"format": FORMAT, "epoch": 1, "epochs": {RUN: 1}, "pad": bytes(60_000)}
    items = {list_key: item_key(list_key) | full, meta: item_key(meta) | others}
    tables.write(list(items.items()))
    append_version(tables, list_key, bytes(10_000), "run-1")
    items[list_key]["versions"] = [bytes(60_000), bytes(10_000)]
    with pytest.raises(ItemFullError, match="400 KB"):
        append_version(tables, list_key, bytes(360_000), "run-1")
    with pytest.raises(ItemFullError, match="400 KB"):
        advance_epoch(tables, meta, "run-2", {RUN: 1}, {"locations": {"2": "x" * 360_000}})
    # moto changes a part of the meta item, and refuses then.
    assert tables.get([list_key])[list_key] == items[list_key]


def test_advance_epoch_enters_each_run_once(tables: Tables, store: str) -> None:
    """A new run gets the next epoch, in the oldest one's place; not if another run was faster, or a drop deletes."""
    key = meta_key_of(store)
    meta: Item = item_key(key) | {"format": FORMAT, "epoch": 1, "epochs": {RUN: 1}, "dropped": 1}
    tables.put_new(key, meta)
    assert advance_epoch(tables, key, "run.2", {"run-0": 1}, {}) is False
    assert tables.get([key]) == {key: meta}
    assert advance_epoch(tables, key, "run.2", {RUN: 1}, {}) is True
    assert tables.get([key]) == {key: item_key(key) | {"format": FORMAT, "epoch": 2, "epochs": {RUN: 1, "run.2": 2}}}
    assert advance_epoch(tables, key, "run-3", {RUN: 1}, {}) is False
    epochs = {RUN: 1, "run.2": 2}
    for epoch in range(3, EPOCHS_KEPT + 2):
        assert advance_epoch(tables, key, f"run-{epoch}", epochs, {}) is True
        epochs[f"run-{epoch}"] = epoch
    del epochs[RUN]
    expected: Item = {"format": FORMAT, "epoch": EPOCHS_KEPT + 1, "epochs": epochs}
    assert tables.get([key]) == {key: item_key(key) | expected}
    deleting: Item = item_key(key) | expected | {"dropped": 2}
    tables.write([(key, deleting)])
    assert advance_epoch(tables, key, "run-new", epochs, {}) is False
    assert tables.get([key]) == {key: deleting}
    other = meta_key_of(f"{store}x")
    assert advance_epoch(tables, other, "run-4", {RUN: 1}, {}) is False
    assert tables.get([other]) == {}


def test_units_are_counted_by_dynamodbs_rules(tables: Tables, store: str) -> None:
    """One write unit a KB of each item, one read unit for 4 KB: of each item in a get, of the sum in a query."""
    items = parts(store, 3, size=1024)
    writes, gets, queries, deletes, appends = (Meter() for _ in range(5))
    tables.metered(writes).write(items)
    assert (writes.requests, writes.write_units, writes.items_written) == (1, 6, 3)
    assert writes.bytes_written == sum(item_bytes(item) for _, item in items)
    tables.metered(gets).get([key for key, _ in items])
    assert (gets.requests, gets.read_units, gets.items_read) == (1, 3, 3)
    tables.metered(missing_get := Meter()).get([items[0][0], part_key(store, 9, NO_ATTEMPT, 0, 1)])
    assert (missing_get.read_units, missing_get.items_read) == (2, 1), "an item that does not exist is paid for, too"
    tables.metered(queries).query("delta", store_shard(store, 0), "0", "~")
    assert (queries.requests, queries.read_units, queries.items_read) == (1, 1, 3)
    tables.metered(deletes).delete([key for key, _ in items])
    assert (deletes.requests, deletes.items_deleted, deletes.write_units) == (1, 3, 0)
    append_version(tables.metered(appends), version_list_key(store, 1), bytes(900), "run-1")
    assert (appends.requests, appends.write_units) == (1, 1)
    append_version(tables.metered(appends), version_list_key(store, 1), bytes(200), "run-1")
    assert (appends.requests, appends.write_units) == (2, 3), "an update pays for the whole item"


def test_an_update_without_a_condition_makes_the_item_or_adds_to_it(tables: Tables, store: str) -> None:
    """As the list of checkpoints is written: an attribute and a text of a set in one request, whatever is there."""
    key = version_list_key(store, 1)
    item = item_key(key) | {"format": FORMAT}
    assert tables.update(key, Update(Condition(), sets={"format": FORMAT})) == item
    for text, texts in (("a", {"a"}), ("b", {"a", "b"}), ("a", {"a", "b"})):
        update = Update(Condition(), sets={"format": FORMAT}, adds={"objects": frozenset([text])})
        assert tables.update(key, update) == item | {"objects": frozenset(texts)}
    assert tables.get([key]) == {key: item | {"objects": frozenset(["a", "b"])}}


def test_too_many_items_or_one_key_twice_are_refused(tables: Tables, store: str) -> None:
    """A write has 1 to 25 items, a get 1 to 100 keys, none of them twice: else nothing is sent, not even a part."""
    items = parts(store, 101)
    one, other = keys = [key for key, _ in items[:2]]
    calls: list[tuple[str, Callable[[], object]]] = [
        ("no or too many items", lambda: tables.write(items[:26])),
        ("no or too many items", lambda: tables.write([])),
        ("no or too many items", lambda: tables.delete([key for key, _ in items[:26]])),
        ("no or too many items", lambda: tables.delete([])),
        ("no or too many items", lambda: tables.get([key for key, _ in items])),
        ("no or too many items", lambda: tables.get([])),
        ("one key twice", lambda: tables.write([*items[:2], items[0]])),
        ("one key twice", lambda: tables.delete([*keys, one])),
        ("one key twice", lambda: tables.get([one, other, one])),
    ]
    for message, call in calls:
        with pytest.raises(InternalError, match=message):
            call()
    assert everything(tables, store) == []


def test_an_item_over_400_kb_is_refused(tables: Tables, store: str) -> None:
    """An item larger than DynamoDB takes is refused with all that was to be written with it; the largest goes in."""
    one, (key, _) = parts(store, 2)
    room = ITEM_BYTES_MAX - item_bytes(item_key(key) | {"data": b""})
    largest: Item = item_key(key) | {"data": bytes(room)}
    larger: Item = item_key(key) | {"data": bytes(room + 1)}
    with pytest.raises(InternalError, match=f"too large for DynamoDB item={key.sort} item_bytes=400001"):
        tables.write([one, (key, larger)])
    with pytest.raises(InternalError, match="too large for DynamoDB"):
        tables.put_new(key, larger)
    assert everything(tables, store) == []
    tables.write([(key, largest)])
    assert tables.get([key]) == {key: largest}


def test_the_largest_write_fits_into_a_request(tables: Tables, store: str) -> None:
    """25 items of the largest size are under the 16 MB that DynamoDB takes on the wire, so none is refused for that."""
    items = parts(store, Limits.writes_max, size=399_000)
    assert Limits.writes_max * (len(base64.b64encode(bytes(ITEM_BYTES_MAX))) + 1024) < 16_000_000
    tables.write(items)
    tables.delete([key for key, _ in items])


#: Each verb that takes a key.
VERBS: dict[str, Callable[[Tables, Key], object]] = {
    "write": lambda tables, key: tables.write([(key, item_key(key))]),
    "delete": lambda tables, key: tables.delete([key]),
    "get": lambda tables, key: tables.get([key]),
    "put_new": lambda tables, key: tables.put_new(key, item_key(key)),
    "update": lambda tables, key: append_version(tables, key, b"", "run-1"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "key",
    [
        Key("snapshot", "", "meta"),
        Key("snapshot", "store", ""),
        Key("snapshot", "p" * 2049, "meta"),
        Key("snapshot", "store", "é" * 513),
    ],
    ids=["empty partition key", "empty sort key", "long partition key", "long sort key"],
)
def test_keys_that_are_empty_or_too_long_are_refused(tables: Tables, verb: str, key: Key) -> None:
    """A partition key has 1 to 2,048 bytes, a sort key 1 to 1,024."""
    with pytest.raises(InternalError, match="empty or too long"):
        VERBS[verb](tables, key)


def test_the_memory_fake_keeps_copies() -> None:
    """What a test does to an item it has read or written does not change the one in memory."""
    tables = MemoryTables()
    key = version_list_key("s", 1)
    append_version(tables, key, b"one", "run-1")
    versions = tables.get([key])[key]["versions"]
    assert isinstance(versions, list)
    versions.append(b"two")
    assert tables.get([key])[key]["versions"] == [b"one"]
