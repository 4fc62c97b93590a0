"""The cap, and the deletion of what a run made."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.engine.updates import append_version
from dynastate.errors import DynastateError
from dynastate.format.items import FORMAT, item_key
from dynastate.format.keys import meta_key, version_list_key
from dynastate.format.version_list import REFUSED
from tests.aws.place import Place, own_tables
from tests.aws.spending import Ledger, Units, planned, refuse_over
from tests.support.processes import wait_until


def test_plan_above_the_cap_ends_the_run_before_it_begins() -> None:
    """The message says what it would cost, and how to allow it."""
    refuse_over(planned().cost())
    with pytest.raises(pytest.exit.Exception, match=r"the plan costs up to \$0\.\d\d, and the cap is .*raise CAP_USD"):
        refuse_over(planned().cost() / 2)


def test_the_request_that_reaches_the_cap_ends_the_run(place: Place) -> None:
    """Each answer's units are added, those of refused requests, too."""
    ledger = Ledger(cap=Units(write=5).cost())
    with closing(ledger.watch(BotoTables(place.settings))) as tables:
        key = meta_key("spending/0/0/default")
        item = item_key(key) | {"format": FORMAT}
        assert tables.put_new(key, item)
        assert not tables.put_new(key, item)
        assert ledger.spent == Units(write=2)
        with pytest.raises(pytest.exit.Exception, match=r"are spent, and the cap is .* the tables are deleted"):
            tables.write([(key, item | {"data": bytes(5_000)})])
    place.ledger.add(ledger.spent)


def test_a_failed_condition_is_counted_by_the_item_that_is_there(place: Place) -> None:
    """By both ways of sending: an item of 6 KB, and a version list as long that refuses a run."""
    ledger = Ledger(cap=1.0)
    meta, list_key = meta_key("refused/0/0/default"), version_list_key("refused/0/0/default", 1)
    item = item_key(meta) | {"format": FORMAT}
    fence = item_key(list_key) | {"format": FORMAT, REFUSED: frozenset({"run-1"}), "data": bytes(6_000)}
    with closing(ledger.watch(BotoTables(place.settings))) as tables:
        tables.write([(meta, item | {"data": bytes(6_000)}), (list_key, fence)])
        append_version(tables, version_list_key("refused/1/0/default", 1), b"entry", "run-1")
        units = ledger.spent
        assert not tables.put_new(meta, item)
        assert ledger.spent == units + Units(write=6)
        with pytest.raises(DynastateError, match="run-1"):
            append_version(tables, list_key, b"entry", "run-1")
        assert ledger.spent == units + Units(write=12)
    place.ledger.add(ledger.spent)


def exists(client: Any, name: str) -> bool:
    try:
        client.describe_table(TableName=name)
    except client.exceptions.ResourceNotFoundException:
        return False
    return True


def test_tables_are_deleted_when_the_run_fails(place: Place) -> None:
    """Also where it fails while only one of them is there."""
    names: list[str] = []

    def fail() -> None:
        with own_tables(place.settings, place.say) as settings, closing(make_client(settings)) as client:
            names.extend((settings.delta_table, settings.snapshot_table))
            assert all(exists(client, name) for name in names)
            client.delete_table(TableName=settings.delta_table)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with closing(make_client(place.settings)) as client:
        # DescribeTable may know a table for a moment that DeleteTable does not.
        wait_until(lambda: not any(exists(client, name) for name in names), "a table is left")
        assert exists(client, place.settings.delta_table), "another run's"
