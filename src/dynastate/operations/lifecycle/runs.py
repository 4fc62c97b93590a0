"""The query runs of a store: those that its meta item lists, and those that its version lists refuse."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dynastate.engine.catalog import read_version_lists
from dynastate.engine.updates import add_to_set
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import Key, location_of, meta_key, version_list_key, versions_of, where
from dynastate.format.meta import StoreMeta, parse_meta
from dynastate.format.version_list import REFUSED, VERSIONS, VersionEntry
from dynastate.storage.tables import Tables, get_apart


def read_meta(tables: Tables, store: str) -> tuple[Item, StoreMeta]:
    """Read the store's meta item; return it, and its content."""
    key = meta_key(store)
    found = tables.get([key]).get(key)
    if found is None:
        raise CorruptStateError("the store's meta item is lost", **where(key))
    return found, parse_meta(store, found)


def writing_run(tables: Tables, store: str, newest: VersionEntry) -> str:
    """The run that committed the newest version.

    Raises:
        ConfigurationError: a newer run has begun. It may have written versions below this one without a commit yet,
            after a start from no checkpoint: they look as if no version needed them.
    """
    epochs = read_meta(tables, store)[1].epochs
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
    """Refuse a checkpoint whose files name stores that belong to another one.

    Raises:
        ConfigurationError: the meta item of a store names the location of another checkpoint, or none.
    """
    location = location_of(f"{checkpoint}/state")
    for key, item in get_apart(tables, [meta_key(store) for store in stores]).items():
        owner = parse_meta(key.store_shard.removesuffix("#0"), item).location
        if owner != location:
            namespace = key.namespace
            raise ConfigurationError(
                f"this checkpoint names the state of namespace {namespace}, which belongs to the checkpoint "
                f"{owner.removesuffix('/state') or '(none yet)'}. If this is a copy: start the query on its "
                "fork once, so that it names the fork's state. If the checkpoint was moved: dynastate "
                f"adopt {namespace} --checkpoint {location.removesuffix('/state')}",
                checkpoint=checkpoint,
            )


def refuse_runs(tables: Tables, store: str, runs: Collection[str], expected: Collection[Key] = ()) -> None:
    """Make every version list of a store, the one after each, the first, and those `expected`, refuse runs' commits.

    A run commits one version after the other, from one that is listed or from version 0, so it cannot pass them. Lists
    that it began meanwhile are looked for again until there is none.
    """
    refusing: set[Key] = set()
    while True:
        listed = [key for key, item in read_version_lists(tables, store).items() if VERSIONS in item]
        after = (version_list_key(store, versions_of(key).stop) for key in listed)
        wanted = {version_list_key(store, 1), *expected, *listed, *after} - refusing
        if not wanted or not runs:
            return
        for key in sorted(wanted):
            item: Item = item_key(key) | {"format": FORMAT, REFUSED: frozenset(runs)}
            is_there = add_to_set(tables, key, REFUSED, runs) is not None
            if is_there or tables.put_new(key, item):
                refusing.add(key)
