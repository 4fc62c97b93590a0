"""The seam to DynamoDB: the few verbs that dynastate uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from dynastate.format.items import Item
from dynastate.format.keys import Key, Role
from dynastate.format.objects import ObjectId, is_of_tables, location_of_tables
from dynastate.storage.limits import KEYS_MAX, WRITES_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.objects import Objects, delete_objects


def always() -> bool:
    """Whether somebody waits for an answer, where it makes no difference."""
    return True


class Tables(Protocol):
    """The engine's requests to DynamoDB. Reads are strongly consistent; each verb adds what it cost to `meter`.

    Every verb raises ConfigurationError where a retry changes nothing, and UnavailableError at the deadline; verbs that
    read raise CorruptStateError where an item holds a value of a kind that dynastate never writes.
    """

    @property
    def names(self) -> Mapping[Role, str]:
        """The tables by the names the user gave them."""

    @property
    def objects(self) -> Objects:
        """The seam to S3, for the stores that have parts there."""

    def check(self) -> list[str]:
        """Differences between the live tables and what dynastate needs; empty: they fit."""

    def query(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[tuple[Key, Item]]:
        """All items of one partition key with sort keys from low to high, both inclusive, in order."""

    def get(self, keys: Sequence[Key], meter: Meter) -> dict[Key, Item]:
        """Up to 100 items; those that do not exist are left out."""

    def write(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> None:
        """Put up to 25 items; return when all of them are durable."""

    def offer(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> Sequence[tuple[Key, Item]]:
        """Put the first of up to 25 items, as many as a throttled table takes; the rest, which is never all of them."""

    def delete(self, keys: Sequence[Key], meter: Meter) -> None:
        """Delete up to 25 items; those that do not exist are no error."""

    def put_new(self, key: Key, item: Item, meter: Meter) -> bool:
        """Put an item unless its key exists; False: it does."""

    def put_over(self, key: Key, item: Item, before: Item, meter: Meter) -> bool:
        """Replace an item with exactly the attributes `before`; False: there is none.

        An item that a fork depends on, that refuses runs or lists versions, is replaced only where `before` names that
        attribute.
        """

    def delete_over(self, key: Key, before: Item, meter: Meter) -> bool:
        """Delete an item with exactly the attributes `before`, on the same conditions as `put_over`."""

    def list_keys(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[Key]:
        """Keys of all items of one partition key with sort keys from low to high, both inclusive, in order."""

    def append_version(
        self,
        key: Key,
        entry: bytes,
        run: str,
        meter: Meter,
        is_awaited: Callable[[], bool] = always,
        must_exist: bool = False,  # noqa: FBT001, FBT002
    ) -> list[bytes]:
        """Append to the version list; the list after it, or no entries where the answer was lost.

        `is_awaited` is asked before each request whether somebody waits for the answer; otherwise nothing is sent.
        `must_exist`: the list must have versions, since the one that the entry follows is among them.

        Raises ConfigurationError where the list refuses the run, or should exist and does not, UnavailableError unless
        somebody waits, and UnknownOutcomeError when the append may or may not have happened.
        """

    def advance_epoch(
        self, key: Key, run: str, epochs: Mapping[str, int], forget: Sequence[str], also: Item, meter: Meter
    ) -> bool:
        """Advance the meta item's epoch by one, enter the run, remove those to forget, and set `also`.

        It also removes the mark of a drop. False: `epochs` are not those of the item any more, or a drop deletes
        the store's items.
        """

    def add_to_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        """Add texts to an attribute that is a set; the item after it, None: there is no such item."""

    def remove_from_set(self, key: Key, name: str, texts: Collection[str], before: Item, meter: Meter) -> Item | None:
        """Remove texts from an attribute that is a set; the item after it, None: there is none with these attributes.

        Texts that are not in it are ignored. The attribute goes with its last text.
        """

    def stop(self) -> None:
        """Refuse further requests with UnavailableError, also the retries of those under way."""


def delete_all(tables: Tables, keys: Sequence[Key], meter: Meter) -> None:
    """Delete any number of items, 25 a request."""
    for at in range(0, len(keys), WRITES_MAX):
        tables.delete(keys[at : at + WRITES_MAX], meter)


def own_location(tables: Tables, objects: str) -> str:
    """The location of these tables' new objects with a setting `objects`; "": there is none."""
    return objects and location_of_tables(objects, tables.names["snapshot"])


def own_locations(tables: Tables, locations: Iterable[str]) -> list[str]:
    """Those of some locations of objects that are of these tables, sorted."""
    return sorted(each for each in locations if is_of_tables(each, tables.names["snapshot"]))


def other_locations(tables: Tables, locations: Collection[str]) -> list[str]:
    """Those of some locations of objects that are of other tables, sorted."""
    return sorted({*locations}.difference(own_locations(tables, locations)))


def delete_own_objects(tables: Tables, places: Sequence[ObjectId], meter: Meter) -> None:
    """Delete any number of objects, but leave those in the locations of other tables, which may need them."""
    locations = own_locations(tables, {place.location for place in places})
    objects = [place for place in places if place.location in locations]
    delete_objects(tables.objects, objects, meter)
    meter.objects_left += len(places) - len(objects)


def get_apart(tables: Tables, keys: Sequence[Key], meter: Meter) -> dict[Key, Item]:
    """Get any number of items, with separate requests for each namespace.

    A request for two namespaces is denied where each has a policy of its own. Only forks read from two.
    """
    apart: dict[str, list[Key]] = {}
    for key in keys:
        apart.setdefault(key.namespace, []).append(key)
    found: dict[Key, Item] = {}
    for each in apart.values():
        for at in range(0, len(each), KEYS_MAX):
            found |= tables.get(each[at : at + KEYS_MAX], meter)
    return found
