"""Names and keys of both tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import CorruptStateError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import (
    SORT_KEY_BYTES_MAX,
    Attempt,
    check_store,
    graph_range,
    meta_key,
    part_key,
    schema_digest,
    schema_key,
    version_list_key,
)
from dynastate.format.meta import parse_schema
from dynastate.format.parts import PARTS_MAX
from dynastate.runtime import Limits
from dynastate.storage.limits import PARTITION_KEY_BYTES_MAX
from tests.support.samples import A

STORE = "ns/0/0/default"
ATTEMPTS = st.binary(min_size=16, max_size=16).map(Attempt)


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_an_attempt_is_sixteen_bytes(length: int) -> None:
    with pytest.raises(CorruptStateError, match="16 bytes"):
        Attempt(bytes(length))


def test_the_longest_keys_fit_into_dynamodb() -> None:
    store = check_store("é" * 512)
    for key in (
        part_key(store, 2**64 - 1, A, PARTS_MAX - 1, 256),
        version_list_key(store, 2**64 - 1),
        schema_key(store, bytes(8)),
        meta_key(store),
    ):
        assert len(key.store_shard.encode()) <= PARTITION_KEY_BYTES_MAX
        assert len(key.sort.encode()) <= SORT_KEY_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), ATTEMPTS, st.integers(0, PARTS_MAX - 1)), max_size=6))
def test_parts_sort_as_their_numbers_do(places: list[tuple[int, Attempt, int]]) -> None:
    keys = {place: part_key(STORE, place[0], place[1], place[2], 1).sort for place in places}
    assert sorted(places, key=keys.__getitem__) == sorted(places)


@given(st.integers(1, 10**16), st.integers(0, 10**16))
def test_the_range_of_an_opening_holds_what_it_can_need(version: int, below: int) -> None:
    """Between its ends lie the groups from the lowest version up, meta, schemas and snapshots, and no older group."""
    lowest = max(0, version - below)
    low, high = graph_range(lowest, version)
    needed = [version_list_key(STORE, lowest), version_list_key(STORE, version), meta_key(STORE)]
    snapshots = [f"snapshot/{0:020d}/{A.hex()}", f"snapshot/{version:020d}/{'f' * 32}"]
    for sort in (*[key.sort for key in needed], schema_key(STORE, bytes(8)).sort, *snapshots):
        assert low <= sort <= high
    assert f"bucket/{version:020d}" < low
    if lowest >= Limits.list_size:
        assert version_list_key(STORE, lowest - Limits.list_size).sort < low


def test_parts_are_spread_over_all_shards() -> None:
    """Part n of version v lies in shard (v + n) mod shards, so small versions do not all meet in shard 0."""
    assert [part_key(STORE, 6, A, n, 4).store_shard[-1] for n in range(5)] == list("23012")
    assert [part_key(STORE, version, A, 0, 4).store_shard[-1] for version in range(1, 6)] == list("12301")


def test_the_size_of_an_item() -> None:
    """An item's size is that of its names and values by DynamoDB's rules, and never less than DynamoDB's."""
    item: Item = {"text": "é", "data": b"123", "number": 12345, "list": [b"1", b"22"], "map": {"é": 1}}
    names = sum(len(name) for name in item)
    assert item_bytes(item) == names + 2 + 3 + (2 + 2) + (3 + 2 + 3) + (3 + 1 + 2 + 2)


def test_schema_items_are_named_by_their_content() -> None:
    text = '{"families":[]}'
    key = schema_key(STORE, schema_digest(text))
    assert parse_schema(key, {"text": text}) == text
    corrupt_items: list[Item] = [{"text": text + " "}, {"text": b"bytes"}, {}]
    for corrupt in corrupt_items:
        with pytest.raises(CorruptStateError, match=f"item={key.sort}"):
            parse_schema(key, corrupt)
