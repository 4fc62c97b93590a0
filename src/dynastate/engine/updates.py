"""Updates of items on conditions: appends to version lists, and entries of runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from dynastate.format.items import FORMAT, Item
from dynastate.format.keys import SPECS, Key
from dynastate.format.meta import DELETING, DROPPED, FORKS, oldest_runs
from dynastate.format.version_list import REFUSED, VERSIONS, base_gone, not_awaited, run_refused
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update

#: Attributes by which others depend on an item: who has not read them must not replace or delete it.
_PROTECTED: Final = (FORKS, REFUSED, VERSIONS)


def always() -> bool:
    """Whether somebody waits for an answer, where it makes no difference."""
    return True


def unchanged(before: Item) -> Condition:
    """The condition that an item has these attributes.

    An item that a fork depends on, that refuses runs or lists versions, meets it only where `before` names that
    attribute.
    """
    return Condition(equal=before, absent=[name for name in _PROTECTED if name not in before])


def append_version(
    tables: Tables,
    key: Key,
    entry: bytes,
    run: str,
    is_awaited: Callable[[], bool] = always,
    *,
    must_exist: bool = False,
) -> list[bytes]:
    """Append to a version list; return the list after it.

    `is_awaited` is asked before each request whether somebody waits for the answer; otherwise nothing is sent.
    `must_exist`: the list must have versions, since the one that the entry follows is among them.

    Raises:
        ConfigurationError: the list refuses the run, or should exist and does not.
        UnavailableError: the task has ended before the append was sent.
        UnknownOutcomeError: the append may or may not have happened.
    """
    condition = Condition(lacks={REFUSED: run}, present=[VERSIONS] if must_exist else [])
    update = Update(condition, sets={"format": FORMAT}, appends={VERSIONS: [entry]})

    def refusal() -> Exception | None:
        return None if is_awaited() else not_awaited(key, run)

    # After an answer was lost, the list itself says whether the entry is in it.
    item = tables.update(key, update, lambda item: entry in _versions(item), refusal)
    if item is not None:
        return _versions(item)
    refused = tables.get([key]).get(key, {}).get(REFUSED) if must_exist else {run}
    is_refused = isinstance(refused, Collection) and run in refused
    raise (run_refused if is_refused else base_gone)(key, run)


def _versions(item: Item) -> list[bytes]:
    versions = item.get(VERSIONS)
    return versions if isinstance(versions, list) else []


def advance_epoch(tables: Tables, key: Key, run: str, epochs: Mapping[str, int], also: Item) -> bool:
    """Advance the epoch of a meta item or record by one, enter the run in the place of the oldest, and set `also`.

    It also removes the mark of a drop. False: `epochs` are not those of the item any more, or a drop deletes the
    store's items.

    The condition on the epochs keeps a request that was delayed for long from making the newest run one that is over.
    Their number would not do: a store that was dropped and made again counts from 1.
    """
    epoch, oldest = 1 + max(epochs.values()), oldest_runs(epochs)
    kept = {name: number for name, number in epochs.items() if name not in oldest}
    entered: Item = {"epoch": epoch, "epochs": {**kept, run: epoch}}
    condition = Condition(equal={"epochs": {**epochs}}, unequal={DROPPED: DELETING})
    return tables.update(key, Update(condition, sets=entered | also, removes=[DROPPED])) is not None


def add_to_set(tables: Tables, key: Key, name: str, texts: Collection[str]) -> Item | None:
    """Add texts to an attribute that is a set; the item after it, None: there is no such item."""
    exists = Condition(present=[SPECS[key.role].hash_key])
    return tables.update(key, Update(exists, adds={name: frozenset(texts)}))


def remove_from_set(tables: Tables, key: Key, name: str, texts: Collection[str], before: Item) -> Item | None:
    """Remove texts from an attribute that is a set; the item after it, None: there is none with these attributes.

    Texts that are not in it are ignored. The attribute goes with its last text.
    """
    exists = Condition(present=[SPECS[key.role].hash_key], equal=before)
    return tables.update(key, Update(exists, subtracts={name: frozenset(texts)}))
