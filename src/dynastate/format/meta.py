"""The item that describes a store, and the items of its schemas (docs/storage-format.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT, Item, check_format, is_map, item_key, number
from dynastate.format.keys import SHARDS_MAX, Key, meta_key, schema_digest, schema_key, where

#: The newest runs, and the newest queries, that a meta item lists.
EPOCHS_KEPT: Final = 16
QUERIES_KEPT: Final = 16
#: The names of attributes of a meta item in conditions and updates. `forks` is also in other items that a fork needs:
#: none of them is replaced or deleted while it is there.
EPOCH, EPOCHS, LOCATIONS, HEIGHTS, OBJECTS = "epoch", "epochs", "locations", "heights", "objects"
DROPPED, FORKS, FORKED, ORIGIN, PIN, PINS = "dropped", "forks", "forked", "origin", "pin", "pins"
ERASING, ERASURES, ERASE_ID = "erasing", "erasures", "erase_id"
#: The values of `dropped`. The next run removes the mark, unless items are being deleted.
MARKED, DELETING = 1, 2
#: In a schema item, and in a version list of a fork: its last writer. A drop deletes an item only if its writer is
#: still the one that it read.
WRITER: Final = "writer"
#: In a meta item, in place of a run: the making of a fork, and an adoption. A UUID follows, so that a late request
#: fails, because it compares the runs of the meta item.
FORK, ADOPTION = "fork-", "adopt-"
_CORRUPT: Final = "the store's meta item is corrupt"

Value = TypeVar("Value", str, int)


class QueryRun(NamedTuple):
    """A run of a query: Spark's ids of the run and of the query, and the location of its checkpoint's state."""

    id: str
    query: str
    location: str


#: Metadata of an attribute that is only shown: it decides neither what is read, nor what is written or deleted.
_SHOWN: Final = {"is_shown": True}


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """The meta item of a store: a field for each attribute except `format`, `store` and `epoch`.

    `epochs` are by run id. `queries` are the ids of queries that the store belonged to, each by its first epoch. The
    last one entered at the time `began`, by the clock of its executor.
    `locations` are locations of checkpoints, each by its first epoch; a new fork has none.
    `bases` are the lowest versions that runs of a query or from a location resumed from. `heights` are the highest
    versions that existed when a location was adopted. Both are by the first epoch of the query or location. The first
    query and location have neither, except the first location of a fork, which has a base.
    `objects` are the locations of S3, as s3://bucket/prefix, in which the store may have objects.
    A fork has its `origin`, and the version that it was made of. Its `pins` are the sort keys in the origin that it
    still depends on, and its `pin` is in `forks` of these items.
    `forks` are the pins of forks that depend on the item. A store that was `forked` may lack items that a fork needed
    long after the others. A store that is to be `dropped` is MARKED, and then DELETING.
    While rows are erased from it, `erasing` is the digest of the erased keys, and `erase_id` a random id of this erase.
    `erasures` counts beginnings and ends.
    """

    shards: int
    epochs: Mapping[str, int]
    queries: Mapping[int, str]
    began: str = field(metadata=_SHOWN)
    locations: Mapping[int, str]
    bases: Mapping[int, int] = field(default_factory=dict)
    heights: Mapping[int, int] = field(default_factory=dict)
    objects: frozenset[str] = frozenset()
    origin: str = ""
    origin_version: int = 0
    pin: str = ""
    pins: frozenset[str] = frozenset()
    forks: frozenset[str] = frozenset()
    forked: frozenset[str] = frozenset()
    dropped: int = 0
    erasing: str = ""
    erasures: int = 0
    erase_id: str = ""
    package: str = field(default="", metadata=_SHOWN)
    created: str = field(default="", metadata=_SHOWN)

    @property
    def epoch(self) -> int:
        """The epoch of the newest run."""
        return max(self.epochs.values())

    @property
    def query(self) -> str:
        """The query that the store belongs to, which is the query of the newest run."""
        return self.queries[max(self.queries)]

    @property
    def last_run(self) -> str:
        """The query run that entered last. For a fork without runs, it is the making of the fork."""
        return max(query_runs(self) or self.epochs, key=self.epochs.__getitem__)

    @property
    def fork_epoch(self) -> int:
        """The epoch up to which a fork's versions are its origin's; 0 if it is not a fork, or no longer lists it."""
        return max((epoch for run, epoch in self.epochs.items() if run.startswith(FORK)), default=0)

    @property
    def location(self) -> str:
        """The location of the query that the store belongs to; empty for a fork without a run."""
        return self.location_at(self.epoch)

    @property
    def own_queries(self) -> set[str]:
        """The query, and the one that it resumed from, if it did not begin at version 0."""
        begun = max(self.queries)
        return {self.query, self.query_at(begun - 1)} if self.bases.get(begun) else {self.query}

    def location_at(self, epoch: int) -> str:
        """The location of the runs with an epoch; empty if it is not known."""
        return _at(self.locations, epoch)

    def entered_by(self, run: QueryRun, base: int, time: str) -> Item:
        """The attributes, except the epoch, that change when a run enters and resumes from version `base`."""
        changed: Item = {}
        queries, locations = dict(self.queries), dict(self.locations)
        if self.query != run.query:
            listed = {**self.queries, self.epoch + 1: run.query}
            queries = {first: listed[first] for first in sorted(listed)[-QUERIES_KEPT:]}
            changed |= {"began": time, "queries": by_epoch(queries)}
        if not self.location:
            locations = {self.epoch + 1: run.location}
            changed[LOCATIONS] = by_epoch(locations)
        newest = {max(begun) for begun in (queries, locations) if len(begun) > 1}
        if self.origin_version:
            newest.add(max(locations))
        bases = {first: each for first, each in self.bases.items() if first in {*queries, *locations}}
        bases |= {first: min(base, bases.get(first, base)) for first in newest}
        return changed if bases == self.bases else changed | {"bases": by_epoch(bases)}

    def query_at(self, epoch: int) -> str:
        """The query of the runs with an epoch; empty if it is not known."""
        return _at(self.queries, epoch)

    def is_foreign(self, version: int, epoch: int, query: str) -> bool:
        """Whether a version that a run with an epoch made belongs to another query.

        Older versions belong to a query up to the version that it resumed from. A query that never entered has no
        versions: its store was deleted, and this store belongs to another query.
        """
        if "" in (query, other := self.query_at(epoch)) or other == query:
            return False
        begun = [first for first, each in self.queries.items() if each == query]
        return not begun or min(begun) <= epoch or version > min(self.bases.get(first, version) for first in begun)

    def is_forgotten(self, epoch: int, query: str) -> bool:
        """Whether runs with an epoch are not known as the query's, and the item may have forgotten older queries.

        Then the query may be a forgotten one that made the same versions.
        """
        return query not in ("", self.query_at(epoch)) and len(self.queries) >= QUERIES_KEPT

    def claimants(self, version: int, epoch: int) -> set[str]:
        """The locations that may mean an attempt of their own by a version's number.

        Their runs may have made the version: it is above their base, and existed at their end. Or they began with the
        version, and a run with that epoch has made it again. The origin of a fork has no location, and has made all
        versions up to the version of the fork.
        """
        spans = sorted(self.locations)
        locations = {""} if version <= self.origin_version else set()
        for first, end in zip_longest(spans, spans[1:]):
            base = self.bases.get(first, 0 if first == spans[0] and not self.origin_version else version)
            may_have_made = base < version and (end is None or version <= self.heights.get(end, 0))
            if may_have_made or (first <= epoch and version <= self.heights.get(first, 0)):
                locations.add(self.locations[first])
        return locations

    def attributes(self) -> Item:
        """The attributes of the item."""
        optional: Item = {name: value for name in _OPTIONAL if (value := getattr(self, name))}
        optional |= {name: by_epoch(each) for name, each in (("bases", self.bases), (HEIGHTS, self.heights)) if each}
        return optional | {
            "shards": self.shards,
            EPOCH: self.epoch,
            EPOCHS: dict(self.epochs),
            "queries": by_epoch(self.queries),
            "began": self.began,
            LOCATIONS: by_epoch(self.locations),
        }


#: Every attribute of a meta item, without its key; those that are only shown; and the types of those that not every
#: item has.
ATTRIBUTES: Final = frozenset(["format", "store", EPOCH, *(each.name for each in fields(StoreMeta))])
SHOWN: Final = frozenset(each.name for each in fields(StoreMeta) if each.metadata)
_OPTIONAL: Final = {each.name: type(each.default) for each in fields(StoreMeta) if each.default is not MISSING}


def by_epoch(values: Mapping[int, Value]) -> dict[str, Value]:
    """Values by epochs, in the form of the item."""
    return {str(first): values[first] for first in sorted(values)}


def _at(texts: Mapping[int, str], epoch: int) -> str:
    """The text that is valid at an epoch. `texts` are by their first epochs."""
    return texts.get(max((first for first in texts if first <= epoch), default=0), "")


def meta_item(store: str, meta: StoreMeta) -> Item:
    described: Item = {"format": FORMAT, "store": store}
    return item_key(meta_key(store)) | described | meta.attributes()


def parse_meta(store: str, item: Item) -> StoreMeta:
    key = meta_key(store)
    check_format(key, item)
    newest, epochs, shards = number(key, item, EPOCH), item.get(EPOCHS), number(key, item, "shards")
    if not is_map(epochs, int) or not 1 <= len(epochs) <= newest:
        raise CorruptStateError(f"{_CORRUPT}: it has no epochs", **where(key))
    if not 1 <= shards <= SHARDS_MAX or item.get("store") != store:
        raise CorruptStateError(f"{_CORRUPT}, or another's", **where(key))
    # Epochs are given out one by one, and only the oldest are forgotten.
    if sorted(epochs.values()) != list(range(newest - len(epochs) + 1, newest + 1)):
        raise CorruptStateError(f"{_CORRUPT}: its epochs have a gap", **where(key))
    queries, began = _parse_by_epoch(key, item.get("queries"), str, newest), item.get("began")
    if not queries or not isinstance(began, str):
        raise CorruptStateError(f"{_CORRUPT}: it does not name its query", **where(key))
    locations = _parse_by_epoch(key, item.get(LOCATIONS), str, newest)
    bases, heights = (_parse_by_epoch(key, item.get(name, {}), int, newest) for name in ("bases", HEIGHTS))
    if "origin" in item:
        number(key, item, "origin_version")
    optional: dict[str, Any] = {
        name: value for name, value in item.items() if isinstance(value, _OPTIONAL.get(name, ()))
    }
    if wrong := (_OPTIONAL.keys() & item.keys()) - optional.keys() - SHOWN:
        raise CorruptStateError(f"{_CORRUPT}: attributes have wrong types: {', '.join(sorted(wrong))}", **where(key))
    return StoreMeta(shards, epochs, queries, began, locations=locations, bases=bases, heights=heights, **optional)


def parse_metas(items: Mapping[str, Item]) -> dict[str, StoreMeta]:
    """Meta items by their stores."""
    return {store: parse_meta(store, item) for store, item in items.items()}


def _parse_by_epoch(key: Key, listed: object, kind: type[Value], newest: int) -> dict[int, Value]:
    """Values by their first epochs."""
    if not is_map(listed, kind):
        raise CorruptStateError(f"{_CORRUPT}: it does not name its queries and its checkpoints", **where(key))
    values = {int(first): value for first, value in listed.items() if first.isdecimal()}
    if len(values) < len(listed) or any(first > newest for first in values):
        raise CorruptStateError(f"{_CORRUPT}: its queries or its locations are not by epoch", **where(key))
    return values


def query_runs(meta: StoreMeta) -> dict[str, int]:
    """The newest query runs, with their epochs."""
    return {run: epoch for run, epoch in meta.epochs.items() if not run.startswith((FORK, ADOPTION))}


def newest_epoch(meta: StoreMeta | None, run_id: str) -> int | None:
    """The epoch of a run that may make snapshots and clean up, or None. A run enters before it writes.

    It is None if the run is not the newest one of the store, and while rows are erased.
    """
    if meta is None or meta.erasing:
        return None
    return meta.epoch if meta.epochs.get(run_id) == meta.epoch else None


def oldest_runs(epochs: Mapping[str, int]) -> list[str]:
    """The runs that a meta item forgets when one more enters."""
    return sorted(epochs, key=epochs.__getitem__)[: max(0, len(epochs) + 1 - EPOCHS_KEPT)]


def meta_lost(store: str) -> CorruptStateError:
    namespace = store.split("/", maxsplit=1)[0]
    return CorruptStateError(
        f"the store has versions, but its meta item is lost: restore the tables, or delete what is left of the query's "
        f"state with 'dynastate drop {namespace}'",
        **where(meta_key(store)),
    )


def schema_item(key: Key, schema: str, writer: str) -> Item:
    """A schema item. `writer` is the run, or the pin of the fork, that writes it."""
    return item_key(key) | {"format": FORMAT, "text": schema, WRITER: writer}


def parse_schema(key: Key, item: Item) -> str:
    """The schema text of a schema item, its digest verified."""
    text = item.get("text")
    if not isinstance(text, str) or schema_key("", schema_digest(text)).sort != key.sort:
        raise CorruptStateError("schema item does not have the content that its key names", **where(key))
    return text
