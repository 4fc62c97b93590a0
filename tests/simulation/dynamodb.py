"""DynamoDB in memory, as a boto3 client: the operations that dynastate uses, by their rules.

Every method takes the arguments of the boto3 method, acts at once, and returns or raises the same as boto3.
`test_dynamodb.py` compares it with moto, request by request.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dynastate.dynamodb.wire import from_wire
from dynastate.format.items import item_bytes
from dynastate.format.keys import SPECS, Role
from dynastate.storage.limits import STORED_BYTES_MAX
from tests.support.clients import client_error

Wire = dict[str, Any]
#: Partition key and sort key.
Place = tuple[str, str]
KEY_NAMES: Final[dict[Role, Place]] = {role: (spec.hash_key, spec.range_key) for role, spec in SPECS.items()}


class DynamoDB:
    """The tables, by name. `on_change` gets each changed item: role, place, and the item unless it was deleted."""

    def __init__(self, names: Mapping[Role, str]) -> None:
        self.roles: dict[str, Role] = {name: role for role, name in names.items()}
        self.items: dict[str, dict[Place, Wire]] = {name: {} for name in self.roles}
        self.on_change: Callable[[Role, Place, Wire | None], None] = lambda *_: None
        self._sorts: dict[str, dict[str, list[str]]] = {name: {} for name in self.roles}
        #: Whether no request arrives, and no answer comes back.
        self.is_cut = False
        #: The most bytes of an item after an append: less in schedules than DynamoDB has, so that they reach it.
        self.append_bytes_max = STORED_BYTES_MAX

    def describe_table(self, *, TableName: str) -> Wire:  # noqa: N803  # the names are boto3's
        names = KEY_NAMES[self._role(TableName)]
        keys = [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=True)]
        kinds = [{"AttributeName": name, "AttributeType": "S"} for name in names]
        return {"Table": {"TableStatus": "ACTIVE", "KeySchema": keys, "AttributeDefinitions": kinds}}

    def get_item(self, *, TableName: str, Key: Wire, ConsistentRead: bool) -> Wire:  # noqa: N803
        _must_be_consistent(ConsistentRead)
        item = self.item(TableName, Key)
        return {} if item is None else {"Item": item}

    def batch_get_item(self, *, RequestItems: Mapping[str, Wire]) -> Wire:  # noqa: N803
        responses: dict[str, list[Wire]] = {}
        for name, table in RequestItems.items():
            _must_be_consistent(table["ConsistentRead"])
            items = (self.item(name, key) for key in self._distinct(name, table["Keys"], 100))
            responses[name] = [item for item in items if item is not None]
        return {"Responses": responses, "UnprocessedKeys": {}}

    def query(self, **request: Any) -> Wire:
        """One page; it ends at `Limit` items, where DynamoDB's ends at 1 MB."""
        name = request["TableName"]
        names, values = request["ExpressionAttributeNames"], request["ExpressionAttributeValues"]
        _must_be_consistent(request["ConsistentRead"])
        _must_be(request["KeyConditionExpression"] == "#h = :h AND #r BETWEEN :low AND :high", "key condition")
        _must_be((names["#h"], names["#r"]) == KEY_NAMES[self._role(name)], "keys of a query")
        shard, low, high = (values[each]["S"] for each in (":h", ":low", ":high"))
        sorts = self._sorts[name].get(shard, [])
        first, end = bisect_left(sorts, low), bisect_right(sorts, high)
        if "ExclusiveStartKey" in request:
            first = bisect_right(sorts, request["ExclusiveStartKey"][names["#r"]]["S"])
        page = sorts[first : min(end, first + request.get("Limit", end))]
        items = [self.items[name][shard, sort] for sort in page]
        projected = request.get("ProjectionExpression")
        if projected is not None:
            attributes = [names[each] for each in projected.split(", ")]
            items = [{each: item[each] for each in attributes} for item in items]
        answer: Wire = {"Items": items, "Count": len(items)}
        # A page that ends at its limit may be the last: the next one is then empty.
        if len(page) == request.get("Limit"):
            answer["LastEvaluatedKey"] = {names["#h"]: {"S": shard}, names["#r"]: {"S": page[-1]}}
        return answer

    def batch_write_item(self, *, RequestItems: Mapping[str, list[Wire]]) -> Wire:  # noqa: N803
        writes = [(name, write) for name, each in RequestItems.items() for write in each]
        for name, each in RequestItems.items():
            keys = [
                write["DeleteRequest"]["Key"] if "DeleteRequest" in write else write["PutRequest"]["Item"]
                for write in each
            ]
            self._distinct(name, keys, 25)
        if not 1 <= len(writes) <= 25:
            raise client_error("ValidationException", message="too many items requested, or none")
        for name, write in writes:
            if "PutRequest" in write:
                self._put(name, write["PutRequest"]["Item"])
            else:
                self._remove(name, write["DeleteRequest"]["Key"])
        return {"UnprocessedItems": {}}

    def put_item(self, *, TableName: str, Item: Wire, **condition: Any) -> Wire:  # noqa: N803
        self._must_meet(TableName, Item, condition)
        self._put(TableName, Item)
        return {}

    def delete_item(self, *, TableName: str, Key: Wire, **condition: Any) -> Wire:  # noqa: N803
        self._must_meet(TableName, Key, condition)
        self._remove(TableName, Key)
        return {}

    def update_item(self, *, TableName: str, Key: Wire, UpdateExpression: str, **request: Any) -> Wire:  # noqa: N803
        request.setdefault("ExpressionAttributeNames", {})
        request.setdefault("ExpressionAttributeValues", {})
        self._must_meet(TableName, Key, request)
        old_item = self.item(TableName, Key)
        terms = Terms(old_item or {}, request["ExpressionAttributeNames"], request["ExpressionAttributeValues"])
        new_item, changed = terms.update({**(old_item or {}), **Key}, UpdateExpression)
        is_append = "list_append" in UpdateExpression
        self._put(TableName, new_item, self.append_bytes_max if is_append else STORED_BYTES_MAX)
        returns = request.get("ReturnValues", "NONE")
        _must_be(returns in ("NONE", "UPDATED_NEW", "ALL_NEW"), "ReturnValues")
        if returns == "ALL_NEW":
            return {"Attributes": new_item}
        return {"Attributes": {name: new_item[name] for name in changed}} if returns == "UPDATED_NEW" else {}

    def close(self) -> None:
        """Do nothing; a boto3 client has it."""

    def item(self, name: str, key: Wire) -> Wire | None:
        return self.items[name].get(self._place(name, key))

    def _role(self, name: str) -> Role:
        if name not in self.roles:
            raise client_error("ResourceNotFoundException", message="Requested resource not found")
        return self.roles[name]

    def _place(self, name: str, key: Wire) -> Place:
        hash_key, range_key = KEY_NAMES[self._role(name)]
        place = key[hash_key]["S"], key[range_key]["S"]
        if not all(place):
            raise client_error("ValidationException", message="a key attribute is empty")
        return place

    def _distinct(self, name: str, keys: list[Wire], most: int) -> list[Wire]:
        if not 1 <= len(keys) <= most or len({self._place(name, key) for key in keys}) < len(keys):
            raise client_error("ValidationException", message="too many keys, none, or one twice")
        return keys

    def _put(self, name: str, item: Wire, bytes_max: int = STORED_BYTES_MAX) -> None:
        if item_bytes(from_wire(item)) > bytes_max:
            raise client_error("ValidationException", message="Item size has exceeded the maximum allowed size")
        self._change(name, self._place(name, item), item)

    def _remove(self, name: str, key: Wire) -> None:
        place = self._place(name, key)
        if self.item(name, key) is not None:
            self._change(name, place, None)

    def _change(self, name: str, place: Place, item: Wire | None) -> None:
        self._set(name, place, item)
        self.on_change(self.roles[name], place, item)

    def _set(self, name: str, place: Place, item: Wire | None) -> None:
        """Put an item in its place; without one, delete that which may be there."""
        is_there, sorts = place in self.items[name], self._sorts[name].setdefault(place[0], [])
        if item is not None:
            self.items[name][place] = item
            if not is_there:
                insort(sorts, place[1])
        elif is_there:
            del self.items[name][place]
            del sorts[bisect_left(sorts, place[1])]

    def _must_meet(self, name: str, key: Wire, request: Mapping[str, Any]) -> None:
        condition = request.get("ConditionExpression")
        if condition is None:
            return
        names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})
        if not Terms(self.item(name, key) or {}, names, values).holds(condition):
            raise client_error("ConditionalCheckFailedException", message="The conditional request failed")


class Terms:
    """The expressions that dynastate sends, evaluated on one item. Any other is refused."""

    def __init__(self, item: Wire, names: Mapping[str, str], values: Mapping[str, Wire]) -> None:
        self._item = item
        self._names = names
        self._values = values

    def holds(self, condition: str) -> bool:
        return all(self._term_holds(term) for term in condition.split(" AND "))

    def _term_holds(self, term: str) -> bool:
        if match := re.fullmatch(r"attribute_(not_)?exists\(([^()]+)\)", term):
            return (self._get(match[2]) is None) is bool(match[1])
        if match := re.fullmatch(r"NOT (\S+) = (\S+)", term):
            return self._get(match[1]) != self._get(match[2])
        if match := re.fullmatch(r"(\S+) = (\S+)", term):
            left, right = self._get(match[1]), self._get(match[2])
            return left is not None and left == right
        if match := re.fullmatch(r"NOT contains\((\S+), (\S+)\)", term):
            return self._values[match[2]]["S"] not in (self._get(match[1]) or {"SS": []})["SS"]
        raise AssertionError(f"the simulation knows no condition {term}")

    def update(self, item: Wire, expression: str) -> tuple[Wire, list[str]]:
        """The item after an update, and the top attributes that it set."""
        if match := re.fullmatch(r"(SET .+) (ADD .+)", expression):
            set_item, changed = self.update(item, match[1])
            added_item, added = self.update(set_item, match[2])
            return added_item, [*changed, *added]
        if match := re.fullmatch(r"(ADD|DELETE) (#\w+) (:\w+)", expression):
            name, texts = self._name(match[2]), set(self._values[match[3]]["SS"])
            old_members = set(item.pop(name, {"SS": []})["SS"])
            members = old_members | texts if match[1] == "ADD" else old_members - texts
            return item | ({name: {"SS": sorted(members)}} if members else {}), [name]
        parts = re.fullmatch(r"SET (.+?)(?: REMOVE (.+))?", expression)
        assert parts, f"the simulation knows no update {expression}"
        # All right sides refer to the item before the update.
        sets = [(path, self._value(value)) for path, _, value in (each.partition(" = ") for each in _clauses(parts[1]))]
        changed = []
        for path, value in sets:
            top, _, inner = path.partition(".")
            name = self._name(top)
            changed.append(name)
            if inner:
                if "M" not in item.get(name, {}):
                    raise client_error("ValidationException", message="The document path is invalid for update")
                item[name] = {"M": {**item[name]["M"], self._name(inner): value}}
            else:
                item[name] = value
        for path in _clauses(parts[2]) if parts[2] else ():
            top, _, inner = path.partition(".")
            name = self._name(top)
            if inner:
                removed = self._name(inner)
                item[name] = {"M": {each: value for each, value in item[name]["M"].items() if each != removed}}
            else:
                item.pop(name, None)
        return item, changed

    def _value(self, expression: str) -> Wire:
        if match := re.fullmatch(r"list_append\((.+), ([^,()]+)\)", expression):
            return {"L": [*self._value(match[1])["L"], *self._value(match[2])["L"]]}
        if match := re.fullmatch(r"if_not_exists\((\S+), (\S+)\)", expression):
            return self._get(match[1]) or self._value(match[2])
        if match := re.fullmatch(r"(\S+) \+ (\S+)", expression):
            return {"N": str(int(self._value(match[1])["N"]) + int(self._value(match[2])["N"]))}
        value = self._get(expression)
        if value is None:
            raise client_error("ValidationException", message="an attribute of the expression does not exist")
        return value

    def _get(self, path: str) -> Wire | None:
        if path.startswith(":"):
            return self._values[path]
        top, _, inner = path.partition(".")
        value: Wire | None = self._item.get(self._name(top))
        if inner and value is not None:
            value = value.get("M", {}).get(self._name(inner))
        return value

    def _name(self, word: str) -> str:
        assert re.fullmatch(r"#?\w+", word), f"the simulation knows no path {word}"
        return self._names[word] if word.startswith("#") else word


def _clauses(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _must_be_consistent(consistency: object) -> None:
    """Refuse eventually consistent reads: no decision may depend on one."""
    _must_be(consistency is True, "an eventually consistent read")


def _must_be(holds: bool, what: str) -> None:  # noqa: FBT001
    assert holds, f"the simulation knows no such request: {what}"
