"""The seam to DynamoDB through boto3.

Rules of DynamoDB that engines for tests do not enforce are enforced before anything is sent. Every ClientError is
translated, and units are counted by DynamoDB's own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from botocore import xform_name

from dynastate.dynamodb.client import Client
from dynastate.dynamodb.expressions import Expressions
from dynastate.dynamodb.failures import ConditionFailedError, Fate, fate_of
from dynastate.dynamodb.rates import WriteRate
from dynastate.dynamodb.retries import Retry, RetryPolicy
from dynastate.dynamodb.s3 import S3Objects
from dynastate.dynamodb.wire import from_wire, to_wire
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import checkpoint_of_store
from dynastate.format.items import Item, item_bytes, item_key
from dynastate.format.keys import SPECS, Key, Role, where
from dynastate.runtime import limits
from dynastate.settings import Settings
from dynastate.storage.limits import KEYS_MAX, refuse_items, refuse_keys
from dynastate.storage.meter import Meter, Metered, units_of_write
from dynastate.storage.tables import no_refusal
from dynastate.storage.update import Condition, Update


class BotoTables(Metered):
    """The two tables through boto3, which `with` closes. Safe for threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        retries: RetryPolicy | None = None,
        client: Any = None,  # a boto3 client has no type of its own
        s3_client: Any = None,
        profile: str = "",
    ) -> None:
        self.settings = settings
        self._client = Client(settings, client, profile)
        self.send, self.names = self._client.send, self._client.names
        self._roles: dict[str, Role] = {name: role for role, name in self.names.items()}
        self._retries = retries or RetryPolicy(settings.request_deadline_s)
        # A policy of its own: S3 may not answer although DynamoDB does.
        self._objects = S3Objects(settings, retries=replace(self._retries), client=s3_client, profile=profile)
        self.meter = Meter()
        self._rates = {role: WriteRate(self._retries.clock, self._retries.sleep) for role in SPECS}

    @property
    def objects(self) -> S3Objects:
        return self._objects.metered(self.meter)

    def describe(self) -> dict[Role, dict[str, Any]]:
        """Describe both tables, as DescribeTable does. For operators, never for the engine."""
        return {role: self.call("DescribeTable", role)["Table"] for role in SPECS}

    def check(self) -> list[str]:
        descriptions = self.describe()
        drift = [line for role in SPECS for line in table_drift(role, self.names[role], descriptions[role])]
        return drift + (self.objects.check(self.settings.objects) if self.settings.objects else [])

    def query(self, role: Role, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        return [(self._key(role, item), item) for item in self._query(role, store_shard, low, high)]

    def pages(self, role: Role, store_shard: str, low: str, high: str) -> Iterator[tuple[Key, Item]]:
        """The items of `query`, with one page in memory. For operators, never for the engine."""
        return ((self._key(role, item), item) for item in self._query(role, store_shard, low, high))

    def _query(self, role: Role, store_shard: str, low: str, high: str, **projection: str) -> Iterator[Item]:
        spec = SPECS[role]
        request: dict[str, Any] = {
            "ConsistentRead": True,
            "KeyConditionExpression": "#h = :h AND #r BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#h": spec.hash_key, "#r": spec.range_key},
            "ExpressionAttributeValues": to_wire({":h": store_shard, ":low": low, ":high": high}),
        } | projection
        while True:
            page = self.call("Query", role, **request)
            items = [self._item(role, raw) for raw in page["Items"]]
            self.meter.read(map(item_bytes, items), together=True)
            yield from items
            # A page may be empty and still not be the last one.
            if not page.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def get(self, keys: Sequence[Key]) -> dict[Key, Item]:
        refuse_keys(keys, KEYS_MAX)
        waiting: dict[str, Any] = {}
        for key in keys:
            table = waiting.setdefault(self.names[key.role], {"Keys": [], "ConsistentRead": True})
            table["Keys"].append(to_wire(item_key(key)))
        items_by_key: dict[Key, Item] = {}
        retry = self._retry("BatchGetItem")
        while waiting:
            answer = retry.attempt(keys[0].role, partial(self.send, "batch_get_item", RequestItems=waiting))
            if answer is None:
                continue
            count = len(items_by_key)
            for name, raws in answer["Responses"].items():
                items = [self._item(self._roles[name], raw) for raw in raws]
                self.meter.read(map(item_bytes, items), together=False)
                items_by_key.update((self._key(self._roles[name], item), item) for item in items)
            unprocessed = answer.get("UnprocessedKeys") or {}
            waiting = {name: {"Keys": each["Keys"], "ConsistentRead": True} for name, each in unprocessed.items()}
            if len(items_by_key) > count:
                retry.progressed()  # one answer cannot hold all items: no throttle
            elif waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=False)
        self.meter.read([], together=False, missing=len(keys) - len(items_by_key))
        return items_by_key

    def write(self, puts: Sequence[tuple[Key, Item]]) -> None:
        waiting = self.offer(puts)
        while waiting:
            waiting = self.offer(waiting)

    def offer(self, puts: Sequence[tuple[Key, Item]]) -> Sequence[tuple[Key, Item]]:
        refuse_keys([key for key, _ in puts], limits().writes_max)
        sizes = dict(zip((key for key, _ in puts), refuse_items(puts), strict=True))
        role = puts[0][0].role
        rate = self._rates[role]
        retry = self._retry("BatchWriteItem", rate=rate)
        written: set[Key] = set()
        while not written:
            answer = retry.attempt(role, partial(self._put_some, puts, sizes, rate))
            if answer is not None:
                written, is_all = answer
                if not is_all:
                    retry.answered_in_part(role, progress=bool(written))
        for key in written:
            self.meter.wrote(sizes[key])
        return [(key, item) for key, item in puts if key not in written]

    def _put_some(
        self, puts: Sequence[tuple[Key, Item]], sizes: Mapping[Key, int], rate: WriteRate
    ) -> tuple[set[Key], bool]:
        """Send as many items as the rate allows. Returns the keys of the written ones, and whether all of them were."""
        units = {key: units_of_write(size) for key, size in sizes.items()}
        with rate.turn(list(units.values())) as turn:
            waiting: dict[str, list[dict[str, Any]]] = {}
            for key, item in puts[: turn.count]:
                waiting.setdefault(self.names[key.role], []).append({"PutRequest": {"Item": to_wire(item)}})
            try:
                unprocessed = self._write_batch(waiting)
            except Exception as error:
                turn.units_written = 0 if fate_of(error) is Fate.THROTTLED else None
                raise
            unprocessed_keys = {
                self._key(self._roles[name], from_wire(raw["PutRequest"]["Item"]))
                for name, raws in unprocessed.items()
                for raw in raws
            }
            written = {key for key, _ in puts[: turn.count] if key not in unprocessed_keys}
            turn.units_written = sum(units[key] for key in written)
        return written, not unprocessed_keys

    def _write_batch(self, requests: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Send writes, and return those that are unprocessed."""
        answer: dict[str, dict[str, list[dict[str, Any]]]] = self.send("batch_write_item", RequestItems=requests)
        return answer["UnprocessedItems"]

    def delete(self, keys: Sequence[Key]) -> None:
        refuse_keys(keys, limits().writes_max)
        waiting: dict[str, list[dict[str, Any]]] = {}
        for key in keys:
            waiting.setdefault(self.names[key.role], []).append({"DeleteRequest": {"Key": to_wire(item_key(key))}})
        retry = self._retry("BatchWriteItem")
        while waiting:
            count = _count(waiting)
            unprocessed = retry.attempt(keys[0].role, partial(self._write_batch, waiting))
            if unprocessed is None:
                continue
            waiting = unprocessed
            if waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=_count(waiting) < count)
        self.meter.items_deleted += len(keys)

    def find_stores(self) -> Iterator[str]:
        """Every store, in no order, with dropped ones that left fences. For operators, never for the engine.

        Partition keys cannot be listed, but a scan may begin after any of them. So each partition key of the table
        takes one request, and the units of its first item.
        """
        spec = SPECS["snapshot"]
        names = {"ProjectionExpression": "#h", "ExpressionAttributeNames": {"#h": spec.hash_key}}
        request: dict[str, Any] = {"Limit": 1} | names
        while True:
            page = self.call("Scan", "snapshot", **request)
            last = page.get("LastEvaluatedKey")  # a page may be empty before the end
            if page["Items"]:
                store_shard = str(from_wire(page["Items"][0])[spec.hash_key])
                store = store_shard.removesuffix("#0")
                if store != store_shard and checkpoint_of_store(store) is None:
                    yield store
                last = to_wire({spec.hash_key: store_shard, spec.range_key: "\U0010ffff"})
            if not last:
                return
            request["ExclusiveStartKey"] = last

    def put_new(self, key: Key, item: Item) -> bool:
        return self._put(key, item, _members(Condition(absent=[SPECS[key.role].hash_key])))

    def put_over(self, key: Key, item: Item, condition: Condition) -> bool:
        return self._put(key, item, _members(condition))

    def _put(self, key: Key, item: Item, condition: dict[str, Any]) -> bool:
        refuse_keys([key], 1)
        (size,) = refuse_items([(key, item)])
        return self._conditional("PutItem", key, size, Item=to_wire(item), **condition)

    def delete_over(self, key: Key, condition: Condition) -> bool:
        refuse_keys([key], 1)
        applied = self._conditional("DeleteItem", key, 0, Key=to_wire(item_key(key)), **_members(condition))
        self.meter.deleted([item_bytes(item_key(key) | condition.equal)])
        return applied

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        items = self._query(role, store_shard, low, high, ProjectionExpression="#h, #r")
        return [self._key(role, item) for item in items]

    def update(
        self,
        key: Key,
        update: Update,
        is_applied: Callable[[Item], bool] | None = None,
        refusal: Callable[[], Exception | None] = no_refusal,
    ) -> Item | None:
        refuse_keys([key], 1)
        expressions = Expressions()
        request = {
            "TableName": self.names[key.role],
            "Key": to_wire(item_key(key)),
            "UpdateExpression": expressions.update(update),
            "ReturnValues": "ALL_NEW",
        }
        if condition := expressions.condition(update.condition):
            request["ConditionExpression"] = condition
        request |= expressions.placeholders()
        retry = self._retry("UpdateItem", commits=is_applied is not None)
        while True:
            if is_applied is not None and retry.unknown:
                item = self._read_again(key, retry)
                if is_applied(item):
                    break
            if (reason := refusal()) is not None:
                raise retry.failure(reason)
            try:
                answer = retry.attempt(key.role, lambda: self.send("update_item", **request))
            except ConditionFailedError:
                self.meter.wrote(0)
                return None
            if answer is not None:
                item = self._item(key.role, answer["Attributes"])
                break
        self.meter.wrote(item_bytes(item))
        return item

    def _read_again(self, key: Key, retry: Retry) -> Item:
        """Read an item after an update whose answer was lost."""
        request = {"TableName": self.names[key.role], "Key": to_wire(item_key(key)), "ConsistentRead": True}
        while (answer := retry.attempt(key.role, partial(self.send, "get_item", **request))) is None:
            pass
        retry.unknown = False
        item = self._item(key.role, answer.get("Item") or {})
        self.meter.read([item_bytes(item)], together=False)
        return item

    def expect_answers(self) -> None:
        """Assume that DynamoDB can be reached: from here on its absence is an outage, not a wrong setting."""
        self._retries.has_answered = True
        self._objects.expect_answers()

    def stop(self) -> None:
        self._client.stop()
        self._objects.stop()

    def __enter__(self) -> BotoTables:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The verbs must not be called after it."""
        self._client.close()
        self._objects.close()

    def _item(self, role: Role, raw: dict[str, Any]) -> Item:
        try:
            return from_wire(raw)
        except CorruptStateError as foreign:
            keys = (SPECS[role].hash_key, SPECS[role].range_key)
            key = self._key(role, from_wire({name: raw[name] for name in keys}))
            raise CorruptStateError(str(foreign), **where(key)) from foreign

    def _key(self, role: Role, item: Item) -> Key:
        return Key(role, str(item[SPECS[role].hash_key]), str(item[SPECS[role].range_key]))

    def call(self, operation: str, role: Role, **request: Any) -> Any:
        """Send one request about a table until it is answered. Raises the same errors as every verb."""
        retry = self._retry(operation)
        once = partial(self.send, xform_name(operation), TableName=self.names[role], **request)
        while True:
            answer = retry.attempt(role, once)
            if answer is not None:
                return answer

    def _retry(self, operation: str, *, commits: bool = False, rate: WriteRate | None = None) -> Retry:
        return Retry(self._retries, self._client, operation, self.meter, commits=commits, rate=rate)

    def _conditional(self, operation: str, key: Key, size: int, **request: Any) -> bool:
        try:
            self.call(operation, key.role, **request)
            applied = True
        except ConditionFailedError:
            applied = False
        if size:
            self.meter.wrote(size)  # a failed condition is paid for too
        return applied


def open_tables(settings: Settings, *, profile: str = "", deadline_s: float | None = None) -> BotoTables:
    """Open the tables that settings name. Requests end after `deadline_s`, or by default as the settings say."""
    retries = None if deadline_s is None else RetryPolicy(deadline_s)
    return BotoTables(settings, retries=retries, profile=profile)


def table_drift(role: Role, name: str, described: dict[str, Any]) -> list[str]:
    """The differences of a table from the needed one, by its description (the answer of DescribeTable)."""
    spec = SPECS[role]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    names = ((each["AttributeName"], each["KeyType"]) for each in described["KeySchema"])
    keys = [(name, kind, kinds.get(name)) for name, kind in names]
    schema = [(spec.hash_key, "HASH", "S"), (spec.range_key, "RANGE", "S")]
    drift: list[str] = []
    if keys != schema:
        texts = [", ".join(f"{key} ({kind}, {data})" for key, kind, data in each) for each in (keys, schema)]
        drift.append(f"table {name} has keys {texts[0]}, needed are {texts[1]}")
    if described.get("TableStatus", "ACTIVE") not in ("ACTIVE", "UPDATING"):
        drift.append(f"table {name} is {described['TableStatus']}, needed is ACTIVE")
    return drift


def _members(condition: Condition) -> dict[str, Any]:
    """The members of a request that hold a condition."""
    expressions = Expressions()
    return {"ConditionExpression": expressions.condition(condition)} | expressions.placeholders()


def _count(requests: Mapping[str, Sequence[object]]) -> int:
    return sum(map(len, requests.values()))
