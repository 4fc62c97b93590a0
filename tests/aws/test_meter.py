"""The units that dynastate counts, compared with those that DynamoDB says were consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.updates import append_version
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, meta_key, part_key, store_shard, version_list_key
from dynastate.storage.meter import Meter, units_of_write
from tests.aws.place import Place
from tests.aws.spending import READS, Ledger

#: Bytes on both sides of where another unit begins, as far as the item's names leave room.
SIZES = (0, 1, 500, 900, 950, 1_000, 1_024, 2_000, 3_900, 4_000, 4_096, 12_345, 100_000)


@pytest.fixture
def tables(place: Place) -> Iterator[BotoTables]:
    with closing(place.ledger.watch(BotoTables(place.settings))) as tables:
        yield tables


def consumed(ledger: Ledger, call: Callable[[Meter], object]) -> tuple[tuple[float, float], Meter]:
    """What DynamoDB says of the requests of a call, writes and reads, and what dynastate's meter says."""
    start, meter = len(ledger.by_request), Meter()
    call(meter)
    charges = ledger.by_request[start:]
    writes = sum(units for operation, units in charges if operation not in READS)
    return (writes, sum(units for _, units in charges) - writes), meter


def _get(tables: BotoTables, keys: list[Key], meter: Meter) -> None:
    tables.metered(meter).get(keys)


def _append(tables: BotoTables, key: Key, entry: bytes, meter: Meter) -> None:
    append_version(tables.metered(meter), key, entry, "run-1")


def _put_new(tables: BotoTables, key: Key, item: Item, meter: Meter) -> None:
    tables.metered(meter).put_new(key, item)


def parts(store: str) -> list[tuple[Key, Item]]:
    keys = [part_key(store, 1, NO_ATTEMPT, number, 1) for number in range(len(SIZES))]
    return [
        (key, item_key(key) | {"format": FORMAT, "data": bytes(size)}) for key, size in zip(keys, SIZES, strict=True)
    ]


def test_units_are_those_that_dynamodb_counts(place: Place, tables: BotoTables, store: str) -> None:
    """Writes, reads of several items and of a range, and deletes, to the unit."""
    items, ledger = parts(store), place.ledger
    keys = [key for key, _ in items]
    (writes, reads), meter = consumed(ledger, lambda meter: tables.metered(meter).write(items))
    assert (writes, reads) == (meter.write_units, 0)
    (writes, reads), meter = consumed(ledger, lambda meter: tables.metered(meter).get(keys))
    assert (writes, reads) == (0, meter.read_units)
    (writes, reads), meter = consumed(
        ledger, lambda meter: tables.metered(meter).query("delta", store_shard(store, 0), "0", "~")
    )
    assert (writes, reads) == (0, meter.read_units)
    (writes, reads), _ = consumed(ledger, lambda meter: tables.metered(meter).delete(keys))
    assert (writes, reads) == (sum(units_of_write(item_bytes(item)) for _, item in items), 0)


def test_missing_items_are_counted_as_dynamodb_counts_them(place: Place, tables: BotoTables, store: str) -> None:
    """A key without an item takes a unit, beside one that has an item, and alone."""
    if place.is_local:
        pytest.skip("DynamoDB Local takes nothing for a missing item beside another; AWS documents that it does")
    (item, *_) = parts(store)
    tables.write([item])
    missing_key = part_key(store, 9, NO_ATTEMPT, 0, 1)
    for keys in ([item[0], missing_key], [missing_key]):
        (writes, reads), meter = consumed(place.ledger, partial(_get, tables, keys))
        assert (writes, reads) == (0, meter.read_units)


def test_commits_are_counted_as_dynamodb_counts_them(place: Place, tables: BotoTables, store: str) -> None:
    """A version list that grows is paid for whole at each append."""
    key = version_list_key(store, 1)
    for size in SIZES:
        append = partial(_append, tables, key, bytes(size))
        (writes, reads), meter = consumed(place.ledger, append)
        assert (writes, reads) == (meter.write_units, 0), size


def test_new_items_are_counted_as_dynamodb_counts_them(place: Place, tables: BotoTables, store: str) -> None:
    """The item that is put if its key does not exist."""
    for number, size in enumerate(SIZES):
        key = meta_key(f"{store}{number}")
        item: Item = item_key(key) | {"format": FORMAT, "data": bytes(size)}
        (writes, reads), meter = consumed(place.ledger, partial(_put_new, tables, key, item))
        assert (writes, reads) == (meter.write_units, 0), size
