"""The seam to DynamoDB through boto3.

Rules of DynamoDB that engines for tests do not enforce are enforced before anything is sent. Every ClientError is
translated, and units are counted by DynamoDB's own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from botocore import xform_name

from dynastate.dynamodb.client import Client
from dynastate.dynamodb.failures import ConditionFailedError, Fate, fate_of
from dynastate.dynamodb.rates import WriteRate
from dynastate.dynamodb.retries import Retry, RetryPolicy
from dynastate.dynamodb.s3 import S3Objects
from dynastate.dynamodb.wire import from_wire, to_wire
from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import SPECS, Key, Role, where
from dynastate.format.meta import DELETING, DROPPED, FORKS
from dynastate.format.version_list import REFUSED, VERSIONS, base_gone, not_awaited, run_refused
from dynastate.settings import Settings
from dynastate.storage.limits import KEYS_MAX, WRITES_MAX, refuse_items, refuse_keys
from dynastate.storage.meter import Meter, units_of_write
from dynastate.storage.tables import always


class BotoTables:
    """The two tables through boto3. Safe for threads. It is made as `Client` is, and fails as that."""

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
        # Of its own, because it is not known that S3 answers where DynamoDB does.
        self.objects = S3Objects(settings, retries=replace(self._retries), client=s3_client, profile=profile)
        self._rates = {role: WriteRate(self._retries.clock, self._retries.sleep) for role in SPECS}

    def describe(self) -> dict[Role, dict[str, Any]]:
        """Describe both tables, as DescribeTable does. For operators, never for the engine."""
        return {role: self.call("DescribeTable", role, Meter())["Table"] for role in SPECS}

    def check(self) -> list[str]:
        found = self.describe()
        drift = [line for role in SPECS for line in table_drift(role, self.names[role], found[role])]
        return drift + (self.objects.check(self.settings.objects) if self.settings.objects else [])

    def query(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[tuple[Key, Item]]:
        return [(self._key(role, item), item) for item in self._query(role, store_shard, low, high, meter)]

    def pages(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> Iterator[tuple[Key, Item]]:
        """As `query`, with one page in memory. For operators, never for the engine."""
        return ((self._key(role, item), item) for item in self._query(role, store_shard, low, high, meter))

    def _query(
        self, role: Role, store_shard: str, low: str, high: str, meter: Meter, **projection: str
    ) -> Iterator[Item]:
        spec = SPECS[role]
        request: dict[str, Any] = {
            "ConsistentRead": True,
            "KeyConditionExpression": "#h = :h AND #r BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#h": spec.hash_key, "#r": spec.range_key},
            "ExpressionAttributeValues": to_wire({":h": store_shard, ":low": low, ":high": high}),
        } | projection
        while True:
            page = self.call("Query", role, meter, **request)
            items = [self._item(role, raw) for raw in page["Items"]]
            meter.read(map(item_bytes, items), together=True)
            yield from items
            # A page may be empty and still not be the last one.
            if not page.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def get(self, keys: Sequence[Key], meter: Meter) -> dict[Key, Item]:
        refuse_keys(keys, KEYS_MAX)
        waiting: dict[str, Any] = {}
        for key in keys:
            table = waiting.setdefault(self.names[key.role], {"Keys": [], "ConsistentRead": True})
            table["Keys"].append(to_wire(item_key(key)))
        found: dict[Key, Item] = {}
        retry = self._retry("BatchGetItem", meter)
        while waiting:
            answer = retry.attempt(keys[0].role, partial(self.send, "batch_get_item", RequestItems=waiting))
            if answer is None:
                continue
            before = len(found)
            for name, raws in answer["Responses"].items():
                items = [self._item(self._roles[name], raw) for raw in raws]
                meter.read(map(item_bytes, items), together=False)
                found.update((self._key(self._roles[name], item), item) for item in items)
            unprocessed = answer.get("UnprocessedKeys") or {}
            waiting = {name: {"Keys": rest["Keys"], "ConsistentRead": True} for name, rest in unprocessed.items()}
            if len(found) > before:
                retry.progressed()  # there is more than one answer may hold: no throttle
            elif waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=False)
        meter.read([], together=False, missing=len(keys) - len(found))
        return found

    def write(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> None:
        rest = self.offer(puts, meter)
        while rest:
            rest = self.offer(rest, meter)

    def offer(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> Sequence[tuple[Key, Item]]:
        refuse_keys([key for key, _ in puts], WRITES_MAX)
        sizes = dict(zip((key for key, _ in puts), refuse_items(puts), strict=True))
        role = puts[0][0].role
        rate = self._rates[role]
        retry = self._retry("BatchWriteItem", meter, rate=rate)
        taken: set[Key] = set()
        while not taken:
            answer = retry.attempt(role, partial(self._put_some, puts, sizes, rate))
            if answer is not None:
                taken, is_all = answer
                if not is_all:
                    retry.answered_in_part(role, progress=bool(taken))
        for key in taken:
            meter.wrote(sizes[key])
        return [(key, item) for key, item in puts if key not in taken]

    def _put_some(
        self, puts: Sequence[tuple[Key, Item]], sizes: Mapping[Key, int], rate: WriteRate
    ) -> tuple[set[Key], bool]:
        """Send as many items as the rate allows: the keys of those that were taken, and whether that is all of them."""
        units = {key: units_of_write(size) for key, size in sizes.items()}
        with rate.turn(list(units.values())) as turn:
            waiting: dict[str, list[dict[str, Any]]] = {}
            for key, item in puts[: turn.count]:
                waiting.setdefault(self.names[key.role], []).append({"PutRequest": {"Item": to_wire(item)}})
            try:
                left = self._write_batch(waiting)
            except Exception as error:
                turn.taken = 0 if fate_of(error) is Fate.THROTTLED else None
                raise
            rest = {
                self._key(self._roles[name], from_wire(raw["PutRequest"]["Item"]))
                for name, raws in left.items()
                for raw in raws
            }
            taken = {key for key, _ in puts[: turn.count] if key not in rest}
            turn.taken = sum(units[key] for key in taken)
        return taken, not rest

    def _write_batch(self, requests: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Send writes, and return those that are unprocessed."""
        left: dict[str, list[dict[str, Any]]] = self.send("batch_write_item", RequestItems=requests)["UnprocessedItems"]
        return left

    def delete(self, keys: Sequence[Key], meter: Meter) -> None:
        refuse_keys(keys, WRITES_MAX)
        waiting: dict[str, list[dict[str, Any]]] = {}
        for key in keys:
            waiting.setdefault(self.names[key.role], []).append({"DeleteRequest": {"Key": to_wire(item_key(key))}})
        retry = self._retry("BatchWriteItem", meter)
        while waiting:
            sent = _count(waiting)
            left = retry.attempt(keys[0].role, partial(self._write_batch, waiting))
            if left is None:
                continue
            waiting = left
            if waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=_count(waiting) < sent)
        meter.items_deleted += len(keys)

    def find_stores(self, meter: Meter) -> Iterator[str]:
        """Every store, in no order; also dropped ones, of which fences are there. For operators, never for the engine.

        Partition keys cannot be listed, but a scan may begin after any of them. So this takes a request for each
        partition key of the table, and the units of the first item of each.
        """
        spec = SPECS["snapshot"]
        names = {"ProjectionExpression": "#h", "ExpressionAttributeNames": {"#h": spec.hash_key}}
        request: dict[str, Any] = {"Limit": 1} | names
        while True:
            page = self.call("Scan", "snapshot", meter, **request)
            last = page.get("LastEvaluatedKey")  # a page may be empty before the end
            if page["Items"]:
                store_shard = str(from_wire(page["Items"][0])[spec.hash_key])
                if store_shard.endswith("#0"):
                    yield store_shard.removesuffix("#0")
                last = to_wire({spec.hash_key: store_shard, spec.range_key: "\U0010ffff"})
            if not last:
                return
            request["ExclusiveStartKey"] = last

    def put_new(self, key: Key, item: Item, meter: Meter) -> bool:
        names = {"#h": SPECS[key.role].hash_key}
        condition = {"ConditionExpression": "attribute_not_exists(#h)", "ExpressionAttributeNames": names}
        return self._put(key, item, condition, meter)

    def put_over(self, key: Key, item: Item, before: Item, meter: Meter) -> bool:
        return self._put(key, item, _condition(before), meter)

    def _put(self, key: Key, item: Item, condition: dict[str, Any], meter: Meter) -> bool:
        refuse_keys([key], 1)
        (size,) = refuse_items([(key, item)])
        return self._conditional("PutItem", key, size, meter, Item=to_wire(item), **condition)

    def delete_over(self, key: Key, before: Item, meter: Meter) -> bool:
        refuse_keys([key], 1)
        applied = self._conditional("DeleteItem", key, 0, meter, Key=to_wire(item_key(key)), **_condition(before))
        meter.deleted([item_bytes(item_key(key) | before)])
        return applied

    def list_keys(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[Key]:
        found = self._query(role, store_shard, low, high, meter, ProjectionExpression="#h, #r")
        return [self._key(role, item) for item in found]

    def append_version(
        self,
        key: Key,
        entry: bytes,
        run: str,
        meter: Meter,
        is_awaited: Callable[[], bool] = always,
        must_exist: bool = False,  # noqa: FBT001, FBT002
    ) -> list[bytes]:
        refuse_keys([key], 1)
        request = {
            "TableName": self.names[key.role],
            "Key": to_wire(item_key(key)),
            "UpdateExpression": "SET versions = list_append(if_not_exists(versions, :none), :entry), #f = :format",
            "ConditionExpression": "NOT contains(#refused, :run)"
            + (" AND attribute_exists(versions)" if must_exist else ""),
            "ExpressionAttributeNames": {"#f": "format", "#refused": REFUSED},
            "ExpressionAttributeValues": to_wire({":none": [], ":entry": [entry], ":format": FORMAT, ":run": run}),
            "ReturnValues": "UPDATED_NEW",
        }
        retry = self._retry("UpdateItem", meter, commits=True)
        while True:
            # After an answer was lost, the list itself says whether the entry is in it.
            if retry.unknown and self._is_listed(key, entry, retry, meter):
                return []
            if not is_awaited():
                raise retry.failure(not_awaited(key, run))
            try:
                answer = retry.attempt(key.role, lambda: self.send("update_item", **request))
            except ConditionFailedError:
                refused = self.get([key], meter).get(key, {}).get(REFUSED) if must_exist else {run}
                is_refused = isinstance(refused, Collection) and run in refused
                raise (run_refused if is_refused else base_gone)(key, run) from None
            if answer is not None:
                now = from_wire(answer["Attributes"])
                meter.wrote(item_bytes(item_key(key) | now))
                versions = now["versions"]
                return versions if isinstance(versions, list) else []

    def advance_epoch(
        self, key: Key, run: str, epochs: Mapping[str, int], forget: Sequence[str], also: Item, meter: Meter
    ) -> bool:
        names = {"#run": run, "#dropped": DROPPED} | {f"#old{n}": old for n, old in enumerate(forget)}
        names |= {f"#also{n}": name for n, name in enumerate(also)}
        values: Item = {":one": 1, ":epochs": dict(epochs), ":deleting": DELETING}
        values |= {f":also{n}": value for n, value in enumerate(also.values())}
        sets = [
            "epoch = epoch + :one",
            "epochs.#run = epoch + :one",
            *(f"#also{n} = :also{n}" for n in range(len(also))),
        ]
        remove = ", ".join(["#dropped", *(f"epochs.#old{n}" for n in range(len(forget)))])
        # The condition on the epochs keeps a request that was delayed for long from making the newest run one that is
        # over. Their number would not do: a store that was dropped and made again counts from 1.
        request = {
            "Key": to_wire(item_key(key)),
            "UpdateExpression": f"SET {', '.join(sets)} REMOVE {remove}",
            "ConditionExpression": "epochs = :epochs AND NOT #dropped = :deleting",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": to_wire(values),
        }
        return self._conditional("UpdateItem", key, 1024, meter, **request)

    def add_to_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        return self._change_set("ADD", key, name, texts, {}, meter)

    def remove_from_set(self, key: Key, name: str, texts: Collection[str], before: Item, meter: Meter) -> Item | None:
        return self._change_set("DELETE", key, name, texts, before, meter)

    def _change_set(
        self, how: str, key: Key, name: str, texts: Collection[str], before: Item, meter: Meter
    ) -> Item | None:
        refuse_keys([key], 1)
        names = {"#s": name, "#h": SPECS[key.role].hash_key} | {f"#b{n}": each for n, each in enumerate(before)}
        values: Item = {":texts": frozenset(texts)} | {f":b{n}": each for n, each in enumerate(before.values())}
        request = {
            "Key": to_wire(item_key(key)),
            "UpdateExpression": f"{how} #s :texts",
            "ConditionExpression": " AND ".join(
                ["attribute_exists(#h)", *(f"#b{n} = :b{n}" for n in range(len(before)))]
            ),
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": to_wire(values),
            "ReturnValues": "ALL_NEW",
        }
        try:
            answer = self.call("UpdateItem", key.role, meter, **request)
        except ConditionFailedError:
            meter.wrote(0)
            return None
        item = self._item(key.role, answer["Attributes"])
        meter.wrote(item_bytes(item))
        return item

    def expect_answers(self) -> None:
        """Assume that DynamoDB can be reached: from here on its absence is an outage, not a wrong setting."""
        self._retries.has_answered = True
        self.objects.expect_answers()

    def stop(self) -> None:
        self._client.stop()
        self.objects.stop()

    def close(self) -> None:
        """Close the connections. The verbs must not be called after it."""
        self._client.close()
        self.objects.close()

    def _item(self, role: Role, raw: dict[str, Any]) -> Item:
        try:
            return from_wire(raw)
        except CorruptStateError as foreign:
            keys = (SPECS[role].hash_key, SPECS[role].range_key)
            key = self._key(role, from_wire({name: raw[name] for name in keys}))
            raise CorruptStateError(str(foreign), **where(key)) from foreign

    def _key(self, role: Role, item: Item) -> Key:
        return Key(role, str(item[SPECS[role].hash_key]), str(item[SPECS[role].range_key]))

    def call(self, operation: str, role: Role, meter: Meter, **request: Any) -> Any:
        """Send one request about a table until it is answered. Raises what every verb raises."""
        retry = self._retry(operation, meter)
        once = partial(self.send, xform_name(operation), TableName=self.names[role], **request)
        while True:
            answer = retry.attempt(role, once)
            if answer is not None:
                return answer

    def _retry(self, operation: str, meter: Meter, *, commits: bool = False, rate: WriteRate | None = None) -> Retry:
        return Retry(self._retries, self._client, operation, meter, commits, rate)

    def _conditional(self, operation: str, key: Key, size: int, meter: Meter, **request: Any) -> bool:
        try:
            self.call(operation, key.role, meter, **request)
            applied = True
        except ConditionFailedError:
            applied = False
        if size:
            meter.wrote(size)  # a failed condition is paid for too
        return applied

    def _is_listed(self, key: Key, entry: bytes, retry: Retry, meter: Meter) -> bool:
        request = {"TableName": self.names[key.role], "Key": to_wire(item_key(key)), "ConsistentRead": True}
        while True:
            answer = retry.attempt(key.role, partial(self.send, "get_item", **request))
            if answer is not None:
                break
        retry.unknown = False
        item = from_wire(answer.get("Item") or {})
        meter.read([item_bytes(item)], together=False)
        versions = item.get("versions")
        listed = isinstance(versions, list) and entry in versions
        if listed:
            meter.wrote(item_bytes(item))
        return listed


def table_drift(role: Role, name: str, described: dict[str, Any]) -> list[str]:
    """How a table differs from what dynastate needs, by its description (the answer of DescribeTable)."""
    spec = SPECS[role]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    names = ((each["AttributeName"], each["KeyType"]) for each in described["KeySchema"])
    keys = [(name, kind, kinds.get(name)) for name, kind in names]
    needed = [(spec.hash_key, "HASH", "S"), (spec.range_key, "RANGE", "S")]
    drift: list[str] = []
    if keys != needed:
        there, wanted = (", ".join(f"{key} ({kind}, {data})" for key, kind, data in each) for each in (keys, needed))
        drift.append(f"table {name} has keys {there}, needed are {wanted}")
    if described.get("TableStatus", "ACTIVE") not in ("ACTIVE", "UPDATING"):
        drift.append(f"table {name} is {described['TableStatus']}, needed is ACTIVE")
    return drift


def _condition(before: Item) -> dict[str, Any]:
    """The condition that an item has these attributes, exactly, and of those that protect it no others."""
    absent = {f"#a{n}": name for n, name in enumerate((FORKS, REFUSED, VERSIONS)) if name not in before}
    same = [f"#b{n} = :b{n}" for n in range(len(before))]
    return {
        "ConditionExpression": " AND ".join([*same, *(f"attribute_not_exists({name})" for name in absent)]),
        "ExpressionAttributeNames": {f"#b{n}": name for n, name in enumerate(before)} | absent,
        "ExpressionAttributeValues": to_wire({f":b{n}": value for n, value in enumerate(before.values())}),
    }


def _count(requests: Mapping[str, Sequence[object]]) -> int:
    return sum(map(len, requests.values()))
