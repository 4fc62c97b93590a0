"""The query runs of a store, as its meta item lists them."""

from __future__ import annotations

from collections.abc import Collection

from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import Item
from dynastate.format.keys import meta_key, where
from dynastate.format.meta import parse_meta
from dynastate.format.version_list import VersionEntry


def read_meta(tables: Tables, store: str, meter: Meter) -> Item:
    """Read the store's meta item."""
    key = meta_key(store)
    found = tables.get([key], meter).get(key)
    if found is None:
        raise CorruptStateError("the store's meta item is lost", **where(key))
    parse_meta(store, found)
    return found


def runs_of(tables: Tables, store: str, meter: Meter) -> Collection[str]:
    """Ids of the newest query runs that have opened a store for writing."""
    epochs, _ = parse_meta(store, read_meta(tables, store, meter))
    return epochs.keys()


def writing_run(tables: Tables, store: str, newest: VersionEntry) -> str:
    """The run that committed the newest version.

    Raises:
        ConfigurationError: a newer run has begun. It may have written versions below this one without a commit yet,
            after a start from no checkpoint: they look as if no version needed them.
    """
    epochs, _ = parse_meta(store, read_meta(tables, store, Meter()))
    run = max(epochs, key=epochs.__getitem__)
    if epochs[run] != newest.epoch:
        raise ConfigurationError(
            "a newer run of the query has begun, and has committed nothing to this store yet; try again when it has",
            store=store,
            epoch=epochs[run],
            newest=newest.epoch,
        )
    return run
