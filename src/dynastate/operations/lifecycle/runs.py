"""The query runs of a store: those that its meta item lists, and those that its version lists refuse."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dynastate.engine.catalog import read_version_lists
from dynastate.engine.graphs import find_meta, read_metas
from dynastate.engine.updates import add_to_set
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import Key, location_of, meta_key, version_list_key, versions_of, where
from dynastate.format.meta import StoreMeta
from dynastate.format.version_list import REFUSED, VERSIONS, VersionEntry
from dynastate.storage.tables import Tables


def read_meta(tables: Tables, store: str) -> StoreMeta:
    """The content of a store's meta item, which it must have."""
    meta = find_meta(tables, store)
    if meta is None:
        raise CorruptStateError("the store's meta item is lost", **where(meta_key(store)))
    return meta


def writing_run(tables: Tables, store: str, newest: VersionEntry) -> str:
    """The run that committed the newest version. Refuse a store in which a newer run has begun.

    If that run started over, it may have written parts of lower versions, without a commit yet: no version seems to
    need them.
    """
    epochs = read_meta(tables, store).epochs
    run = max(epochs, key=epochs.__getitem__)
    if epochs[run] != newest.epoch:
        raise ConfigurationError(
            "a newer run of the query has begun, and has committed nothing to this store yet; try again when it has",
            store=store,
            epoch=epochs[run],
            newest=newest.epoch,
        )
    return run


def refuse_copy(tables: Tables, stores: Sequence[str], checkpoint: str) -> None:
    """Refuse a checkpoint whose files name stores that belong to another checkpoint, or to none yet."""
    location = location_of(f"{checkpoint}/state")
    for store, meta in read_metas(tables, stores).items():
        owner = meta.location
        if owner != location:
            namespace = store.split("/", maxsplit=1)[0]
            raise ConfigurationError(
                f"this checkpoint names the state of namespace {namespace}, which belongs to the checkpoint "
                f"{owner.removesuffix('/state') or '(none yet)'}. If this is a copy: start the query on its "
                "fork once, so that it names the fork's state. If the checkpoint was moved: dynastate "
                f"adopt {namespace} --checkpoint {location.removesuffix('/state')}",
                checkpoint=checkpoint,
            )


def refuse_runs(tables: Tables, store: str, runs: Collection[str], expected: Collection[Key] = ()) -> None:
    """Make version lists of a store refuse the commits of runs: the first list, each one, its successor, `expected`.

    A run commits one version after the other, from a listed version or from version 0, so it cannot pass these lists.
    The lists are read again until the runs have begun no other list.
    """
    refusing_keys: set[Key] = set()
    while True:
        listed_keys = [key for key, item in read_version_lists(tables, store).items() if VERSIONS in item]
        next_keys = (version_list_key(store, versions_of(key).stop) for key in listed_keys)
        missing_keys = {version_list_key(store, 1), *expected, *listed_keys, *next_keys} - refusing_keys
        if not missing_keys or not runs:
            return
        for key in sorted(missing_keys):
            item: Item = item_key(key) | {"format": FORMAT, REFUSED: frozenset(runs)}
            is_there = add_to_set(tables, key, REFUSED, runs) is not None
            if is_there or tables.put_new(key, item):
                refusing_keys.add(key)
