"""The seam to DynamoDB: the verbs that dynastate uses."""

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
    """The refusal of an update that is never refused."""


class Tables(Protocol):
    """The engine's requests to DynamoDB. Reads are strongly consistent; each verb adds its cost to the `meter`.

    Every verb raises ConfigurationError if a retry changes nothing, and UnavailableError at the deadline. Verbs that
    read raise CorruptStateError if an item contains a value of a kind that dynastate never writes.
    """

    @property
    def names(self) -> Mapping[Role, str]:
        """The names of the tables in the user's settings."""

    meter: Meter
    """The cost of the requests of this view."""

    def metered(self: T, meter: Meter) -> T:  # noqa: PYI019  # Self comes with Python 3.11
        """A view of these tables and their objects that counts its requests in another meter."""

    @property
    def objects(self) -> Objects:
        """The seam to S3, for stores with parts there."""

    def check(self) -> list[str]:
        """Differences between the live tables and the tables that dynastate needs."""

    def query(self, role: Role, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        """All items of one partition key with sort keys from low to high, both inclusive, in order."""

    def get(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """Up to 100 items; items that do not exist are left out."""

    def write(self, puts: Sequence[tuple[Key, Item]]) -> None:
        """Put up to 25 items; return when all of them are durable."""

    def offer(self, puts: Sequence[tuple[Key, Item]]) -> Sequence[tuple[Key, Item]]:
        """Put the first of up to 25 items, as many as a throttled table takes. Returns the rest, never all of them."""

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete up to 25 items; items that do not exist are not an error."""

    def put_new(self, key: Key, item: Item) -> bool:
        """Put an item unless its key exists. Returns whether it was put."""

    def put_over(self, key: Key, item: Item, condition: Condition) -> bool:
        """Replace an item that meets a condition. Returns whether it did."""

    def delete_over(self, key: Key, condition: Condition) -> bool:
        """Delete an item that meets a condition. Returns whether it did."""

    def update(
        self,
        key: Key,
        update: Update,
        is_applied: Callable[[Item], bool] | None = None,
        refusal: Callable[[], Exception | None] = no_refusal,
    ) -> Item | None:
        """Change an item. Returns the item after the update, or None if it does not meet the condition.

        An update that must not happen twice has `is_applied`: whether an item contains the update, after an answer was
        lost. `refusal` is called before each request, and may return a reason to send nothing.

        Raises ItemFullError if the item would be too large, and UnknownOutcomeError if an update with `is_applied` may
        or may not have happened.
        """

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        """Keys of all items of one partition key with sort keys from low to high, both inclusive, in order."""

    def stop(self) -> None:
        """Refuse further requests with UnavailableError, also the retries of requests under way."""


def delete_all(tables: Tables, keys: Sequence[Key]) -> None:
    """Delete any number of items."""
    most = limits().writes_max
    for start in range(0, len(keys), most):
        tables.delete(keys[start : start + most])


def own_location(tables: Tables, objects: str) -> str:
    """The location of these tables' new objects by the setting `objects`, or "" if there is none."""
    return objects and location_of_tables(objects, tables.names["snapshot"])


def own_locations(tables: Tables, locations: Iterable[str]) -> list[str]:
    """The locations of objects of these tables among some, sorted."""
    return sorted(each for each in locations if is_of_tables(each, tables.names["snapshot"]))


def other_locations(tables: Tables, locations: Collection[str]) -> list[str]:
    """The locations of objects of other tables among some, sorted."""
    return sorted({*locations}.difference(own_locations(tables, locations)))


def delete_own_objects(tables: Tables, object_ids: Sequence[ObjectId]) -> None:
    """Delete any number of objects, except objects in the locations of other tables, which may need them."""
    locations = own_locations(tables, {each.location for each in object_ids})
    own_ids = [each for each in object_ids if each.location in locations]
    delete_objects(tables.objects, own_ids)
    tables.meter.objects_left += len(object_ids) - len(own_ids)


def get_apart(tables: Tables, keys: Sequence[Key]) -> dict[Key, Item]:
    """Get any number of items, with separate requests for each namespace.

    A request for two namespaces is denied if each has a policy of its own. Only forks read from two.
    """
    by_namespace: dict[str, list[Key]] = {}
    for key in keys:
        by_namespace.setdefault(key.namespace, []).append(key)
    items: dict[Key, Item] = {}
    for namespace_keys in by_namespace.values():
        for start in range(0, len(namespace_keys), KEYS_MAX):
            items |= tables.get(namespace_keys[start : start + KEYS_MAX])
    return items
