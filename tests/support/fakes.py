"""Fakes of DynamoDB, and wrappers that make one fail: on the seam (`Tables`), at the client, and on the wire."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ConnectionClosedError

from dynastate.errors import ItemFullError, UnavailableError
from dynastate.format.items import Item, Value, item_bytes, item_key
from dynastate.format.keys import SPECS, Key, Role
from dynastate.format.namespace import NAMESPACE
from dynastate.format.objects import ObjectId
from dynastate.runtime import limits
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE
from dynastate.storage.limits import ITEM_FULL, KEYS_MAX, STORED_BYTES_MAX, refuse_items, refuse_keys
from dynastate.storage.meter import Meter, Metered
from dynastate.storage.objects import DELETES_MAX, Objects
from dynastate.storage.tables import Tables, no_refusal
from dynastate.storage.update import Condition, Update

AnyMemory = TypeVar("AnyMemory", bound="MemoryTables")
AnyFailing = TypeVar("AnyFailing", bound="FailingTables")


class Call(NamedTuple):
    """One request as `MemoryTables` saw it."""

    verb: str
    keys: tuple[Key, ...]


class UnthrottledTables(Metered, Tables):
    """Tables with the default names, which take all that is offered."""

    @property
    def names(self) -> Mapping[Role, str]:
        return {"delta": DELTA_TABLE, "snapshot": SNAPSHOT_TABLE}

    def offer(self, puts: Sequence[tuple[Key, Item]]) -> Sequence[tuple[Key, Item]]:
        self.write(puts)
        return []


class MemoryObjects(Metered, Objects):
    """Objects of all buckets in a dictionary: strongly consistent, safe for threads."""

    def __init__(self) -> None:
        self.objects: dict[ObjectId, bytes] = {}
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
                self.objects.pop(place, None)

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
            found = sorted(
                (key.sort.encode(), key)
                for key in self.items
                if key.role == role and key.store_shard == store_shard and low <= key.sort <= high
            )
            items = [(key, _copy(self.items[key])) for _, key in found]
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
    """The item after an update."""
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


class Fault(NamedTuple):
    """A failure of one call, before or after it was applied."""

    error: Exception
    applied: bool = False


def _call_of(verb: str) -> Any:
    """A method of `FailingTables`: the verb of its tables, after what is planned."""
    return lambda tables, *arguments: tables._call(verb, *arguments)


class FailingTables(UnthrottledTables):
    """Tables with planned faults: each call of a verb takes the next of `faults[verb]`; None lets it pass.

    `before` is called with the verb ahead of every call, from the thread that makes it: to hold it, or to look on.
    """

    def __init__(self, tables: Tables, before: Callable[[str], object] = lambda _: None) -> None:
        self.tables = tables
        self.faults: dict[str, deque[Fault | None]] = {}
        self._before = before
        self._lock = threading.Lock()
        self.meter = tables.meter

    def metered(self: AnyFailing, meter: Meter) -> AnyFailing:  # noqa: PYI019  # Self comes with Python 3.11
        view = super().metered(meter)
        view.tables = self.tables.metered(meter)
        return view

    @property
    def names(self) -> Mapping[Role, str]:
        return self.tables.names

    def fail(self, verb: str, *faults: Fault | None) -> None:
        """Let the next calls of a verb fail."""
        with self._lock:
            self.faults.setdefault(verb, deque()).extend(faults)

    def _next(self, verb: str) -> Fault | None:
        self._before(verb)
        with self._lock:
            waiting = self.faults.get(verb)
            return waiting.popleft() if waiting else None

    def _call(self, verb: str, *arguments: Any) -> Any:
        fault = self._next(verb)
        if fault is not None and not fault.applied:
            raise fault.error
        done = getattr(self.tables, verb)(*arguments)
        if fault is not None:
            raise fault.error
        return done

    @property
    def objects(self) -> Objects:
        return self.tables.objects

    def stop(self) -> None:
        self.tables.stop()

    check = _call_of("check")
    query = _call_of("query")
    pages = _call_of("pages")
    get = _call_of("get")
    write = _call_of("write")
    delete = _call_of("delete")
    put_new = _call_of("put_new")
    put_over = _call_of("put_over")
    delete_over = _call_of("delete_over")
    list_keys = _call_of("list_keys")
    update = _call_of("update")


class Door:
    """Blocks writes until `open`, as what `FailingTables` calls before each request; counts those that have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0
        self._is_open = False

    def __call__(self, verb: str) -> None:
        if verb == "write":
            with self._changed:
                self._arrived += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._is_open, 10)

    def wait_for(self, arrived: int) -> None:
        """Return when that number of writes has arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= arrived, 10)

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


class Overtaken(FailingTables):
    """Tables on which something else happens before the first request of a verb."""

    def __init__(self, tables: Tables, happens: Callable[[], object], before: str = "get") -> None:
        to_come = [happens]
        super().__init__(tables, lambda verb: to_come.pop()() if verb == before and to_come else None)


class Recorded(FailingTables):
    """Tables that note requests, so that they can be sent again, as if they were late."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.requests: list[tuple[str, tuple[Any, ...]]] = []

    def _call(self, verb: str, *arguments: Any) -> Any:
        self.requests.append((verb, arguments))
        return super()._call(verb, *arguments)

    def repeat(self, *verbs: str, about: str = "") -> None:
        """Send the requests of some verbs again; where one is named, those about that attribute."""
        wanted = [each for each in self.requests if each[0] in verbs and about in str(each[1])]
        assert wanted
        for verb, arguments in wanted:
            getattr(self.tables, verb)(*arguments)


class Dying(FailingTables):
    """Tables that fail from one request on, before it or after, as in a crash; below 0, `left` counts the rest."""

    def __init__(self, tables: Tables, left: int, *, applied: bool = False) -> None:
        super().__init__(tables)
        self._left, self.applied = [left], applied

    @property
    def left(self) -> int:
        return self._left[0]

    def _call(self, verb: str, *arguments: Any) -> Any:
        self._left[0] -= 1  # views share it
        left = self.left
        if left < 0 and not (self.applied and left == -1):
            raise UnavailableError("died")
        done = super()._call(verb, *arguments)
        if left == -1:
            raise UnavailableError("died")
        return done


def client_error(code: str, status: int = 400, message: str = "said DynamoDB", **members: object) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}, **members}
    return ClientError(answer, "Operation")


def lost_answer() -> Exception:
    """What boto3 raises when the connection ends before the answer came."""
    error: Exception = ConnectionClosedError(endpoint_url="http://test")
    return error


class FailingClient:
    """A boto3 client with planned faults, one call at a time, since moto loses writes. `requests` is its journal."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, deque[Fault | None]] = {}
        self._lock = threading.Lock()

    def fail(self, operation: str, *faults: Fault | None) -> None:
        """Let the next calls of an operation fail; None lets one pass."""
        self.faults.setdefault(operation, deque()).extend(faults)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with self._lock:
                self.requests.append((operation, arguments))
                waiting = self.faults.get(operation)
                fault = waiting.popleft() if waiting else None
                if fault is not None and not fault.applied:
                    raise fault.error
                answer = getattr(self.client, operation)(**arguments)
                if fault is not None:
                    raise fault.error
                return answer

        return call


class _Body(BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


class Wire:
    """Answers the requests of a real boto3 client from a script, without a network. The last answer repeats.

    An answer is (HTTP status, JSON body or text), or an exception to raise in place of sending. `requests` is its
    journal: operation and body.
    """

    def __init__(self, client: Any, *answers: tuple[int, dict[str, Any] | str] | Exception) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._answers = list(answers)
        self._events = client.meta.events
        self._events.register_first("before-send.dynamodb", self)

    def close(self) -> None:
        """Leave the client as it was."""
        self._events.unregister("before-send.dynamodb", self)

    def __call__(self, request: Any, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else target).split(".")[1]
        self.requests.append((operation, json.loads(request.body)))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        raw = body if isinstance(body, str) else json.dumps(body)
        return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.0"}, _Body(raw.encode()))


def wire_error(code: str, message: str = "said DynamoDB", status: int = 400, **members: Any) -> tuple[int, Any]:
    """The answer DynamoDB gives for an error."""
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **members}


@dataclass
class Clock:
    """Time that passes only by sleeping, and by `answer_s` at each look."""

    now: float = 0.0
    answer_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.now += self.answer_s
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Longest(random.Random):
    """Chance that always takes the upper bound; `bounds` are those it was asked for."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return b
