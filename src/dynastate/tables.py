"""The seam to DynamoDB: the few verbs dynastate uses, and the only boto3.

Rules of DynamoDB that engines for tests do not enforce are enforced here, before anything is sent. Retries are ours
(botocore's are off): jittered exponential back-off that starts again when there was progress, until a deadline.
Every ClientError is translated here. Units are counted by DynamoDB's own rules, so they are the same on every engine.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as boto_errors
from botocore.config import Config
from botocore.parsers import ResponseParserError

from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
)
from dynastate.layout import DROPPED, FORKS, FORMAT, SPECS, Item, Key, Role, Value, item_bytes, item_key, where
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings

log = logging.getLogger("dynastate.tables")

WRITES_MAX: Final = 25
KEYS_MAX: Final = 100
#: 25 such items are 13.4 MB in base64, so no write can be larger than the 16 MB that BatchWriteItem takes on the wire.
ITEM_BYTES_MAX: Final = 400_000
PARTITION_KEY_BYTES_MAX: Final = 2_048
SORT_KEY_BYTES_MAX: Final = 1_024
#: Until DynamoDB has answered once, or is known to (`expect_answers`), a wrong endpoint is likelier than an outage.
FIRST_CONTACT_DEADLINE_S: Final = 6.0
BACK_OFF_FIRST_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
#: Retries are told in the log at most so often, table by table.
TELL_EVERY_S: Final = 10.0
#: Connections that are kept. Every task that opens or commits has a request of its own under way, beside the parallel
#: ones; a connection more than these is closed after one request, and a new one costs a handshake.
CONNECTIONS_MAX: Final = 256
#: From here on the back-off is at its maximum.
_DOUBLINGS_MAX: Final = 7

_THROTTLED = {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling"}
_CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "MissingAuthenticationTokenException",
    "IncompleteSignatureException",
}
#: From here on AWS repeats what was signed, and the session token is part of that.
_SIGNED = re.compile(r"\n|The Canonical String|The String-to-Sign", re.IGNORECASE)
_DENIED = {"AccessDeniedException", "KMSAccessDeniedException"}
_NOT_SENT = (
    boto_errors.EndpointConnectionError,
    boto_errors.ConnectTimeoutError,
    boto_errors.ProxyConnectionError,
)
_NO_CREDENTIALS = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
)

Result = TypeVar("Result")


def units_of_write(size: int) -> int:
    """Write units of an item of `size` bytes: one a KB, rounded up. A delete costs what a write of the item would."""
    return max(1, -(-size // 1024))


@dataclass
class Meter:
    """What was spent: requests with their retries, throttles, units by DynamoDB's rules, bytes and items moved.

    Cache hits are parts that were wanted and not read, because they were in memory; misses are those that were read.
    """

    requests: int = 0
    retries: int = 0
    throttles: int = 0
    write_units: int = 0
    read_units: int = 0
    items_written: int = 0
    bytes_written: int = 0
    items_read: int = 0
    bytes_read: int = 0
    items_deleted: int = 0
    delete_units: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def add(self, other: Meter) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def wrote(self, size: int) -> None:
        """Count one written item of `size` bytes: one unit a KB, rounded up."""
        self.write_units += units_of_write(size)
        self.items_written += 1
        self.bytes_written += size

    def deleted(self, sizes: Iterable[int]) -> None:
        """Count deletes: each is paid for by the size of what it deletes, as a write of it would be."""
        self.delete_units += sum(map(units_of_write, sizes))

    def read(self, sizes: Iterable[int], *, together: bool) -> None:
        """Count a strongly consistent read: one unit per 4 KB, rounded up per item, or (Query) over the sum."""
        listed = list(sizes)
        self.read_units += (
            max(1, -(-sum(listed) // 4096)) if together else sum(max(1, -(-size // 4096)) for size in listed)
        )
        self.items_read += len(listed)
        self.bytes_read += sum(listed)


class Tables(Protocol):
    """What the engine asks of DynamoDB. Reads are strongly consistent; each verb counts what it spent into `meter`.

    Every verb raises ConfigurationError where trying again changes nothing, and UnavailableError at the deadline; those
    that read raise CorruptStateError where an item holds a value of a kind that dynastate never writes.
    """

    @property
    def names(self) -> Mapping[Role, str]:
        """The tables by the names the user gave them."""
        return {"delta": DELTA_TABLE, "snapshot": SNAPSHOT_TABLE}

    def check(self) -> list[str]:
        """How the live tables differ from what the package needs; empty: they fit."""

    def query(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[tuple[Key, Item]]:
        """All items of one partition key with sort keys from low to high, both inclusive, in order."""

    def get(self, keys: Sequence[Key], meter: Meter, only: Sequence[str] = ()) -> dict[Key, Item]:
        """Up to 100 items; those that do not exist are left out.

        With `only`, no other attributes come but the keys. DynamoDB takes the units of the whole items for them, which
        are not counted here: nobody knows how large these are.
        """

    def write(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> None:
        """Put up to 25 items; returns when all of them are durable."""

    def delete(self, keys: Sequence[Key], meter: Meter) -> None:
        """Delete up to 25 items; those that do not exist are none."""

    def put_new(self, key: Key, item: Item, meter: Meter) -> bool:
        """Put an item unless its key is taken; False: it is."""

    def put_over(self, key: Key, item: Item, before: Item, meter: Meter) -> bool:
        """Put an item in place of one that has the attributes `before`, exactly; False: it is gone or has others.

        Nor is one replaced that a fork stands on: False.
        """

    def delete_over(self, key: Key, before: Item, meter: Meter) -> bool:
        """Delete an item that has the attributes `before`, exactly; False: it is gone or has others.

        Nor is one deleted that a fork stands on: False.
        """

    def list_keys(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[Key]:
        """Keys of all items of one partition key with sort keys from low to high, both inclusive, in order."""

    def append_version(self, key: Key, entry: bytes, meter: Meter) -> list[bytes]:
        """Append to the version list; the list as it then is. It is not told where the answer was lost: no entries.

        Raises UnknownOutcomeError when it may or may not have happened.
        """

    def advance_epoch(self, key: Key, run: str, epoch: int, forget: Sequence[str], meter: Meter) -> bool:
        """Advance the meta item's epoch by one from `epoch`, and enter the run, in the place of those to forget.

        A drop of the store that was begun is taken back. False: it is another epoch by now, the run is there already,
        or one to forget is not.
        """

    def add_to_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        """Add texts to the set that an attribute of an item is; the item as it then is, None: there is none."""

    def remove_from_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        """Remove texts from the set that an attribute of an item is; the item as it then is, None: there is none.

        What is not in it is passed over, and with the last text the attribute goes.
        """


def delete_all(tables: Tables, keys: Sequence[Key], meter: Meter) -> None:
    """Delete any number of items, 25 a request."""
    for at in range(0, len(keys), WRITES_MAX):
        tables.delete(keys[at : at + WRITES_MAX], meter)


def get_apart(tables: Tables, keys: Sequence[Key], meter: Meter, only: Sequence[str] = ()) -> dict[Key, Item]:
    """As `Tables.get`, of any number, and with requests for each namespace.

    One for two is denied where each has a policy of its own. Only what a fork reads lies in two.
    """
    apart: dict[str, list[Key]] = {}
    for key in keys:
        apart.setdefault(key.namespace, []).append(key)
    found: dict[Key, Item] = {}
    for each in apart.values():
        for at in range(0, len(each), KEYS_MAX):
            found |= tables.get(each[at : at + KEYS_MAX], meter, only)
    return found


class Fate(Enum):
    """What became of a request that failed."""

    REFUSED = auto()  # for good: nothing was done, and trying again changes nothing
    THROTTLED = auto()  # nothing was done; later it may be
    NOT_SENT = auto()  # nothing was done: no connection
    UNKNOWN = auto()  # it may have been done


def fate_of(error: Exception) -> Fate:
    """Sort an error of boto3 by what it says of the request."""
    if isinstance(error, boto_errors.ClientError):
        if error.response["Error"].get("Code") in _THROTTLED:
            return Fate.THROTTLED
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return Fate.UNKNOWN if status >= 500 else Fate.REFUSED
    if isinstance(error, _NOT_SENT):
        return Fate.NOT_SENT
    # TLS may break after the request was sent as well as before.
    if isinstance(error, (boto_errors.HTTPClientError, boto_errors.SSLError, ResponseParserError)):
        return Fate.UNKNOWN
    return Fate.REFUSED


def _code_of(error: Exception) -> str:
    return str(error.response["Error"].get("Code")) if isinstance(error, boto_errors.ClientError) else ""


def throttling_reasons(error: Exception | None) -> str:
    """Which limit was hit, as DynamoDB says: table, key range, account or on-demand cap."""
    if not isinstance(error, boto_errors.ClientError):
        return "not said"
    # ThrottlingException spells it with a small t, the other exceptions with a large one.
    reasons = error.response.get("ThrottlingReasons") or error.response.get("throttlingReasons") or []
    return ",".join(f"{one.get('reason', '?')}:{one.get('resource', '?')}" for one in reasons) or "not said"


class BotoTables:
    """The two tables through boto3. Safe for threads. `sleep`, `clock` and `random` come in so that tests can own them.

    Raises:
        ConfigurationError: no Region, or the client cannot be made.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        randomness: random.Random | None = None,
        client: Any = None,  # a boto3 client has no type of its own
    ) -> None:
        self.settings = settings
        self.names: dict[Role, str] = {"delta": settings.delta_table, "snapshot": settings.snapshot_table}
        self._roles: dict[str, Role] = {name: role for role, name in self.names.items()}
        self._clock = clock
        self._sleep = sleep
        self._random = randomness or random.Random()  # noqa: S311  # jitter is no secret
        self._client = client or make_client(settings)
        self._answered = False
        self._told: dict[Role, float] = {}

    # ------------------------------------------------------------------------------------------------------------ verbs

    def check(self) -> list[str]:
        drift: list[str] = []
        for role in SPECS:
            name = self.names[role]
            answer = self.call("DescribeTable", role, Meter(), partial(self._client.describe_table, TableName=name))
            if "Table" not in answer:
                raise ConfigurationError(
                    f"what answers at {self.where()} is no DynamoDB; check {PREFIX}endpoint", table=name
                )
            drift += table_drift(role, name, answer["Table"])
        return drift

    def query(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[tuple[Key, Item]]:
        return [(self._key(role, item), item) for item in self._query(role, store_shard, low, high, meter)]

    def _query(
        self, role: Role, store_shard: str, low: str, high: str, meter: Meter, **projection: str
    ) -> Iterator[Item]:
        spec = SPECS[role]
        request: dict[str, Any] = {
            "TableName": self.names[role],
            "ConsistentRead": True,
            "KeyConditionExpression": "#h = :h AND #r BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#h": spec.hash_key, "#r": spec.range_key},
            "ExpressionAttributeValues": to_wire({":h": store_shard, ":low": low, ":high": high}),
        } | projection
        while True:
            page = self.call("Query", role, meter, lambda: self._client.query(**request))
            items = [self._item(role, raw) for raw in page["Items"]]
            meter.read(map(item_bytes, items), together=True)
            yield from items
            # A page may be empty and still not be the last one.
            if not page.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def get(self, keys: Sequence[Key], meter: Meter, only: Sequence[str] = ()) -> dict[Key, Item]:
        refuse_keys(keys, KEYS_MAX)
        how = {"ConsistentRead": True} | (_projection([*SPECS[keys[0].role][1:], *only]) if only else {})
        waiting: dict[str, Any] = {}
        for key in keys:
            table = waiting.setdefault(self.names[key.role], {"Keys": []} | how)
            table["Keys"].append(to_wire(item_key(key)))
        found: dict[Key, Item] = {}
        retry = _Retry(self, "BatchGetItem", meter)
        while waiting:
            answer = retry.attempt(keys[0].role, partial(self._client.batch_get_item, RequestItems=waiting))
            if answer is None:
                continue
            before = len(found)
            for name, raws in answer["Responses"].items():
                items = [self._item(self._roles[name], raw) for raw in raws]
                meter.read(map(item_bytes, items), together=False)
                found.update((self._key(self._roles[name], item), item) for item in items)
            unprocessed = answer.get("UnprocessedKeys") or {}
            waiting = {name: {"Keys": rest["Keys"]} | how for name, rest in unprocessed.items()}
            if waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=len(found) > before)
        return found

    def write(self, puts: Sequence[tuple[Key, Item]], meter: Meter) -> None:
        refuse_keys([key for key, _ in puts], WRITES_MAX)
        refuse_items(puts)
        requests = [(key, {"PutRequest": {"Item": to_wire(item)}}) for key, item in puts]
        self._batch_write(requests, meter)
        for _, item in puts:
            meter.wrote(item_bytes(item))

    def delete(self, keys: Sequence[Key], meter: Meter) -> None:
        refuse_keys(keys, WRITES_MAX)
        self._batch_write([(key, {"DeleteRequest": {"Key": to_wire(item_key(key))}}) for key in keys], meter)
        meter.items_deleted += len(keys)

    def find_stores(self, meter: Meter) -> Iterator[str]:
        """Every store that has a meta item, in no order: for people who look, never for the engine.

        Partition keys cannot be listed, but a scan may begin behind any of them. So it takes a request for each
        partition key of the table, and the units of the first item of each.
        """
        spec = SPECS["snapshot"]
        request: dict[str, Any] = {"TableName": self.names["snapshot"], "Limit": 1} | _projection([spec.hash_key])
        while True:
            page = self.call("Scan", "snapshot", meter, lambda: self._client.scan(**request))
            if not page["Items"]:
                if not page.get("LastEvaluatedKey"):
                    return
                request["ExclusiveStartKey"] = page["LastEvaluatedKey"]  # a page may be empty before the end
                continue
            store_shard = str(from_wire(page["Items"][0])[spec.hash_key])
            if store_shard.endswith("#0"):
                yield store_shard.removesuffix("#0")
            request["ExclusiveStartKey"] = to_wire({spec.hash_key: store_shard, spec.range_key: "\U0010ffff"})

    def put_new(self, key: Key, item: Item, meter: Meter) -> bool:
        refuse_keys([key], 1)
        refuse_items([(key, item)])
        request = {
            "TableName": self.names[key.role],
            "Item": to_wire(item),
            "ConditionExpression": "attribute_not_exists(#h)",
            "ExpressionAttributeNames": {"#h": SPECS[key.role].hash_key},
        }
        return self._conditional("PutItem", key, partial(self._client.put_item, **request), item_bytes(item), meter)

    def put_over(self, key: Key, item: Item, before: Item, meter: Meter) -> bool:
        refuse_keys([key], 1)
        refuse_items([(key, item)])
        request = {"TableName": self.names[key.role], "Item": to_wire(item)} | _condition(before)
        return self._conditional("PutItem", key, partial(self._client.put_item, **request), item_bytes(item), meter)

    def delete_over(self, key: Key, before: Item, meter: Meter) -> bool:
        refuse_keys([key], 1)
        request = {"TableName": self.names[key.role], "Key": to_wire(item_key(key))} | _condition(before)
        applied = self._conditional("DeleteItem", key, partial(self._client.delete_item, **request), 0, meter)
        meter.deleted([item_bytes(item_key(key) | before)])
        return applied

    def list_keys(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[Key]:
        found = self._query(role, store_shard, low, high, meter, ProjectionExpression="#h, #r")
        return [self._key(role, item) for item in found]

    def append_version(self, key: Key, entry: bytes, meter: Meter) -> list[bytes]:
        refuse_keys([key], 1)
        request = {
            "TableName": self.names[key.role],
            "Key": to_wire(item_key(key)),
            "UpdateExpression": "SET versions = list_append(if_not_exists(versions, :none), :entry), #f = :format",
            "ExpressionAttributeNames": {"#f": "format"},
            "ExpressionAttributeValues": to_wire({":none": [], ":entry": [entry], ":format": FORMAT}),
            "ReturnValues": "UPDATED_NEW",
        }
        retry = _Retry(self, "UpdateItem", meter, commits=True)
        while True:
            # After an answer was lost, the list itself says whether the entry is in it.
            if retry.unknown and self._is_listed(key, entry, retry, meter):
                return []
            answer = retry.attempt(key.role, lambda: self._client.update_item(**request))
            if answer is not None:
                now = from_wire(answer["Attributes"])
                meter.wrote(item_bytes(item_key(key) | now))
                versions = now["versions"]
                return versions if isinstance(versions, list) else []

    def advance_epoch(self, key: Key, run: str, epoch: int, forget: Sequence[str], meter: Meter) -> bool:
        names = {"#run": run, "#dropped": DROPPED} | {f"#old{n}": old for n, old in enumerate(forget)}
        remove = ", ".join(["#dropped", *(f"epochs.#old{n}" for n in range(len(forget)))])
        # The condition on runs to forget keeps two executors from removing more than each of them saw; that on the
        # epoch keeps a request that was long on its way from making a run the newest that is over.
        gone = (f"attribute_exists(epochs.#old{n})" for n in range(len(forget)))
        condition = " AND ".join(["epoch = :epoch", "attribute_not_exists(epochs.#run)", *gone])
        request = {
            "TableName": self.names[key.role],
            "Key": to_wire(item_key(key)),
            "UpdateExpression": f"SET epoch = epoch + :one, epochs.#run = epoch + :one REMOVE {remove}",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": to_wire({":one": 1, ":epoch": epoch}),
        }
        return self._conditional("UpdateItem", key, partial(self._client.update_item, **request), 1024, meter)

    def add_to_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        return self._change_set("ADD", key, name, texts, meter)

    def remove_from_set(self, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        return self._change_set("DELETE", key, name, texts, meter)

    def _change_set(self, how: str, key: Key, name: str, texts: Collection[str], meter: Meter) -> Item | None:
        refuse_keys([key], 1)
        request = {
            "TableName": self.names[key.role],
            "Key": to_wire(item_key(key)),
            "UpdateExpression": f"{how} #s :texts",
            "ConditionExpression": "attribute_exists(#h)",
            "ExpressionAttributeNames": {"#s": name, "#h": SPECS[key.role].hash_key},
            "ExpressionAttributeValues": to_wire({":texts": frozenset(texts)}),
            "ReturnValues": "ALL_NEW",
        }
        try:
            answer = self.call("UpdateItem", key.role, meter, partial(self._client.update_item, **request))
        except _ConditionFailedError:
            meter.wrote(0)
            return None
        item = self._item(key.role, answer["Attributes"])
        meter.wrote(item_bytes(item))
        return item

    def expect_answers(self) -> None:
        """Take DynamoDB to be there: from here on its absence is an outage, to be waited out, and no wrong setting."""
        self._answered = True

    def close(self) -> None:
        """Close the connections. The verbs must not be called after it."""
        self._client.close()

    # ---------------------------------------------------------------------------------------------------------- inside

    def where(self) -> str:
        """The endpoint or Region, for messages."""
        return self.settings.endpoint or f"the Region {self.settings.region or 'of the environment'}"

    def _item(self, role: Role, raw: dict[str, Any]) -> Item:
        try:
            return from_wire(raw)
        except CorruptStateError as foreign:
            keys = (SPECS[role].hash_key, SPECS[role].range_key)
            key = self._key(role, from_wire({name: raw[name] for name in keys}))
            raise CorruptStateError(str(foreign), **where(key)) from foreign

    def _tell(self, operation: str, role: Role, error: Exception | None, now: float) -> None:
        """Say in the log that a table throttles, and which limit was hit, or that it does not answer."""
        if now < self._told.get(role, -TELL_EVERY_S) + TELL_EVERY_S:
            return
        self._told[role] = now
        if error is None or fate_of(error) is Fate.THROTTLED:
            what = f"throttles reasons={throttling_reasons(error)}"
        else:
            what = f"gives no proper answer: {error}"
        log.warning("DynamoDB %s; retried operation=%s table=%s", what, operation, self.names[role])

    def _key(self, role: Role, item: Item) -> Key:
        return Key(role, str(item[SPECS[role].hash_key]), str(item[SPECS[role].range_key]))

    def call(self, operation: str, role: Role, meter: Meter, once: Callable[[], Result]) -> Result:
        """Send one request until it is answered. Raises what every verb raises."""
        retry = _Retry(self, operation, meter)
        while True:
            answer = retry.attempt(role, once)
            if answer is not None:
                return answer

    def _batch_write(self, requests: Sequence[tuple[Key, dict[str, Any]]], meter: Meter) -> None:
        waiting: dict[str, list[dict[str, Any]]] = {}
        for key, request in requests:
            waiting.setdefault(self.names[key.role], []).append(request)
        retry = _Retry(self, "BatchWriteItem", meter)
        while waiting:
            sent = _count(waiting)
            answer = retry.attempt(requests[0][0].role, partial(self._client.batch_write_item, RequestItems=waiting))
            if answer is None:
                continue
            waiting = answer.get("UnprocessedItems") or {}
            if waiting:
                retry.answered_in_part(self._roles[next(iter(waiting))], progress=_count(waiting) < sent)

    def _conditional(
        self, operation: str, key: Key, once: Callable[[], dict[str, Any]], size: int, meter: Meter
    ) -> bool:
        try:
            self.call(operation, key.role, meter, once)
            applied = True
        except _ConditionFailedError:
            applied = False
        if size:
            meter.wrote(size)  # a failed condition is paid for too
        return applied

    def _is_listed(self, key: Key, entry: bytes, retry: _Retry, meter: Meter) -> bool:
        request = {"TableName": self.names[key.role], "Key": to_wire(item_key(key)), "ConsistentRead": True}
        while True:
            answer = retry.attempt(key.role, partial(self._client.get_item, **request))
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


def _projection(names: Sequence[str]) -> dict[str, Any]:
    """That of an item only these attributes come."""
    spelt = {f"#p{n}": name for n, name in enumerate(names)}
    return {"ProjectionExpression": ", ".join(spelt), "ExpressionAttributeNames": spelt}


def _condition(before: Item) -> dict[str, Any]:
    """The condition that an item has these attributes, exactly, and that no fork stands on it."""
    same = [f"#b{n} = :b{n}" for n in range(len(before))]
    return {
        "ConditionExpression": " AND ".join([*same, "attribute_not_exists(#forks)"]),
        "ExpressionAttributeNames": {f"#b{n}": name for n, name in enumerate(before)} | {"#forks": FORKS},
        "ExpressionAttributeValues": to_wire({f":b{n}": value for n, value in enumerate(before.values())}),
    }


def _count(requests: Mapping[str, Sequence[object]]) -> int:
    return sum(map(len, requests.values()))


class _ConditionFailedError(Exception):
    """A condition was not met. Never leaves this module."""


class _Retry:
    """The retries of one verb: back-off with full jitter that starts again at progress, and a deadline without any.

    For a request that `commits`: `unknown` is set while one that may have been applied has no answer, and `_doubt` for
    good once there was one; then every failure is an UnknownOutcomeError.
    """

    def __init__(self, tables: BotoTables, operation: str, meter: Meter, *, commits: bool = False) -> None:
        self._tables = tables
        self._commits = commits
        self._operation = operation
        self._meter = meter
        self._failures = 0
        self._since = tables._clock()  # noqa: SLF001  # one class in two parts
        self.unknown = False
        self._doubt = False

    def attempt(self, role: Role, once: Callable[[], Result]) -> Result | None:
        """Send one request; None: it failed, and was waited for, so send it again."""
        tables = self._tables
        self._meter.requests += 1
        try:
            answer = once()
        except (boto_errors.ClientError, boto_errors.BotoCoreError, ResponseParserError) as error:
            fate = fate_of(error)
            tables._answered |= isinstance(error, boto_errors.ClientError)  # noqa: SLF001
            if fate is Fate.REFUSED:
                shown = None if _code_of(error) in _CREDENTIALS else error  # no trace may show what was signed
                raise self._failure(translate(error, self._operation, role, tables)) from shown
            if self._commits and fate is Fate.UNKNOWN:
                self.unknown = self._doubt = True
            self._meter.throttles += fate is Fate.THROTTLED
            self._wait(error, role)
            return None
        except OSError as error:  # botocore lets those of files and programs with credentials through as they are
            self._doubt |= self._commits
            message = f"AWS credentials cannot be read, or the request cannot be made: {error}"
            facts = {"operation": self._operation, "table": tables.names[role]}
            raise self._failure(ConfigurationError(message, **facts)) from error
        tables._answered = True  # noqa: SLF001
        return answer

    def answered_in_part(self, role: Role, *, progress: bool) -> None:
        """Some of the request was not done (DynamoDB throttles so): wait before the rest is sent."""
        self._meter.throttles += 1
        if progress:
            self._failures = 0
            self._since = self._tables._clock()  # noqa: SLF001
        self._wait(None, role)

    def _wait(self, error: Exception | None, role: Role) -> None:
        tables = self._tables
        deadline_s = float(tables.settings.request_deadline_s)
        if not tables._answered:  # noqa: SLF001
            deadline_s = min(deadline_s, FIRST_CONTACT_DEADLINE_S)
        now = tables._clock()  # noqa: SLF001
        waited = now - self._since
        tables._tell(self._operation, role, error, now)  # noqa: SLF001
        if waited >= deadline_s:
            raise self._failure(self._gave_up(error, role, waited)) from error
        doublings = min(self._failures, _DOUBLINGS_MAX)
        pause = tables._random.uniform(0, min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2**doublings))  # noqa: SLF001
        self._failures += 1
        self._meter.retries += 1
        tables._sleep(min(pause, deadline_s - waited))  # noqa: SLF001  # the last try is at the deadline, not before

    def _failure(self, found: Exception) -> Exception:
        if self._doubt:
            return UnknownOutcomeError(f"a commit was sent and may have happened; retry the task: {found}")
        return found

    def _gave_up(self, error: Exception | None, role: Role, waited: float) -> DynastateError:
        tables = self._tables
        facts = {
            "operation": self._operation,
            "table": tables.names[role],
            "tries": self._failures + 1,
            "seconds": round(waited, 1),
        }
        if error is None or fate_of(error) is Fate.THROTTLED:
            return UnavailableError(
                f"DynamoDB throttled this until the deadline; raise the table's capacity, or {PREFIX}requestDeadlineS",
                **facts,
                reasons=throttling_reasons(error),
            )
        if not tables._answered:  # noqa: SLF001
            return ConfigurationError(
                f"DynamoDB cannot be reached at {tables.where()}; check {PREFIX}endpoint (http or https?) and "
                f"{PREFIX}region, and the network: {error}",
                **facts,
            )
        return UnavailableError(f"DynamoDB gave no proper answer until the deadline: {error}", **facts)


def make_client(settings: Settings) -> Any:  # a boto3 client has no type of its own
    """A boto3 client for these settings, with its own retries off. Credentials come from boto3's standard chain.

    Raises:
        ConfigurationError: no Region is known.
    """
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=2,
        read_timeout=10,
        tcp_keepalive=True,
        max_pool_connections=CONNECTIONS_MAX,
        parameter_validation=False,  # our own checks stand before it, and it costs a third of a request's CPU
        user_agent_extra="dynastate",
        # A proxy of the environment cannot reach a loopback address, and botocore does not know that.
        proxies={} if (urlsplit(settings.endpoint).hostname or "") in ("127.0.0.1", "localhost", "::1") else None,
    )
    # boto3 knows AWS_DEFAULT_REGION only; AWS_REGION is what containers of EKS and ECS and the other SDKs have.
    region = settings.region or os.environ.get("AWS_REGION") or None
    try:
        return boto3.session.Session().client(
            "dynamodb", region_name=region, endpoint_url=settings.endpoint or None, config=config
        )
    except boto_errors.NoRegionError as error:
        raise ConfigurationError(
            f"no AWS Region is known; set {PREFIX}region (--region), or AWS_REGION on the executors"
        ) from error
    except (boto_errors.BotoCoreError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"no DynamoDB client can be made; check {PREFIX}endpoint, {PREFIX}region and the AWS profile: {error}"
        ) from error


def translate(error: Exception, operation: str, role: Role, tables: BotoTables) -> Exception:
    """The error a user gets for one that trying again does not mend."""
    table, setting = tables.names[role], PREFIX + ("deltaTable" if role == "delta" else "snapshotTable")
    said = error.response["Error"] if isinstance(error, boto_errors.ClientError) else {}
    code, text = said.get("Code", ""), said.get("Message", "")
    if code == "ConditionalCheckFailedException":
        return _ConditionFailedError()
    if isinstance(error, _NO_CREDENTIALS):
        message = f"no AWS credentials: boto3's standard chain found none on this machine ({error})"
    elif not isinstance(error, boto_errors.ClientError):
        message = f"boto3 cannot send this request: {error}"
    elif code == "ResourceNotFoundException":
        message = (
            f"table {table} ({setting}) does not exist at {tables.where()}; make it with Terraform (infra/), "
            f"for development with 'dynastate tables create', or correct the setting"
        )
    elif code in _CREDENTIALS:
        message = f"AWS refuses the credentials: {_SIGNED.split(text)[0].strip() or code}"
    elif code in _DENIED:
        message = f"AWS denies permission for {operation} on table {table}; grant it to the role that runs this: {text}"
    elif code == "ValidationException" and "item size" in text.lower():
        message = (
            "an item is as large as DynamoDB lets it be, so its version list takes no more: these versions were made "
            "again thousands of times; see in Spark's log why their batches fail after state is committed, and let the "
            f"query go on from an earlier batch: {text}"
        )
    elif code == "ValidationException":
        message = (
            f"DynamoDB refuses the request; 'dynastate tables check' tells whether table {table} ({setting}) "
            f"has the right keys: {text}"
        )
    else:
        message = f"DynamoDB refuses the request: {code}: {text}"
    return ConfigurationError(message, operation=operation, table=table)


def table_drift(role: Role, name: str, described: dict[str, Any]) -> list[str]:
    """How one described table differs from what the package needs."""
    spec = SPECS[role]
    kinds = {
        definition["AttributeName"]: definition["AttributeType"] for definition in described["AttributeDefinitions"]
    }
    keys = [
        (element["AttributeName"], element["KeyType"], kinds.get(element["AttributeName"]))
        for element in described["KeySchema"]
    ]
    needed = [(spec.hash_key, "HASH", "S"), (spec.range_key, "RANGE", "S")]
    drift: list[str] = []
    if keys != needed:
        drift.append(f"table {name} has keys {_spell(keys)}, needed are {_spell(needed)}")
    if described.get("TableStatus", "ACTIVE") not in ("ACTIVE", "UPDATING"):
        drift.append(f"table {name} is {described['TableStatus']}, needed is ACTIVE")
    return drift


def _spell(keys: Sequence[tuple[str, str, str | None]]) -> str:
    return ", ".join(f"{name} ({kind}, {data})" for name, kind, data in keys)


def refuse_keys(keys: Sequence[Key], most: int) -> None:
    """What DynamoDB refuses a whole request for: none or too many keys, one twice, one empty or too long.

    Raises:
        InternalError: always a defect of ours, found before it is sent.
    """
    if not 1 <= len(keys) <= most:
        raise InternalError("a request has no or too many items", items=len(keys), most=most)
    if len(set(keys)) != len(keys):
        raise InternalError("a request has one key twice", keys=len(keys), distinct=len(set(keys)))
    for key in keys:
        lengths = len(key.store_shard.encode()), len(key.sort.encode())
        if not (1 <= lengths[0] <= PARTITION_KEY_BYTES_MAX and 1 <= lengths[1] <= SORT_KEY_BYTES_MAX):
            raise InternalError("a key is empty or too long", partition_key_bytes=lengths[0], sort_key_bytes=lengths[1])


def refuse_items(puts: Sequence[tuple[Key, Item]]) -> None:
    """What DynamoDB refuses a whole request for: an item too large.

    Raises:
        InternalError: a defect of ours, found before it is sent.
    """
    for key, item in puts:
        size = item_bytes(item)
        if size > ITEM_BYTES_MAX:
            raise InternalError(
                "an item is too large for DynamoDB", item=key.sort, item_bytes=size, most=ITEM_BYTES_MAX
            )


def to_wire(item: Item) -> dict[str, Any]:
    """DynamoDB's attribute values for ours."""
    return {name: _value_to_wire(value) for name, value in item.items()}


def _value_to_wire(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, list):
        return {"L": [{"B": element} for element in value]}
    if isinstance(value, frozenset):
        return {"SS": sorted(value)}
    return {"M": {name: {"N": str(number)} for name, number in value.items()}}


def from_wire(raw: dict[str, Any]) -> Item:
    """Our values for DynamoDB's.

    Raises:
        CorruptStateError: a value of a kind that dynastate never writes: the item is someone else's.
    """
    return {name: _value_from_wire(name, value) for name, value in raw.items()}


def _value_from_wire(name: str, value: dict[str, Any]) -> Value:
    kind, held = next(iter(value.items()))
    try:
        if kind in ("S", "B"):
            return held  # type: ignore[no-any-return]  # text and bytes as they are
        if kind == "N":
            return int(held)
        if kind == "L":
            return [element["B"] for element in held]
        if kind == "SS":
            return frozenset(held)
        if kind == "M":
            return {inner: int(number["N"]) for inner, number in held.items()}
    except (ValueError, KeyError) as error:
        raise CorruptStateError(
            "an item holds a value that dynastate never writes", attribute=name, kind=kind
        ) from error
    raise CorruptStateError("an item holds a value that dynastate never writes", attribute=name, kind=kind)
