"""The policies of the bucket for blocks compared with the requests that the code sends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

import pytest

from dynastate.dynamodb.meter import Meter
from dynastate.errors import ConfigurationError
from dynastate.format.objects import ObjectId
from dynastate.operations.drop import drop_stores
from dynastate.operations.verify import verify
from tests.infra.conftest import INFRA
from tests.support.engine_driver import attempt, begin, make_engine, numbers, read, save_snapshot, write, write_versions
from tests.support.fakes import MemoryObjects, MemoryTables

BUCKET = "arn:aws:s3:::team"
Access = tuple[str, str, str | None]


def rendered(role: str, namespace: str) -> list[dict[str, Any]]:
    """The statements of a role's policy for a namespace, in a bucket with the prefix `state`."""
    text = (INFRA / "policies" / f"blocks_{role}.json.tftpl").read_text()
    values = {
        "bucket_arn": BUCKET,
        "objects": json.dumps([f"{BUCKET}/state/{namespace}/*"]),
        "prefixes": json.dumps([f"state/{namespace}/*"]),
    }
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    statements: list[dict[str, Any]] = json.loads(text)["Statement"]
    return statements


def several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def allows(statements: Sequence[dict[str, Any]], access: Access) -> bool:
    """Judge as IAM does: action and resource match, and a prefix, where there is one."""
    action, resource, prefix = access
    for each in statements:
        condition = each.get("Condition", {"StringLikeIfExists": {"s3:prefix": ["*"]}})
        (patterns,) = condition["StringLikeIfExists"].values()
        if (
            action in several(each["Action"])
            and any(fnmatchcase(resource, one) for one in several(each["Resource"]))
            and (prefix is None or any(fnmatchcase(prefix, one) for one in patterns))
        ):
            return True
    return False


class GuardedObjects(MemoryObjects):
    """An S3 that refuses what a policy does not allow, and records what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[dict[str, Any]] | None = None
        self.asked: set[Access] = set()

    def _ask(self, action: str, resource: str, prefix: str | None = None) -> None:
        access = f"s3:{action}", resource, prefix
        self.asked.add(access)
        if self.statements is not None and not allows(self.statements, access):
            raise ConfigurationError("AWS denies permission", action=action)

    def put(self, place: ObjectId, data: bytes, meter: Meter) -> None:
        self._ask("PutObject", f"arn:aws:s3:::{place.bucket}/{place.key}")
        super().put(place, data, meter)

    def get(self, place: ObjectId, start: int, end: int, meter: Meter) -> bytes | None:
        self._ask("GetObject", f"arn:aws:s3:::{place.bucket}/{place.key}")
        return super().get(place, start, end, meter)

    def names(self, location: str, prefix: str, meter: Meter) -> Iterator[ObjectId]:
        whole = ObjectId(location, prefix)
        self._ask("ListBucket", f"arn:aws:s3:::{whole.bucket}", whole.key)
        return super().names(location, prefix, meter)

    def delete(self, places: Sequence[ObjectId], meter: Meter) -> None:
        for place in places:
            self._ask("DeleteObject", f"arn:aws:s3:::{place.bucket}/{place.key}")
        super().delete(places, meter)


class GuardedTables(MemoryTables):
    """Tables beside such an S3."""

    def __init__(self) -> None:
        super().__init__()
        self.guarded = self._objects = GuardedObjects()


@pytest.mark.usefixtures("always_worth_it")
def test_roles_may_do_what_they_do_and_nothing_else() -> None:
    """Executors write, read, list and delete objects of their namespace; readers read and list; none does more."""
    tables, store = GuardedTables(), "orders/0/0/default"
    objects = tables.guarded
    how: dict[str, Any] = {"blocks": "s3://team/state", "put_price": Decimal(0)}
    objects.statements = rendered("writer", "orders")
    with closing(make_engine(tables, **how)) as engine:
        made = write_versions(engine, store, 12)
        begin(engine, store, attempt(77), {b"x": b"y"}, base=made[12]).abort()
        save_snapshot(engine, store, made[10], numbers(10))
        engine.clean_up(store, "run-1", *made[12], retain=2, least=1, most=0)
        assert read(engine, store, 12) == numbers(12)
    used = {action for action, *_ in objects.asked}
    assert used == {action for each in objects.statements for action in several(each["Action"])}
    objects.asked.clear()
    objects.statements = rendered("reader", "orders")
    with closing(make_engine(tables)) as engine:
        assert read(engine, store, 12) == numbers(12)
        assert verify(tables, store).is_whole
    used = {action for action, *_ in objects.asked}
    assert used == {action for each in objects.statements for action in several(each["Action"])}
    with closing(make_engine(tables, **how)) as engine, pytest.raises(ConfigurationError, match="denies"):
        write(engine, store, attempt(13), {b"13": b"13"}, base=made[12])
    objects.statements = rendered("writer", "others")
    with closing(make_engine(tables)) as engine, pytest.raises(ConfigurationError, match="denies"):
        read(engine, store, 12)
    with pytest.raises(ConfigurationError, match="denies"):
        drop_stores(tables, [store], Meter())


def test_a_bucket_may_be_looked_at_without_a_prefix() -> None:
    """HeadBucket has none, and neither has what S3 asks itself about an object that is not there."""
    for role in ("writer", "reader"):
        assert allows(rendered(role, "orders"), ("s3:ListBucket", BUCKET, None))
        assert not allows(rendered(role, "orders"), ("s3:ListBucket", BUCKET, "state/others/0/0/default#"))
        assert not allows(rendered(role, "orders"), ("s3:ListBucket", f"{BUCKET}-two", None))
