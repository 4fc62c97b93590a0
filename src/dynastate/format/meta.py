"""The item that describes a store, and the items of its schemas (docs/storage-format.md)."""

from __future__ import annotations

from typing import Final

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT, Item, check_format, item_key, number
from dynastate.format.keys import SHARDS_MAX, Key, meta_key, schema_digest, schema_key, where

#: The newest runs whose epochs a meta item lists.
EPOCHS_KEPT: Final = 16
#: The forks that depend on an item, by their stores. It is not replaced or deleted while there are any.
FORKS: Final = "forks"
#: In the meta item of a fork: its origin, the version, and the sort keys there that it still depends on.
ORIGIN, ORIGIN_VERSION, PINS = "origin", "origin_version", "pins"
#: In the meta item of a store that is being dropped.
DROPPED: Final = "dropped"


def parse_meta(store: str, meta: Item) -> tuple[dict[str, int], int]:
    """Epochs by run, and shards, of a store's meta item.

    Raises:
        CorruptStateError: it is corrupt, of an unknown format, or another store's.
    """
    key = meta_key(store)
    check_format(key, meta)
    newest, epochs, shards = number(key, meta, "epoch"), meta.get("epochs"), number(key, meta, "shards")
    if not isinstance(epochs, dict) or not 1 <= len(epochs) <= newest:
        raise CorruptStateError("the store's meta item is corrupt: it has no epochs", **where(key))
    if not 1 <= shards <= SHARDS_MAX or meta.get("store") != store:
        raise CorruptStateError("the store's meta item is corrupt, or another's", **where(key))
    # Epochs are given out one by one, and only the oldest are forgotten.
    if sorted(epochs.values()) != list(range(newest - len(epochs) + 1, newest + 1)):
        raise CorruptStateError("the store's meta item is corrupt: its epochs have a gap", **where(key))
    return epochs, shards


def newest_epoch(meta: Item | None, run_id: str) -> int | None:
    """The epoch of a run, if it is the newest that writes to the store. A run is entered before it writes."""
    epochs = (meta or {}).get("epochs")
    own = epochs.get(run_id) if isinstance(epochs, dict) else None
    return own if meta is not None and own == meta.get("epoch") else None


def meta_lost(store: str) -> CorruptStateError:
    return CorruptStateError("the store has versions, but its meta item is lost", **where(meta_key(store)))


def schema_item(key: Key, schema: str) -> Item:
    """The item that describes how rows are read."""
    return item_key(key) | {"format": FORMAT, "text": schema}


def parse_schema(key: Key, item: Item) -> str:
    """The schema text of a schema item, its digest verified.

    Raises:
        CorruptStateError: it has no text, or not the text its key names.
    """
    text = item.get("text")
    if not isinstance(text, str) or schema_key("", schema_digest(text)).sort != key.sort:
        raise CorruptStateError("schema item does not have the content that its key names", **where(key))
    return text
