"""Conditional updates of items: appends to version lists, and entries of runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from dynastate.format.items import FORMAT, Item
from dynastate.format.keys import SPECS, Key
from dynastate.format.meta import DELETING, DROPPED, EPOCH, EPOCHS, ERASING, FORKS, oldest_runs
from dynastate.format.version_list import REFUSED, VERSIONS, base_gone, not_awaited, run_refused
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update

#: Attributes by which others depend on an item: a writer that has not read them must not replace or delete it.
_PROTECTED: Final = (FORKS, REFUSED, VERSIONS)


def always() -> bool:
    """Somebody waits for the answer: the default of `append_version`."""
    return True


def unchanged(attributes: Item) -> Condition:
    """The condition that an item has these attributes.

    An item on which a fork depends, or that refuses runs or lists versions, meets it only if
    `attributes` has the attribute for that.
    """
    return Condition(equal=attributes, absent=[name for name in _PROTECTED if name not in attributes])


def append_version(
    tables: Tables,
    key: Key,
    entry: bytes,
    run: str,
    is_awaited: Callable[[], bool] = always,
    *,
    must_exist: bool = False,
) -> list[bytes]:
    """Append an entry to a version list; return the list after the append.

    Before each request `is_awaited` says whether somebody waits for the answer; otherwise nothing is sent.
    If it `must_exist`, the list must have versions, because it lists the parent of the entry.

    Raises:
        ConfigurationError: the list refuses the run, or should exist and does not.
        UnavailableError: the task has ended before the append was sent.
        UnknownOutcomeError: the append may or may not have happened.
    """
    condition = Condition(lacks={REFUSED: run}, present=[VERSIONS] if must_exist else [])
    update = Update(condition, sets={"format": FORMAT}, appends={VERSIONS: [entry]})

    def refusal() -> Exception | None:
        return None if is_awaited() else not_awaited(key, run)

    # After a lost answer, the list itself shows whether the entry is in it.
    item = tables.update(key, update, lambda item: entry in _versions(item), refusal)
    if item is not None:
        return _versions(item)
    refused_runs = tables.get([key]).get(key, {}).get(REFUSED) if must_exist else {run}
    is_refused = isinstance(refused_runs, Collection) and run in refused_runs
    raise (run_refused if is_refused else base_gone)(key, run)


def _versions(item: Item) -> list[bytes]:
    versions = item.get(VERSIONS)
    return versions if isinstance(versions, list) else []


def advance_epoch(tables: Tables, key: Key, run: str, epochs: Mapping[str, int], attributes: Item) -> bool:
    """Advance the epoch of a meta item or record by one, replace the oldest run by this run, and set `attributes`.

    It also removes the mark of a drop. Returns False if the item has other `epochs`, or a drop deletes the store's
    items, or rows of the store are erased.

    The condition compares all epochs, so that a long delayed request cannot replace the newest run. To compare the
    newest epoch is not enough: a store that was dropped and made again counts from 1.
    """
    epoch, oldest = 1 + max(epochs.values()), oldest_runs(epochs)
    newer_epochs = {name: number for name, number in epochs.items() if name not in oldest}
    changes: Item = {EPOCH: epoch, EPOCHS: {**newer_epochs, run: epoch}}
    condition = Condition(equal={EPOCHS: {**epochs}}, absent=[ERASING], unequal={DROPPED: DELETING})
    return tables.update(key, Update(condition, sets=changes | attributes, removes=[DROPPED])) is not None


def add_to_set(tables: Tables, key: Key, name: str, texts: Collection[str]) -> Item | None:
    """Add texts to a set of an item. Returns the item after the update, or None if there is no item."""
    exists = Condition(present=[SPECS[key.role].hash_key])
    return tables.update(key, Update(exists, adds={name: frozenset(texts)}))


def remove_from_set(tables: Tables, key: Key, name: str, texts: Collection[str], attributes: Item) -> Item | None:
    """Remove texts from a set of an item with these `attributes`. Returns the item after the update, or None.

    Texts that are not in the set are ignored. A set without texts is removed.
    """
    exists = Condition(present=[SPECS[key.role].hash_key], equal=attributes)
    return tables.update(key, Update(exists, subtracts={name: frozenset(texts)}))
