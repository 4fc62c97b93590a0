"""Tables that take less than is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, part_key, store_shard
from dynastate.runtime import Limits
from dynastate.storage.meter import Meter
from tests.aws.place import Place, own_tables

#: Write units a second that the table takes. DynamoDB lets in a burst, too: what was not used of the last 300 s.
RATE = 10
BURST = 300 * RATE
#: Those that are written: with the burst in a minute, without it in six.
UNITS = BURST + 60 * RATE


@pytest.fixture
def limited(place: Place) -> Iterator[BotoTables]:
    """Tables of which that for deltas takes a few units a second."""
    if place.is_local:
        pytest.skip("DynamoDB Local throttles nothing")
    with own_tables(place.settings, place.say) as settings:
        with closing(make_client(settings)) as client:
            limit = {"MaxWriteRequestUnits": RATE, "MaxReadRequestUnits": -1}
            client.update_table(TableName=settings.delta_table, OnDemandThroughput=limit)
            client.get_waiter("table_exists").wait(TableName=settings.delta_table)
        with closing(place.ledger.watch(BotoTables(settings))) as tables:
            yield tables


@pytest.mark.timeout(900)
def test_throttled_writes_are_durable_in_the_end(limited: BotoTables, store: str) -> None:
    """Every item is there, none is lost, and the meter has counted the throttles."""
    keys = [part_key(store, 1, NO_ATTEMPT, number, 1) for number in range(UNITS // 2)]
    items: list[tuple[Key, Item]] = [(key, item_key(key) | {"format": FORMAT, "data": bytes(1_100)}) for key in keys]
    meter = Meter()
    for start in range(0, len(items), Limits.writes_max):
        limited.metered(meter).write(items[start : start + Limits.writes_max])
    assert limited.query("delta", store_shard(store, 0), "0", "~") == items
    assert meter.throttles > 0
    assert meter.write_units == UNITS
