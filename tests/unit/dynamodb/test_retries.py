"""Retries of BotoTables when DynamoDB throttles or fails."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from dynastate.dynamodb.retries import BACK_OFF_FIRST_S, BACK_OFF_MAX_S
from dynastate.dynamodb.wire import to_wire
from dynastate.errors import UnavailableError
from dynastate.format.items import Item, item_key
from dynastate.format.keys import Key, version_list_key
from dynastate.settings import PREFIX
from tests.contract.test_tables import VERBS, parts
from tests.support.clients import lost_answer, wire_error
from tests.unit.dynamodb.conftest import Rig

OK: tuple[int, dict[str, Any]] = (200, {"UnprocessedItems": {}})
THROTTLED = wire_error("ThrottlingException")
GROUP = version_list_key("ns/0/0/default", 1)


def page(*items: Any, last: Any = None) -> tuple[int, dict[str, Any]]:
    return 200, {"Items": list(items)} | ({"LastEvaluatedKey": last} if last else {})


def unprocessed(items: list[tuple[Key, Item]], table: str = "dynastate-delta") -> tuple[int, dict[str, Any]]:
    """Answer a BatchWriteItem of which these items were not done."""
    requests = json.loads(json.dumps([{"PutRequest": {"Item": to_wire(item_key(key))}} for key, _ in items]))
    return 200, {"UnprocessedItems": {table: requests} if items else {}}


def test_unprocessed_items_are_sent_again_with_growing_pauses(rig: Callable[..., Rig]) -> None:
    """Only the items not processed are sent again, and each time without progress the pause may be twice as long."""
    items = parts("s", 3)
    at = rig(*[unprocessed(items)] * 9, unprocessed(items[1:]), unprocessed([]))
    at.tables.metered(at.meter).write(items)
    assert at.chance.bounds == [(0, min(BACK_OFF_FIRST_S * 2**n, BACK_OFF_MAX_S)) for n in range(9)]
    assert [pause for pause in at.clock.slept if pause >= BACK_OFF_FIRST_S] == [bound for _, bound in at.chance.bounds]
    assert (at.meter.requests, at.meter.retries, at.meter.throttles) == (11, 10, 10)
    assert [len(body["RequestItems"]["dynastate-delta"]) for _, body in at.wire.requests] == [3] * 10 + [2]
    assert (at.meter.items_written, at.meter.write_units) == (3, 3)


def test_progress_resets_the_deadline(rig: Callable[..., Rig]) -> None:
    items = parts("s", 25)
    at = rig(*[unprocessed(items[-count:]) for count in range(24, 0, -1)], OK, request_deadline_s=1, answer_s=0.4)
    at.tables.metered(at.meter).write(items)
    assert at.chance.bounds == []
    assert at.clock.now > 10 * at.settings.request_deadline_s


def test_what_others_write_resets_the_deadline(rig: Callable[..., Rig]) -> None:
    """A table that takes something makes progress, whoever sent it."""
    at = rig(THROTTLED, request_deadline_s=10)
    at.tables._rates["delta"].took_at = 15.0
    with pytest.raises(UnavailableError, match=r"seconds=10\.0"):
        at.tables.metered(at.meter).write(parts("s", 1))
    assert at.clock.now == pytest.approx(25)


def test_the_deadline_ends_a_write_that_makes_no_progress(rig: Callable[..., Rig]) -> None:
    """Items that stay unprocessed until the deadline are an UnavailableError that names the table throttled."""
    items = parts("s", 1)
    at = rig(unprocessed(items), request_deadline_s=10)
    with pytest.raises(UnavailableError) as failed:
        at.tables.metered(at.meter).write(items)
    message = str(failed.value)
    assert "throttled" in message
    assert f"raise the table's capacity, or {PREFIX}requestDeadlineS" in message
    assert "operation=BatchWriteItem table=dynastate-delta" in message
    assert at.clock.now == pytest.approx(10)
    assert at.meter.items_written == 0


def test_tables_that_are_stopped_send_nothing(rig: Callable[..., Rig]) -> None:
    """A request that waits for its retry ends without it, and so does every other."""
    at = rig(THROTTLED)
    at.tables._retries.sleep = lambda _: at.tables.stop()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="interrupted"):
            at.tables.metered(at.meter).get([key for key, _ in parts("s", 1)])
    assert len(at.wire.requests) == 1


@pytest.mark.parametrize(
    ("code", "member"),
    [
        ("ProvisionedThroughputExceededException", "ThrottlingReasons"),
        ("RequestLimitExceeded", "ThrottlingReasons"),
        ("ThrottlingException", "throttlingReasons"),
    ],
)
def test_throttling_until_the_deadline_tells_the_reasons(rig: Callable[..., Rig], code: str, member: str) -> None:
    """The error at the deadline names table and ThrottlingReasons, however DynamoDB spells them."""
    arn = "arn:aws:dynamodb:us-east-1:1:table/dynastate-delta"
    reasons = [{"reason": "TableWriteKeyRangeThroughputExceeded", "resource": arn}]
    members: dict[str, Any] = {member: reasons}
    at = rig(wire_error(code, **members), request_deadline_s=2)
    with pytest.raises(UnavailableError) as failed:
        at.tables.metered(at.meter).write(parts("s", 1))
    assert f"table=dynastate-delta tries={at.meter.requests} " in str(failed.value)
    assert f"reasons=TableWriteKeyRangeThroughputExceeded:{arn}" in str(failed.value)
    assert at.meter.throttles == at.meter.requests > 3


def test_the_log_warns_of_retries_but_not_of_each(rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    """A throttled table is logged at the first retry, and then every ten seconds, with its reasons."""
    reason = {"reason": "TableWriteMaxOnDemandThroughputExceeded", "resource": "arn"}
    at = rig(wire_error("ProvisionedThroughputExceededException", ThrottlingReasons=[reason]), request_deadline_s=35)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            at.tables.metered(at.meter).write(parts("s", 1))
    throttled = (
        "DynamoDB throttles reasons=TableWriteMaxOnDemandThroughputExceeded:arn; retried operation=BatchWriteItem "
        "table=dynastate-delta"
    )
    assert [record.getMessage() for record in caplog.records] == [throttled] * 7
    assert at.meter.requests > 20
    caplog.clear()
    at.wire._answers = [(500, {})]
    with pytest.raises(UnavailableError):
        at.tables.metered(at.meter).put_new(GROUP, item_key(GROUP))
    assert "DynamoDB gives no proper answer: " in caplog.records[0].getMessage()
    assert caplog.records[0].getMessage().endswith("retried operation=PutItem table=dynastate-snapshot-group")


def test_the_pause_stays_bounded_however_often_it_fails(rig: Callable[..., Rig]) -> None:
    """An hour of failures ends at its deadline, not a pause before, with the same error as a second of them."""
    at = rig(THROTTLED, request_deadline_s=3600)
    at.tables._retries.randomness = random.Random(1)  # noqa: S311  # jitter is no secret; shorter pauses than the longest
    with pytest.raises(UnavailableError, match=r"tries=1\d\d\d "):
        at.tables.metered(at.meter).write(parts("s", 1))
    assert at.meter.requests > 1100, "more doublings than a float can hold"
    assert at.clock.now == pytest.approx(3600)


def test_unprocessed_keys_are_asked_for_again_and_consistently(rig: Callable[..., Rig]) -> None:
    """DynamoDB answers with 1 MB of a partition at most: an answer with some of the items is no throttle."""
    items = parts("s", 3)
    keys = [key for key, _ in items]
    wires = [to_wire(item_key(key)) for key in keys]

    def answer(numbers: list[int], others: list[int]) -> tuple[int, dict[str, Any]]:
        rest = {"dynastate-delta": {"Keys": [wires[n] for n in others]}} if others else {}
        return 200, {"Responses": {"dynastate-delta": [wires[n] for n in numbers]}, "UnprocessedKeys": rest}

    at = rig(answer([], [0, 1, 2]), answer([1], [0, 2]), answer([2], [0]), answer([], [0]), answer([0], []))
    assert at.tables.metered(at.meter).get(keys) == {key: item_key(key) for key in keys}
    assert [len(body["RequestItems"]["dynastate-delta"]["Keys"]) for _, body in at.wire.requests] == [3, 3, 2, 1, 1]
    assert all(body["RequestItems"]["dynastate-delta"]["ConsistentRead"] for _, body in at.wire.requests)
    assert [bound for _, bound in at.chance.bounds] == [BACK_OFF_FIRST_S, BACK_OFF_FIRST_S]
    assert (at.meter.requests, at.meter.throttles, at.meter.retries) == (5, 2, 2)


def test_the_deadline_ends_a_read_that_makes_no_progress(rig: Callable[..., Rig]) -> None:
    rest = {"dynastate-delta": {"Keys": [to_wire(item_key(key)) for key, _ in parts("s", 1)]}}
    at = rig((200, {"Responses": {}, "UnprocessedKeys": rest}), request_deadline_s=3)
    with pytest.raises(UnavailableError, match="operation=BatchGetItem table=dynastate-delta"):
        at.tables.metered(at.meter).get([key for key, _ in parts("s", 1)])


def test_queries_are_consistent_and_read_empty_pages(rig: Callable[..., Rig]) -> None:
    """A page without items is not the end while it has a LastEvaluatedKey; every page is strongly consistent."""
    wire = to_wire(item_key(GROUP))
    at = rig(page(last=wire), THROTTLED, page(wire, last=wire), page())
    assert at.tables.metered(at.meter).query("snapshot", GROUP.store_shard, "a", "z") == [(GROUP, item_key(GROUP))]
    assert [body.get("ExclusiveStartKey") for _, body in at.wire.requests] == [None, wire, wire, wire]
    assert all(body["ConsistentRead"] for _, body in at.wire.requests)


def test_stores_are_looked_for_behind_empty_pages(rig: Callable[..., Rig]) -> None:
    """A page may be empty before the end; the files of a checkpoint are no store."""
    key = to_wire(item_key(GROUP))
    row = to_wire({"store_shard": GROUP.store_shard})
    files = to_wire({"store_shard": "ns/checkpoint/clicks#0"})
    at = rig(page(last=key), page(row, last=key), page(files, last=key), page())
    assert list(at.tables.metered(at.meter).find_stores()) == [GROUP.store_shard.removesuffix("#0")]
    starts = [body.get("ExclusiveStartKey", {}).get("entry") for _, body in at.wire.requests]
    assert starts == [None, key["entry"], *[{"S": "\U0010ffff"}] * 2]


def test_a_conflict_of_replicas_is_sent_again(rig: Callable[..., Rig]) -> None:
    """A table with strongly consistent replicas refuses an item that another Region writes just then: that ends."""
    at = rig(wire_error("ReplicatedWriteConflictException"), (200, {}))
    assert at.tables.metered(at.meter).put_new(GROUP, item_key(GROUP))
    assert (at.meter.requests, at.meter.retries, at.meter.throttles) == (2, 1, 0)


@pytest.mark.parametrize("verb", ["write", "delete"])
def test_a_500_on_a_write_is_sent_again(rig: Callable[..., Rig], verb: str) -> None:
    """A write that DynamoDB failed to answer may have happened; puts and deletes are idempotent, so it is repeated."""
    at = rig(wire_error("InternalServerError", status=500), (503, "no JSON"), lost_answer(), OK)
    VERBS[verb](at.tables, GROUP)
    assert [operation for operation, _ in at.wire.requests] == ["BatchWriteItem"] * 4
    assert len(at.clock.slept) == 3
