"""The simulation's DynamoDB acts like moto, request by request."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.wire import from_wire
from dynastate.engine.updates import advance_epoch, append_version, unchanged
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import EMPTY, Key, Role, meta_key, part_key, store_shard, version_list_key
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from tests.simulation.dynamodb import DynamoDB, Wire
from tests.support.clients import FailingClient

NAMES: Final[dict[Role, str]] = {"delta": DELTA_TABLE, "snapshot": SNAPSHOT_TABLE}
#: Parts of answers that are not about the items.
ASIDE = ("ResponseMetadata", "ConsumedCapacity", "ItemCollectionMetrics", "ScannedCount")


class Both:
    """Sends every request to both clients, and compares the answers, or the codes of the errors."""

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self.refused: list[str] = []
        self.answered: list[str] = []

    def __getattr__(self, operation: str) -> Callable[..., Wire]:
        def send(**request: Any) -> Wire:
            one, other = (_outcome(getattr(client, operation), request) for client in self._clients)
            assert _comparable(one) == _comparable(other), f"{operation} {request}"
            if isinstance(one, ClientError):
                self.refused.append(one.response["Error"]["Code"])
                raise one
            self.answered.append(operation)
            return one

        return send


def _outcome(call: Callable[..., Wire], request: Any) -> Wire | ClientError:
    try:
        return call(**request)
    except ClientError as refused:
        return refused


def _comparable(outcome: Wire | ClientError) -> object:
    if isinstance(outcome, ClientError):
        return outcome.response["Error"]["Code"]
    answer = {name: value for name, value in outcome.items() if name not in ASIDE}
    # Of the attributes of an update, moto omits unchanged ones; for a new item it returns the key, too.
    versions = answer.pop("Attributes", {}).get("versions")
    # A BatchGetItem returns items in any order.
    responses = {name: sorted(map(repr, map(_sorted, items))) for name, items in answer.pop("Responses", {}).items()}
    return answer, versions, responses


def _sorted(item: Wire) -> list[tuple[str, Any]]:
    return sorted(item.items())


@pytest.fixture
def both(failing_client: FailingClient) -> Both:
    """Moto, and the simulation's DynamoDB."""
    return Both(failing_client, DynamoDB(NAMES))


@pytest.mark.parametrize("seed", range(4))
def test_verbs_at_random(both: Both, store: str, seed: int) -> None:
    """Random requests of the engine on few items: items, conditions, version lists, epochs, queries."""
    chance = random.Random(seed)  # noqa: S311  # a test, no secret
    tables = BotoTables(Settings(region="us-east-1"), client=both)
    keys = [part_key(store, version, EMPTY[1], 0, 2) for version in range(12)]
    names = [Key("snapshot", store_shard(store, 0), name) for name in ("list/1", "list/2", "snapshot/1")]
    meta = meta_key(store)
    tables.put_new(meta, item_key(meta) | {"format": FORMAT, "epoch": 1, "epochs": {"run-0": 1}})

    def some_item(key: Key) -> Item:
        return item_key(key) | {"stage": chance.choice("ab"), "id": chance.randbytes(1), "records": chance.randrange(3)}

    def some(of: list[Key], most: int) -> list[Key]:
        return chance.sample(of, chance.randint(1, most))

    def advance() -> bool:
        epochs = tables.get([meta])[meta]["epochs"]
        assert isinstance(epochs, dict)
        read = {run: int(epoch) for run, epoch in epochs.items()} if chance.random() < 0.5 else {"run-0": 1}
        return advance_epoch(tables, meta, f"run-{len(both.answered)}", read, {})

    verbs: dict[str, Callable[[], object]] = {
        "write": lambda: tables.write([(key, some_item(key)) for key in some(keys, 6)]),
        "delete": lambda: tables.delete(some(keys, 4)),
        "get": lambda: tables.get([*some(keys, 8), *some(names, 2)]),
        "put_new": lambda: tables.put_new(key := chance.choice(names), some_item(key)),
        "put_over": lambda: tables.put_over(key := chance.choice(names), some_item(key), unchanged({"stage": "a"})),
        "delete_over": lambda: tables.delete_over(chance.choice(names), unchanged({"stage": "b"})),
        "append": lambda: append_version(tables, version_list_key(store, 40), chance.randbytes(2), "run-1"),
        "advance": advance,
        "query": lambda: tables.query("snapshot", names[0].store_shard, chance.choice("gm"), chance.choice("nsz")),
        "list": lambda: tables.list_keys(
            "delta", store_shard(store, chance.randrange(2)), "0", f"{chance.randrange(12):020d}"
        ),
    }
    for _ in range(250):
        chance.choice(list(verbs.values()))()
    assert {"ConditionalCheckFailedException"} == set(both.refused)
    assert len(both.refused) > 30
    operations = {"batch_write_item", "batch_get_item", "put_item", "delete_item", "update_item", "query"}
    assert operations <= set(both.answered)


def test_pages_of_a_query(both: Both, store: str) -> None:
    """A page that ends at its limit has a LastEvaluatedKey."""
    tables = BotoTables(Settings(region="us-east-1"), client=both)
    keys = [part_key(store, version, EMPTY[1], 0, 1) for version in range(5)]
    tables.write([(key, item_key(key)) for key in keys])
    request: Wire = {
        "TableName": DELTA_TABLE,
        "ConsistentRead": True,
        "KeyConditionExpression": "#h = :h AND #r BETWEEN :low AND :high",
        "ExpressionAttributeNames": {"#h": "store_shard", "#r": "part"},
        "ExpressionAttributeValues": {":h": {"S": keys[0].store_shard}, ":low": {"S": "0"}, ":high": {"S": "1"}},
        "Limit": 2,
    }
    first = both.query(**request)
    second = both.query(**request, ExclusiveStartKey=first["LastEvaluatedKey"])
    third = both.query(**request, ExclusiveStartKey=second["LastEvaluatedKey"])
    assert [len(page["Items"]) for page in (first, second, third)] == [2, 2, 1]
    assert "LastEvaluatedKey" not in third


def test_an_item_is_as_large_as_dynamodb_allows(both: Both, store: str) -> None:
    """409,600 bytes of names and values, whatever puts them together; moto allows less, and counts a list twice."""
    wire: Wire = {"store_shard": {"S": store}, "part": {"S": "1"}}
    room = 400 * 1024 - item_bytes(from_wire(wire)) - len("data")
    for client, size in ((both, 404_000), (DynamoDB(NAMES), room)):
        client.put_item(TableName=DELTA_TABLE, Item=wire | {"data": {"S": "x" * size}})
    for client in (both, DynamoDB(NAMES)):
        with pytest.raises(ClientError, match="ValidationException"):
            client.put_item(TableName=DELTA_TABLE, Item=wire | {"data": {"S": "x" * (room + 1)}})
    listed = {"UpdateExpression": "SET versions = list_append(if_not_exists(versions, :none), :entry)"}
    key: Wire = {"store_shard": {"S": store}, "entry": {"S": "1"}}
    for size, is_full in ((60_000, False), (360_000, True), (10_000, False)):
        values: Wire = {":none": {"L": []}, ":entry": {"L": [{"B": bytes(size)}]}}
        update: Wire = {"TableName": SNAPSHOT_TABLE, "Key": key, "ExpressionAttributeValues": values, **listed}
        with pytest.raises(ClientError, match="ValidationException") if is_full else nullcontext():
            both.update_item(**update)


def test_refused_requests(both: Both, store: str) -> None:
    """An item twice in one request, a missing table; and too many items, which moto accepts."""
    wires = [{"store_shard": {"S": store}, "part": {"S": f"{number}"}} for number in range(101)]
    puts = [{"PutRequest": {"Item": wire}} for wire in wires]
    with pytest.raises(ClientError):
        both.batch_write_item(RequestItems={DELTA_TABLE: [puts[0], puts[0]]})
    with pytest.raises(ClientError):
        both.batch_get_item(RequestItems={DELTA_TABLE: {"Keys": [wires[0], wires[0]], "ConsistentRead": True}})
    with pytest.raises(ClientError):
        both.put_item(TableName="another", Item=wires[0])
    assert both.refused == ["ValidationException"] * 2 + ["ResourceNotFoundException"]
    with pytest.raises(ClientError, match="ValidationException"):
        DynamoDB(NAMES).batch_write_item(RequestItems={DELTA_TABLE: puts[:26]})
    with pytest.raises(ClientError, match="ValidationException"):
        DynamoDB(NAMES).batch_get_item(RequestItems={DELTA_TABLE: {"Keys": wires, "ConsistentRead": True}})
