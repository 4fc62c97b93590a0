"""DynamoDB's tables and S3's objects in memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from dynastate.errors import ItemFullError
from dynastate.format.items import Item, Value, item_bytes, item_key
from dynastate.format.keys import SPECS, Key, Role
from dynastate.format.namespace import NAMESPACE
from dynastate.format.objects import ObjectId
from dynastate.runtime import limits
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE
from dynastate.storage.limits import ITEM_FULL, KEYS_MAX, STORED_BYTES_MAX, refuse_items, refuse_keys
from dynastate.storage.meter import Meter, Metered
from dynastate.storage.objects import DELETES_MAX, Objects, ObjectVersion
from dynastate.storage.tables import Tables, no_refusal
from dynastate.storage.update import Condition, Update

AnyMemory = TypeVar("AnyMemory", bound="MemoryTables")


class Call(NamedTuple):
    """One request as `MemoryTables` saw it."""

    verb: str
    keys: tuple[Key, ...]


class UnthrottledTables(Metered, Tables):
    """Tables that take all that is offered."""

    def offer(self, puts: Sequence[tuple[Key, Item]]) -> Sequence[tuple[Key, Item]]:
        self.write(puts)
        return []


class MemoryObjects(Metered, Objects):
    """Objects of all buckets in a dictionary: strongly consistent, safe for threads.

    With `has_versions` all buckets keep what was deleted, in `earlier`; None stands for a delete marker.
    """

    def __init__(self, *, has_versions: bool = False) -> None:
        self.objects: dict[ObjectId, bytes] = {}
        self.earlier: dict[ObjectVersion, bytes | None] = {}
        self.has_versions = has_versions
        self._lock = threading.Lock()
        self.meter = Meter()

    def check(self, location: str) -> list[str]:  # noqa: ARG002  # as the seam has it
        return []

    def put(self, place: ObjectId, data: bytes) -> None:
        assert place.key
        assert 0 < len(data) <= limits().object_bytes
        with self._lock:
            assert self.objects.get(place, data) == data, "an object that changes"
            self.objects[place] = data
        self.meter.requests += 1
        self.meter.puts += 1
        self.meter.object_bytes_written += len(data)

    def get(self, place: ObjectId, start: int, end: int) -> bytes | None:
        assert 0 <= start < end <= limits().object_bytes
        with self._lock:
            data = self.objects.get(place)
        self.meter.requests += 1
        self.meter.gets += 1
        self.meter.object_bytes_read += len(data[start:end]) if data else 0
        return data and data[start:end]

    def names(self, location: str, prefix: str) -> Iterator[ObjectId]:
        self.meter.requests += 1
        self.meter.puts += 1
        with self._lock:
            places = sorted(each for each in self.objects if each.location == location and each.name.startswith(prefix))
        yield from places

    def delete(self, places: Sequence[ObjectId]) -> None:
        assert len(places) <= DELETES_MAX
        assert len({place.location for place in places}) <= 1
        self.meter.requests += 1
        self.meter.objects_deleted += len(places)
        with self._lock:
            for place in places:
                data = self.objects.pop(place, None)
                if self.has_versions:
                    for each in (data, None):
                        self.earlier[ObjectVersion(place, f"v{len(self.earlier)}", is_current=False)] = each

    def keeps_versions(self, location: str) -> bool:  # noqa: ARG002  # as the seam has it
        self.meter.requests += 1
        self.meter.gets += 1
        return self.has_versions

    def versions(self, location: str, prefix: str) -> Iterator[ObjectVersion]:
        self.meter.requests += 1
        self.meter.puts += 1
        with self._lock:
            versions = [*(ObjectVersion(each, "current") for each in self.objects), *self.earlier]
        for version in sorted(versions):
            if version.object_id.location == location and version.object_id.name.startswith(prefix):
                yield version

    def delete_versions(self, versions: Sequence[ObjectVersion]) -> None:
        assert len(versions) <= DELETES_MAX
        assert len({each.object_id.location for each in versions}) <= 1
        self.meter.requests += 1
        self.meter.objects_deleted += len(versions)
        with self._lock:
            for version in versions:
                assert bool(version.version_id) == self.has_versions
                self.earlier.pop(version, None)
                if version.is_current:
                    self.objects.pop(version.object_id, None)

    def stop(self) -> None:
        """Go on: nothing here takes long."""


def without_list(items: Mapping[Key, Item]) -> dict[Key, Item]:
    """Items but those that list the stores of namespaces, which nothing deletes."""
    return {key: item for key, item in items.items() if not key.store_shard.endswith("/#") or key.sort == NAMESPACE}


class MemoryTables(UnthrottledTables):
    """Both tables in a dictionary, with DynamoDB's rules, safe for threads. `calls` is its journal."""

    def __init__(self, snapshot_table: str = SNAPSHOT_TABLE, objects: MemoryObjects | None = None) -> None:
        #: What views share: tests replace the items.
        self._stored: dict[str, dict[Key, Item]] = {"items": {}}
        self.calls: list[Call] = []
        self._snapshot_table = snapshot_table
        self._objects = objects or MemoryObjects()
        self._lock = threading.Lock()
        self.meter = Meter()

    def __enter__(self: AnyMemory) -> AnyMemory:  # noqa: PYI019  # Self comes with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    @property
    def items(self) -> dict[Key, Item]:
        return self._stored["items"]

    @items.setter
    def items(self, items: dict[Key, Item]) -> None:
        self._stored["items"] = items

    @property
    def names(self) -> Mapping[Role, str]:
        return {"delta": DELTA_TABLE, "snapshot": self._snapshot_table}

    @property
    def objects(self) -> MemoryObjects:
        return self._objects.metered(self.meter)

    def check(self) -> list[str]:
        return []

    def query(self, role: Role, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        with self._lock:
            self._begin("query", [Key(role, store_shard, low)])
            matches = sorted(
                (key.sort.encode(), key)
                for key in self.items
                if key.role == role and key.store_shard == store_shard and low <= key.sort <= high
            )
            items = [(key, _copy(self.items[key])) for _, key in matches]
        self.meter.read([item_bytes(item) for _, item in items], together=True)
        return items

    def pages(self, role: Role, store_shard: str, low: str, high: str) -> Iterator[tuple[Key, Item]]:
        return iter(self.query(role, store_shard, low, high))

    def get(self, keys: Sequence[Key]) -> dict[Key, Item]:
        refuse_keys(keys, KEYS_MAX)
        with self._lock:
            self._begin("get", keys)
            items = {key: _copy(self.items[key]) for key in keys if key in self.items}
        self.meter.read(map(item_bytes, items.values()), together=False, missing=len(keys) - len(items))
        return items

    def write(self, puts: Sequence[tuple[Key, Item]]) -> None:
        refuse_keys([key for key, _ in puts], limits().writes_max)
        refuse_items(puts)
        with self._lock:
            self._begin("write", [key for key, _ in puts])
            for key, item in puts:
                self._put(key, item)

    def delete(self, keys: Sequence[Key]) -> None:
        refuse_keys(keys, limits().writes_max)
        with self._lock:
            self._begin("delete", keys)
            for key in keys:
                self.items.pop(key, None)
        self.meter.items_deleted += len(keys)

    def put_new(self, key: Key, item: Item) -> bool:
        return self._put_if("put_new", key, item, Condition(absent=[SPECS[key.role].hash_key]))

    def put_over(self, key: Key, item: Item, condition: Condition) -> bool:
        return self._put_if("put_over", key, item, condition)

    def _put_if(self, verb: str, key: Key, item: Item, condition: Condition) -> bool:
        refuse_keys([key], 1)
        refuse_items([(key, item)])
        with self._lock:
            self._begin(verb, [key])
            if not _holds(condition, self.items.get(key, {})):
                self.meter.wrote(item_bytes(item))
                return False
            self._put(key, item)
            return True

    def delete_over(self, key: Key, condition: Condition) -> bool:
        refuse_keys([key], 1)
        with self._lock:
            self._begin("delete_over", [key])
            self.meter.deleted([item_bytes(item_key(key) | condition.equal)])
            applied = _holds(condition, self.items.get(key, {}))
            if applied:
                self.items.pop(key, None)
            return applied

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        return [key for key, _ in self.query(role, store_shard, low, high)]

    def update(
        self,
        key: Key,
        update: Update,
        is_applied: Callable[[Item], bool] | None = None,  # noqa: ARG002  # no answer is lost
        refusal: Callable[[], Exception | None] = no_refusal,
    ) -> Item | None:
        refuse_keys([key], 1)
        if (reason := refusal()) is not None:
            raise reason
        with self._lock:
            self._begin("update", [key])
            item = self.items.get(key, {})
            if not _holds(update.condition, item):
                self.meter.wrote(0)
                return None
            self._put(key, _applied(update, item_key(key) | item))
            return _copy(self.items[key])

    def stop(self) -> None:
        """Go on: nothing here takes long."""

    def resetting(self) -> Callable[[], None]:
        """A function that brings back the items and objects of now."""
        items, objects, earlier = dict(self.items), dict(self._objects.objects), dict(self._objects.earlier)

        def reset() -> None:
            self.items = dict(items)
            for place, contents in ((self._objects.objects, objects), (self._objects.earlier, earlier)):
                place.clear()
                place.update(contents)  # type: ignore[arg-type]  # each of its own kind

        return reset

    def keys(self, role: Role) -> list[Key]:
        return sorted(key for key in self.items if key.role == role)

    def called(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == verb]

    def _begin(self, verb: str, keys: Sequence[Key]) -> None:
        self.meter.requests += 1
        self.calls.append(Call(verb, tuple(keys)))

    def _put(self, key: Key, item: Item) -> None:
        spec = SPECS[key.role]
        assert (item[spec.hash_key], item[spec.range_key]) == (key.store_shard, key.sort), "an item under another key"
        if (size := item_bytes(item)) > STORED_BYTES_MAX:
            raise ItemFullError(ITEM_FULL, item=key.sort, item_bytes=size, most=STORED_BYTES_MAX)
        self.items[key] = _copy(item)
        self.meter.wrote(size)


def _holds(condition: Condition, item: Item) -> bool:
    """Whether an item meets a condition. An item that does not exist has no attributes."""
    return (
        all(item.get(name) == value for name, value in condition.equal.items())
        and all(name in item for name in condition.present)
        and not any(name in item for name in condition.absent)
        and all(item.get(name) != value for name, value in condition.unequal.items())
        and all(text not in _texts(item, name) for name, text in condition.lacks.items())
    )


def _applied(update: Update, item: Item) -> Item:
    attributes = {name: value for name, value in item.items() if name not in update.removes} | update.sets
    for name, elements in update.appends.items():
        values = item.get(name, [])
        assert isinstance(values, list), "DynamoDB refuses the update"
        attributes[name] = [*values, *elements]
    sets = {name: _texts(item, name) | texts for name, texts in update.adds.items()}
    sets |= {name: _texts(item, name) - texts for name, texts in update.subtracts.items()}
    filled_sets: dict[str, Value] = {name: texts for name, texts in sets.items() if texts}
    return {name: value for name, value in attributes.items() if name not in sets} | filled_sets


def _texts(item: Item, name: str) -> frozenset[str]:
    texts = item.get(name, frozenset())
    assert isinstance(texts, frozenset), "DynamoDB refuses the request"
    return texts


def _copy(item: Item) -> Item:
    return {name: copy.copy(value) for name, value in item.items()}
