"""Room in version lists: attempts that no run will read are deleted from a list before its item is full.

The length of the list decides when to delete. `unneeded` selects the attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError
from dynastate.format.items import Item
from dynastate.format.keys import VersionId, meta_key, version_list_key
from dynastate.format.meta import FORKS, StoreMeta, parse_meta
from dynastate.format.version_list import REFUSED, VersionEntry, listed_entry, parse_list, shorter_list
from dynastate.redaction import get_logger
from dynastate.runtime import limits
from dynastate.storage.tables import Tables

log = get_logger("dynastate.store")

#: Above this many entries, attempts are deleted from a version list.
LISTED_MAX: Final = 100
#: Above this many bytes, too. DynamoDB takes 409,600 bytes, and an entry has 13,000 at most. So several commits still
#: fit after a failure to shorten the list.
LIST_BYTES_MAX: Final = 250_000
#: A full list is shortened to this share of its bytes.
FULL_SHARE: Final = 0.6
#: Attempts of this number of the newest runs stay in a list that has little room. A run that was suspended while
#: another made its version may be the newest by its epoch.
RUNS_KEPT: Final = 2
#: How often a list is read if commits change it meanwhile.
_TRIES: Final = 5


def is_long(raws: list[bytes]) -> bool:
    """Whether a version list is to be shortened."""
    return len(raws) > LISTED_MAX or sum(map(len, raws)) > LIST_BYTES_MAX


def shorten(tables: Tables, store: str, entry: VersionEntry, *, is_full: bool = False) -> bool:
    """Delete attempts from the version list of an entry, which is listed or about to be.

    The `unneeded` attempts are deleted while the list has too many entries or bytes, or `is_full`. Clean-up finds their
    parts. Returns False if none may be deleted. Nothing is deleted unless the entry is of the newest run. Refuse to
    shorten a list that forks depend on.
    """
    next_version = entry.version + limits().list_size
    key, following = (version_list_key(store, version) for version in (entry.version, next_version))
    for _ in range(_TRIES):
        items = tables.get([key, following, meta_key(store)])
        if key not in items or meta_key(store) not in items:
            return False
        item, meta = items[key], parse_meta(store, items[meta_key(store)])
        if meta.epoch != entry.epoch:
            return False
        raws = parse_list(key, item)
        entries = {raw: listed_entry(store, key, raw) for raw in raws}
        children = parse_list(following, items[following]) if following in items else []
        parents = {listed_entry(store, following, raw).parent_id for raw in children}
        most = min(LIST_BYTES_MAX, int(FULL_SHARE * sum(map(len, raws)))) if is_full else LIST_BYTES_MAX
        rest = _shortened(entries, parents, meta, entry, most=most, is_full=is_full)
        if len(rest) == len(raws):
            return False
        if FORKS in item:
            forks = item[FORKS]
            names = ", ".join(sorted({each.split("/")[0] for each in forks})) if isinstance(forks, frozenset) else ""
            raise ConfigurationError(
                f"a version list has no room, and nothing is deleted from it while forks depend on it: {names}. Drop "
                "them with 'dynastate drop'",
                store=store,
                version=entry.version,
            )
        old_item: Item = {name: item[name] for name in ("versions", REFUSED) if name in item}
        if tables.put_over(key, shorter_list(key, rest, item), unchanged(old_item)):
            return True
    return False


def refuse_full(store: str, entry: VersionEntry) -> ConfigurationError:
    """The error of a commit to a list that is full of attempts that may be needed."""
    return ConfigurationError(
        "a version list is full, 400 KB, of attempts by this run or the one before it: restart the query, at most "
        "twice, and the list is shortened. Find in Spark's log why tasks or batches fail after state is committed, or "
        "use more shuffle partitions, which makes entries smaller",
        store=store,
        version=entry.version,
    )


def _shortened(
    entries: Mapping[bytes, VersionEntry],
    parents: Iterable[VersionId],
    meta: StoreMeta,
    entry: VersionEntry,
    *,
    most: int,
    is_full: bool,
) -> list[bytes]:
    """The rest of a list's entries, in order: if possible, `LISTED_MAX` entries and `most` bytes.

    `parents` are the parents of the entries in the next list.
    """
    rest = dict(entries)
    entries_over, bytes_over = len(rest) - LISTED_MAX, sum(map(len, rest)) - most
    while max(entries_over, bytes_over) > 0 and (raws := unneeded(rest, parents, meta, entry, is_full=is_full)):
        for raw in raws:
            if max(entries_over, bytes_over) > 0:
                del rest[raw]
                entries_over, bytes_over = entries_over - 1, bytes_over - len(raw)
    return list(rest)


def unneeded(
    entries: Mapping[bytes, VersionEntry],
    parents: Iterable[VersionId],
    meta: StoreMeta,
    entry: VersionEntry,
    *,
    is_full: bool,
) -> list[bytes]:
    """The entries of a list that no run will read, the least useful first. They may be deleted.

    `entry` is of the newest run, and listed or about to be. It proves two things about the driver at the start of this
    run. The driver had not committed the version of the entry or a later one, and it named the bases of the entry. A
    run that has only entered the store proves nothing. So these attempts, not chosen by the driver, may be deleted:

    - attempts by runs before the last `RUNS_KEPT` that have entries in this list, at any version;
    - attempts by the run of the entry at lower versions.

    A run that was suspended before its first write proves nothing of what drivers committed meanwhile, and it may have
    the newest epoch. So the proof is asked of a second run, too. In a list that is full no later run has an entry, so
    there a run counts when it has entered the store.

    These attempts are never deleted:

    - the entry and its bases, and the base of any attempt in this list, or in the next list, which has `parents`;
    - attempts from another checkpoint location, which may be adopted again;
    - the last attempt at each version above the entry, and at its own until it is listed, so that no version is lost;
    - the last attempt of each other query at each version, which the number means if its checkpoint is restored.
    """
    by_id = {each.id: each for each in entries.values()}
    needed_ids = {*parents, *(each.parent_id for each in entries.values()), entry.id}
    base = entry.parent_id
    while base in by_id:
        needed_ids.add(base)
        base = by_id[base].parent_id
    # An entry that is about to be listed may not be: the list may have no room for it all the same.
    first = entry.version if entry.id not in by_id else entry.version + 1
    last = {each.version: each.id for each in entries.values() if each.version >= first}
    queries = {each.id: meta.query_at(each.epoch) for each in entries.values()}
    last_of_query = {(each.version, queries[each.id]): each.id for each in entries.values()}
    current = meta.query_at(entry.epoch)
    needed_ids |= {*last.values(), *(version for version in last_of_query.values() if queries[version] != current)}
    epochs = sorted({entry.epoch, *(each.epoch for each in entries.values() if each.epoch < entry.epoch)})
    oldest = entry.epoch - RUNS_KEPT if is_full else epochs[-RUNS_KEPT:][0] - 1
    candidates = [
        (min(each.version, entry.version), each.version, each.epoch, raw)
        for raw, each in entries.items()
        if each.id not in needed_ids
        and (each.epoch <= oldest or (each.epoch == entry.epoch and each.version < entry.version))
        and meta.location_at(each.epoch) in ("", meta.location)
    ]
    return [raw for *_, raw in sorted(candidates, key=lambda candidate: candidate[:3])]
