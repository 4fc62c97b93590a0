"""The seam to DynamoDB: the few verbs that dynastate uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from dynastate.format.items import Item
from dynastate.format.keys import Key, Role
from dynastate.format.objects import ObjectId, is_of_tables, location_of_tables
from dynastate.runtime import limits
from dynastate.storage.limits import KEYS_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.objects import Objects, delete_objects
from dynastate.storage.update import Condition, Update

T = TypeVar("T")


def no_refusal() -> None:
    """The reason to send nothing, where there is none."""


class Tables(Protocol):
    """The engine's requests to DynamoDB. Reads are strongly consistent; each verb adds what it cost to the `meter`.

    Every verb raises ConfigurationError where a retry changes nothing, and UnavailableError at the deadline; verbs that
    read raise CorruptStateError where an item holds a value of a kind that dynastate never writes.
    """

    @property
    def names(self) -> Mapping[Role, str]:
        """The tables by the names the user gave them."""

    meter: Meter
    """The cost of the requests of this view."""

    def metered(self: T, meter: Meter) -> T:  # noqa: PYI019  # Self comes with Python 3.11
        """A view of these tables, and of their objects, whose requests are counted by another meter."""

    @property
    def objects(self) -> Objects:
        """The seam to S3, for the stores that have parts there."""

    def check(self) -> list[str]:
        """Differences between the live tables and what dynastate needs; empty: they fit."""

    def query(self, role: Role, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        """All items of one partition key with sort keys from low to high, both inclusive, in order."""

    def get(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """Up to 100 items; those that do not exist are left out."""

    def write(self, puts: Sequence[tuple[Key, Item]]) -> None:
        """Put up to 25 items; return when all of them are durable."""

    def offer(self, puts: Sequence[tuple[Key, Item]]) -> Sequence[tuple[Key, Item]]:
        """Put the first of up to 25 items, as many as a throttled table takes; the rest, which is never all of them."""

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete up to 25 items; those that do not exist are no error."""

    def put_new(self, key: Key, item: Item) -> bool:
        """Put an item unless its key exists; False: it does."""

    def put_over(self, key: Key, item: Item, condition: Condition) -> bool:
        """Replace an item that meets a condition; False: it does not."""

    def delete_over(self, key: Key, condition: Condition) -> bool:
        """Delete an item that meets a condition; False: it does not."""

    def update(
        self,
        key: Key,
        update: Update,
        is_applied: Callable[[Item], bool] | None = None,
        refusal: Callable[[], Exception | None] = no_refusal,
    ) -> Item | None:
        """Change an item; the item after it, None: it does not meet the condition.

        An update that must not happen twice has `is_applied`, which says of an item whether the update is in it. It is
        asked where an answer was lost. `refusal` is asked before each request for a reason to send nothing.

        Raises ItemFullError where the item would be too large, and UnknownOutcomeError where an update with
        `is_applied` may or may not have happened.
        """

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        """Keys of all items of one partition key with sort keys from low to high, both inclusive, in order."""

    def stop(self) -> None:
        """Refuse further requests with UnavailableError, also the retries of those under way."""


def delete_all(tables: Tables, keys: Sequence[Key]) -> None:
    """Delete any number of items, as many a request as it takes."""
    most = limits().writes_max
    for start in range(0, len(keys), most):
        tables.delete(keys[start : start + most])


def own_location(tables: Tables, objects: str) -> str:
    """The location of these tables' new objects with a setting `objects`; "": there is none."""
    return objects and location_of_tables(objects, tables.names["snapshot"])


def own_locations(tables: Tables, locations: Iterable[str]) -> list[str]:
    """Those of some locations of objects that are of these tables, sorted."""
    return sorted(each for each in locations if is_of_tables(each, tables.names["snapshot"]))


def other_locations(tables: Tables, locations: Collection[str]) -> list[str]:
    """Those of some locations of objects that are of other tables, sorted."""
    return sorted({*locations}.difference(own_locations(tables, locations)))


def delete_own_objects(tables: Tables, places: Sequence[ObjectId]) -> None:
    """Delete any number of objects, but leave those in the locations of other tables, which may need them."""
    locations = own_locations(tables, {place.location for place in places})
    objects = [place for place in places if place.location in locations]
    delete_objects(tables.objects, objects)
    tables.meter.objects_left += len(places) - len(objects)


def get_apart(tables: Tables, keys: Sequence[Key]) -> dict[Key, Item]:
    """Get any number of items, with separate requests for each namespace.

    A request for two namespaces is denied where each has a policy of its own. Only forks read from two.
    """
    apart: dict[str, list[Key]] = {}
    for key in keys:
        apart.setdefault(key.namespace, []).append(key)
    found: dict[Key, Item] = {}
    for each in apart.values():
        for at in range(0, len(each), KEYS_MAX):
            found |= tables.get(each[at : at + KEYS_MAX])
    return found
