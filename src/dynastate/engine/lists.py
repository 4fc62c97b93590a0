"""Room in version lists: attempts that no run will read are deleted from a list before its item is full.

How long a list is decides when; `unneeded` decides what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError
from dynastate.format.items import FORMAT, Item
from dynastate.format.keys import VersionId, meta_key, version_list_key
from dynastate.format.meta import FORKS, StoreMeta, parse_meta
from dynastate.format.version_list import REFUSED, VersionEntry, list_item, listed_entry, parse_list
from dynastate.redaction import get_logger
from dynastate.runtime import limits
from dynastate.storage.tables import Tables

log = get_logger("dynastate.store")

#: Above this many entries, attempts are deleted from a version list.
LISTED_MAX: Final = 100
#: Above this many bytes, too. DynamoDB takes 409,600 bytes, and an entry has 13,000 at most: several commits still fit
#: after one whose shortening failed.
LIST_BYTES_MAX: Final = 250_000
#: A list that is full is shortened to this part of it.
FULL_SHARE: Final = 0.6
#: Attempts of this number of the newest runs are left in a list that is short of room: a run that was suspended while
#: another made its version may be the newest by its epoch.
RUNS_KEPT: Final = 2
#: How often a list is read again that commits change meanwhile.
_TRIES: Final = 5


def is_long(listed: list[bytes]) -> bool:
    """Whether a version list is to be shortened."""
    return len(listed) > LISTED_MAX or sum(map(len, listed)) > LIST_BYTES_MAX


def shorten(tables: Tables, store: str, entry: VersionEntry, *, is_full: bool = False) -> bool:
    """Delete attempts from the version list of an entry, which is listed or about to be; False: none may be deleted.

    As long as the list has too many entries or bytes, or `is_full`, the `unneeded` ones are deleted. Clean-up finds
    their parts.

    Nothing is deleted unless the entry is of the newest run.

    Raises:
        ConfigurationError: the list is full, and forks depend on it.
    """
    next_version = entry.version + limits().list_size
    key, after = (version_list_key(store, version) for version in (entry.version, next_version))
    for _ in range(_TRIES):
        items = tables.get([key, after, meta_key(store)])
        if key not in items or meta_key(store) not in items:
            return False
        item, meta = items[key], parse_meta(store, items[meta_key(store)])
        if meta.epoch != entry.epoch:
            return False
        listed = parse_list(key, item)
        entries = {raw: listed_entry(store, key, raw) for raw in listed}
        parents = {listed_entry(store, after, raw).parent_id for raw in parse_list(after, items.get(after, _NONE))}
        most = min(LIST_BYTES_MAX, int(FULL_SHARE * sum(map(len, listed)))) if is_full else LIST_BYTES_MAX
        left = _shortened(entries, parents, meta, entry, most)
        if len(left) == len(listed):
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
        refused = item.get(REFUSED, frozenset())
        before: Item = {name: item[name] for name in ("versions", REFUSED) if name in item}
        shorter = list_item(key, left, refused if isinstance(refused, frozenset) else ())
        if tables.put_over(key, shorter, unchanged(before)):
            return True
    return False


def refuse_full(store: str, entry: VersionEntry) -> ConfigurationError:
    """The error of a commit to a list that is full of attempts that may be needed."""
    return ConfigurationError(
        "a version list is full, 400 KB, of attempts that this run or the one before it has made: start the query "
        "again, at most twice, and the list is shortened. Find in Spark's log why tasks or batches fail after state is "
        "committed, or use more shuffle partitions, which makes entries smaller",
        store=store,
        version=entry.version,
    )


_NONE: Final[Item] = {"format": FORMAT, "versions": []}


def _shortened(
    entries: Mapping[bytes, VersionEntry], parents: Iterable[VersionId], meta: StoreMeta, entry: VersionEntry, most: int
) -> list[bytes]:
    """The entries that are left in a list, in order; `LISTED_MAX` of them and `most` bytes, if possible.

    `parents` are those of the entries in the list after it.
    """
    left = dict(entries)
    entries_over, bytes_over = len(left) - LISTED_MAX, sum(map(len, left)) - most
    while max(entries_over, bytes_over) > 0 and (going := unneeded(left, parents, meta, entry)):
        for raw in going:
            if max(entries_over, bytes_over) > 0:
                del left[raw]
                entries_over, bytes_over = entries_over - 1, bytes_over - len(raw)
    return list(left)


def unneeded(
    entries: Mapping[bytes, VersionEntry], parents: Iterable[VersionId], meta: StoreMeta, entry: VersionEntry
) -> list[bytes]:
    """The entries of a list that no run will read, the least useful first: the rule for what may be deleted.

    `entry` is of the newest run, and listed or about to be. That it is written proves that the driver, when this run
    began, had committed no version from the entry's own on, and that it named the entry's bases. A run that has only
    entered the store proves nothing. So those may be deleted that another than the driver's choice made:

    - attempts by runs before the last `RUNS_KEPT`, at any version;
    - attempts by the entry's own run at lower versions.

    Never deleted are the entry and its bases, the base of any listed attempt (`parents` are those of the list after
    this one), what was made from another checkpoint location, which may be adopted again, the last attempt at each
    version above the entry's: such a version is not lost; and the last one of each other query at each version, which
    its number means when its checkpoint is restored.
    """
    by_id = {each.id: each for each in entries.values()}
    needed = {*parents, *(each.parent_id for each in entries.values()), entry.id}
    base = entry.parent_id
    while base in by_id:
        needed.add(base)
        base = by_id[base].parent_id
    last = {each.version: each.id for each in entries.values() if each.version > entry.version}
    queries = {each.id: meta.query_at(each.epoch) for each in entries.values()}
    last_of_query = {(each.version, queries[each.id]): each.id for each in entries.values()}
    current = meta.query_at(entry.epoch)
    needed |= {*last.values(), *(version for version in last_of_query.values() if queries[version] != current)}
    oldest = entry.epoch - RUNS_KEPT
    going = [
        (min(each.version, entry.version), each.version, each.epoch, raw)
        for raw, each in entries.items()
        if each.id not in needed
        and (each.epoch <= oldest or (each.epoch == entry.epoch and each.version < entry.version))
        and meta.location_at(each.epoch) in ("", meta.location)
    ]
    return [raw for *_, raw in sorted(going, key=lambda each: each[:3])]
