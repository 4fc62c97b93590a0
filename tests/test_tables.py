"""The seam to DynamoDB: one contract for every implementation, and what the real one does when DynamoDB fails."""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions as boto_errors
import pytest

from dynastate import layout
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
)
from dynastate.layout import FORMAT, NO_ATTEMPT, Attempt, Item, Key, item_bytes, item_key
from dynastate.settings import PREFIX, Settings
from dynastate.tables import (
    BACK_OFF_FIRST_S,
    BACK_OFF_MAX_S,
    FIRST_CONTACT_DEADLINE_S,
    ITEM_BYTES_MAX,
    WRITES_MAX,
    BotoTables,
    Meter,
    Tables,
    from_wire,
    make_client,
    to_wire,
)
from tests.conftest import REGION
from tests.fakes import Clock, Longest, MemoryTables, Strike, StruckClient, Wire, client_error, lost_answer, wire_error

RUN = "6d0f7a3e-0000-4000-8000-000000000000"


@pytest.fixture(params=["memory", "moto", "http"])
def tables(request: pytest.FixtureRequest) -> Tables:
    """Each implementation of the seam in turn."""
    found: Tables = request.getfixturevalue(request.param)
    return found


def parts(store: str, count: int, size: int = 10) -> list[tuple[Key, Item]]:
    """Make items of the delta table, all in one shard."""
    keys = [layout.part_key(store, 1, NO_ATTEMPT, sequence, 1) for sequence in range(count)]
    return [(key, item_key(key) | {"format": 1, "data": bytes([n % 256]) * size}) for n, key in enumerate(keys)]


def everything(tables: Tables, store: str) -> list[tuple[Key, Item]]:
    """Read all items of the store's first shard in the delta table."""
    return tables.query("delta", layout.store_shard(store, 0), "0", "~", Meter())


# ------------------------------------------------------------------------------------------------------------ contract


def test_tables_that_fit_have_no_drift(tables: Tables) -> None:
    """Tables with the right keys are found to fit."""
    assert tables.check() == []


def test_items_come_back_with_every_kind_of_value(tables: Tables, store: str) -> None:
    """Text, bytes, whole numbers, lists of bytes and maps of numbers come back as they were written."""
    key = layout.part_key(store, 2**64 - 1, Attempt(b"\xff" * 16), 999_999, 1)
    values: Item = {
        "text": "dé\u2028jà \U0001f600 #/",
        "empty": "",
        "data": bytes(range(256)),
        "no_data": b"",
        "number": 2**63,
        "negative": -1,
        "list": [b"", b"\x00", b"two"],
        "empty_list": [],
        "map": {"a-run.id": 1, "#": 2},
        "empty_map": {},
    }
    tables.write([(key, item_key(key) | values)], Meter())
    assert tables.get([key], Meter()) == {key: item_key(key) | values}
    assert everything(tables, store) == [(key, item_key(key) | values)]


def test_get_leaves_out_what_is_not_there(tables: Tables, store: str) -> None:
    """Of the keys asked for, those that exist come back, from both tables, and the others are no error."""
    (part,) = parts(store, 1)
    meta_key = layout.meta_key(store)
    meta: Item = item_key(meta_key) | {"format": 1}
    tables.write([part, (meta_key, meta)], Meter())
    wanted = [part[0], meta_key, layout.group_key(store, 1), part[0]._replace(sort="other")]
    assert tables.get(wanted, Meter()) == {part[0]: part[1], meta_key: meta}
    assert tables.get(wanted[2:], Meter()) == {}


def test_get_of_some_attributes(tables: Tables, store: str) -> None:
    """Only those that were asked for come, with the keys, and only their bytes are counted as read."""
    ((key, item),) = written = parts(store, 1, size=5_000)
    tables.write(written, Meter())
    meter = Meter()
    assert tables.get([key], meter, ["format", "none"]) == {key: item_key(key) | {"format": item["format"]}}
    assert meter.bytes_read < 200


def test_a_hundred_keys_in_one_get(tables: Tables, store: str) -> None:
    """A hundred items come back by one call, also where they are more than one answer holds."""
    items = parts(store, 100, size=20_000)
    for at in range(0, 100, 25):
        tables.write(items[at : at + 25], Meter())
    assert tables.get([key for key, _ in items], Meter()) == dict(items)


def test_query_gives_a_range_in_order_with_both_ends(tables: Tables, store: str) -> None:
    """A query gives the items from the low to the high sort key, both with them, in byte order, of one partition."""
    keys = [Key("snapshot", store, sort) for sort in ("a", "b", "b0", "bé", "c", "d", "Z")]
    other = Key("snapshot", store + "0", "b")
    tables.write([(key, item_key(key)) for key in [other, *reversed(keys)]], Meter())
    found = tables.query("snapshot", store, "b", "c", Meter())
    assert [key.sort for key, _ in found] == ["b", "b0", "bé", "c"]
    assert [item for _, item in found] == [item_key(key) for key, _ in found]
    assert tables.query("snapshot", store, "e", "f", Meter()) == []
    assert tables.query("delta", store, "a", "d", Meter()) == []


def test_query_reads_every_page(tables: Tables, store: str) -> None:
    """What does not fit into one answer of 1 MB comes all the same, to the last item."""
    items = parts(store, 7, size=380_000)
    tables.write(items, Meter())
    assert everything(tables, store) == items


def test_write_replaces_and_is_seen_at_once(tables: Tables, store: str) -> None:
    """A write is read by the next call, and a second one under the same key replaces the whole item."""
    ((key, item),) = parts(store, 1)
    tables.write([(key, item | {"more": 1})], Meter())
    tables.write([(key, item)], Meter())
    assert tables.get([key], Meter()) == {key: item}


def test_twenty_five_of_both_tables_in_one_write(tables: Tables, store: str) -> None:
    """One write takes 25 items, of both tables and of several partition keys."""
    meta = layout.meta_key(store)
    items = [*parts(store, 24), (meta, item_key(meta) | {"format": 1})]
    tables.write(items, Meter())
    assert tables.get([key for key, _ in items], Meter()) == dict(items)


def test_delete_takes_what_is_there_and_what_is_not(tables: Tables, store: str) -> None:
    """Deleting removes items, leaves others, and is no error for keys that do not exist."""
    items = parts(store, 5)
    tables.write(items, Meter())
    gone = [key for key, _ in items[:3]]
    tables.delete([*gone, gone[0]._replace(sort="never there")], Meter())
    tables.delete(gone, Meter())
    assert everything(tables, store) == items[3:]


def test_put_new_takes_a_key_once(tables: Tables, store: str) -> None:
    """The first to put an item gets it; who comes later leaves it as it is and is told so."""
    key = layout.meta_key(store)
    assert tables.put_new(key, item_key(key) | {"who": "first"}, Meter()) is True
    assert tables.put_new(key, item_key(key) | {"who": "second"}, Meter()) is False
    assert tables.get([key], Meter()) == {key: item_key(key) | {"who": "first"}}


def test_append_version_keeps_the_order(tables: Tables, store: str) -> None:
    """The first append makes the item, later ones add to the end of its list, and the same entry may come twice."""
    key = layout.group_key(store, 1)
    for entry in (b"one", b"\x00two", b"one"):
        tables.append_version(key, entry, Meter())
    versions: Item = {"format": FORMAT, "versions": [b"one", b"\x00two", b"one"]}
    assert tables.get([key], Meter()) == {key: item_key(key) | versions}


def test_a_version_list_that_is_full_says_so(moto: BotoTables, store: str) -> None:
    """An item has 400 KB at most: the error names the list, and what may have filled it."""
    key = layout.group_key(store, 1)
    moto.write([(key, item_key(key) | {"format": 1, "versions": [bytes(399_000)]})], Meter())
    with pytest.raises(ConfigurationError, match=r"version list takes no more.*thousands of times"):
        moto.append_version(key, bytes(20_000), Meter())


def test_advance_epoch_enters_each_run_once(tables: Tables, store: str) -> None:
    """A new run gets the next epoch, in the place of those to forget, unless another one or itself was faster.

    It takes back a drop.
    """
    key = layout.meta_key(store)
    meta: Item = item_key(key) | {"format": 1, "epoch": 1, "epochs": {RUN: 1}, "dropped": 1}
    tables.put_new(key, meta, Meter())
    assert tables.advance_epoch(key, RUN, 1, [], Meter()) is False
    assert tables.get([key], Meter()) == {key: meta}
    assert tables.advance_epoch(key, "run.2", 1, [], Meter()) is True
    assert tables.get([key], Meter()) == {
        key: item_key(key) | {"format": 1, "epoch": 2, "epochs": {RUN: 1, "run.2": 2}}
    }
    assert tables.advance_epoch(key, "run-3", 1, [RUN], Meter()) is False
    assert tables.advance_epoch(key, "run-3", 2, [RUN], Meter()) is True
    expected: Item = {"format": 1, "epoch": 3, "epochs": {"run.2": 2, "run-3": 3}}
    assert tables.get([key], Meter()) == {key: item_key(key) | expected}
    assert tables.advance_epoch(key, "run-4", 3, [RUN], Meter()) is False
    assert tables.get([key], Meter()) == {key: item_key(key) | expected}


def test_units_are_counted_by_dynamodbs_rules(tables: Tables, store: str) -> None:
    """One write unit a KB of each item, one read unit for 4 KB: of each item in a get, of the sum in a query."""
    items = parts(store, 3, size=1024)
    written, gotten, queried, deleted, appended = (Meter() for _ in range(5))
    tables.write(items, written)
    assert (written.requests, written.write_units, written.items_written) == (1, 6, 3)
    assert written.bytes_written == sum(item_bytes(item) for _, item in items)
    tables.get([key for key, _ in items], gotten)
    assert (gotten.requests, gotten.read_units, gotten.items_read) == (1, 3, 3)
    tables.query("delta", layout.store_shard(store, 0), "0", "~", queried)
    assert (queried.requests, queried.read_units, queried.items_read) == (1, 1, 3)
    tables.delete([key for key, _ in items], deleted)
    assert (deleted.requests, deleted.items_deleted, deleted.write_units) == (1, 3, 0)
    tables.append_version(layout.group_key(store, 1), bytes(900), appended)
    assert (appended.requests, appended.write_units) == (1, 1)
    tables.append_version(layout.group_key(store, 1), bytes(200), appended)
    assert (appended.requests, appended.write_units) == (2, 3), "an update pays for the whole item"


def test_26_puts_or_deletes_are_refused(tables: Tables, store: str) -> None:
    """A write has 1 to 25 items: 26, or none, is a defect of ours that is found before anything is sent."""
    items = parts(store, 26)
    keys = [key for key, _ in items]
    calls: list[Callable[[], object]] = [
        lambda: tables.write(items, Meter()),
        lambda: tables.write([], Meter()),
        lambda: tables.delete(keys, Meter()),
        lambda: tables.delete([], Meter()),
    ]
    for call in calls:
        with pytest.raises(InternalError, match="no or too many items"):
            call()
    assert everything(tables, store) == []


def test_101_keys_are_refused(tables: Tables, store: str) -> None:
    """A get has 1 to 100 keys."""
    for keys in ([key for key, _ in parts(store, 101)], []):
        with pytest.raises(InternalError, match="no or too many items"):
            tables.get(keys, Meter())


def test_one_key_twice_is_refused(tables: Tables, store: str) -> None:
    """DynamoDB refuses the whole request for two items under one key; so do we, and nothing is written."""
    one, other = parts(store, 2)
    calls: list[Callable[[], object]] = [
        lambda: tables.write([one, other, one], Meter()),
        lambda: tables.delete([one[0], one[0]], Meter()),
        lambda: tables.get([one[0], one[0]], Meter()),
    ]
    for call in calls:
        with pytest.raises(InternalError, match="one key twice"):
            call()
    assert everything(tables, store) == []


def test_an_item_over_400_kb_is_refused(tables: Tables, store: str) -> None:
    """An item larger than DynamoDB takes is refused with all that was to be written with it; the largest goes in."""
    one, (key, _) = parts(store, 2)
    room = ITEM_BYTES_MAX - item_bytes(item_key(key) | {"data": b""})
    largest: Item = item_key(key) | {"data": bytes(room)}
    larger: Item = item_key(key) | {"data": bytes(room + 1)}
    with pytest.raises(InternalError, match=f"too large for DynamoDB item={key.sort} item_bytes=400001"):
        tables.write([one, (key, larger)], Meter())
    with pytest.raises(InternalError, match="too large for DynamoDB"):
        tables.put_new(key, larger, Meter())
    assert everything(tables, store) == []
    tables.write([(key, largest)], Meter())
    assert tables.get([key], Meter()) == {key: largest}


def test_the_largest_write_fits_into_a_request(tables: Tables, store: str) -> None:
    """25 items of the largest size are under the 16 MB that DynamoDB takes on the wire, so none is refused for that."""
    items = parts(store, WRITES_MAX, size=399_000)
    assert WRITES_MAX * (len(base64.b64encode(bytes(ITEM_BYTES_MAX))) + 1024) < 16_000_000
    tables.write(items, Meter())
    tables.delete([key for key, _ in items], Meter())


#: Each verb that takes a key.
VERBS: dict[str, Callable[[Tables, Key], object]] = {
    "write": lambda tables, key: tables.write([(key, item_key(key))], Meter()),
    "delete": lambda tables, key: tables.delete([key], Meter()),
    "get": lambda tables, key: tables.get([key], Meter()),
    "put_new": lambda tables, key: tables.put_new(key, item_key(key), Meter()),
    "append_version": lambda tables, key: tables.append_version(key, b"", Meter()),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "key",
    [
        Key("snapshot", "", "meta"),
        Key("snapshot", "store", ""),
        Key("snapshot", "p" * 2049, "meta"),
        Key("snapshot", "store", "é" * 513),
    ],
    ids=["empty partition key", "empty sort key", "long partition key", "long sort key"],
)
def test_keys_that_are_empty_or_too_long_are_refused(tables: Tables, verb: str, key: Key) -> None:
    """A partition key has 1 to 2,048 bytes, a sort key 1 to 1,024."""
    with pytest.raises(InternalError, match="empty or too long"):
        VERBS[verb](tables, key)


# ------------------------------------------------------------------------------------------- when DynamoDB holds back


class Rig:
    """BotoTables on a real boto3 client whose answers come from a script, with a clock and chance of the test's own."""

    def __init__(self, client: Any, *answers: Any, answer_s: float = 0.0, **settings: Any) -> None:
        self.settings = Settings(region=REGION, **settings)
        self.wire = Wire(client, *answers)
        self.clock, self.chance, self.meter = Clock(answer_s=answer_s), Longest(), Meter()
        self.tables = BotoTables(
            self.settings, clock=self.clock, sleep=self.clock.sleep, randomness=self.chance, client=client
        )

    def has_answered(self) -> Rig:
        """Be past the first contact."""
        self.tables._answered = True
        return self


@pytest.fixture
def rig(boto_client: Any) -> Iterator[Callable[..., Rig]]:
    """Make a rig; the client is given back as it was."""
    made: list[Rig] = []

    def make(*answers: Any, **settings: Any) -> Rig:
        made.append(Rig(boto_client, *answers, **settings))
        return made[-1]

    yield make
    for each in made:
        each.wire.close()


OK: tuple[int, dict[str, Any]] = (200, {})
THROTTLED = wire_error("ThrottlingException")
GROUP = layout.group_key("ns/0/0/default", 1)


def unprocessed(items: list[tuple[Key, Item]], table: str = "dynastate-delta") -> tuple[int, dict[str, Any]]:
    """Answer a BatchWriteItem of which these items were not done."""
    requests = [{"PutRequest": {"Item": {"n": {"N": str(place)}}}} for place, _ in enumerate(items)]
    return 200, {"UnprocessedItems": {table: requests} if items else {}}


def test_unprocessed_items_are_sent_again_with_growing_pauses(rig: Callable[..., Rig]) -> None:
    """Only the items not processed are sent again, and each time without progress the pause may be twice as long."""
    items = parts("s", 3)
    at = rig(*[unprocessed(items)] * 9, unprocessed([]))
    at.tables.write(items, at.meter)
    assert at.chance.bounds == [(0, min(BACK_OFF_FIRST_S * 2**n, BACK_OFF_MAX_S)) for n in range(9)]
    assert at.clock.slept == [bound for _, bound in at.chance.bounds]
    assert (at.meter.requests, at.meter.retries, at.meter.throttles) == (10, 9, 9)
    assert [len(body["RequestItems"]["dynastate-delta"]) for _, body in at.wire.requests] == [3] * 10
    assert (at.meter.items_written, at.meter.write_units) == (3, 3)


def test_progress_resets_the_back_off_and_the_deadline(rig: Callable[..., Rig]) -> None:
    """As long as something is done each time, the pause starts small again and the deadline does not come."""
    items = parts("s", 25)
    at = rig(*[unprocessed(items[:left]) for left in range(24, -1, -1)], request_deadline_s=1, answer_s=0.4)
    at.tables.write(items, at.meter)
    assert [bound for _, bound in at.chance.bounds] == [BACK_OFF_FIRST_S] * 24
    assert at.clock.now > 10 * at.settings.request_deadline_s


def test_the_deadline_ends_a_write_that_makes_no_progress(rig: Callable[..., Rig]) -> None:
    """Items that stay unprocessed until the deadline are an UnavailableError that names the table throttled."""
    at = rig(unprocessed(parts("s", 1), "dynastate-snapshot-group"), request_deadline_s=10)
    with pytest.raises(UnavailableError) as failed:
        at.tables.write(parts("s", 2), at.meter)
    said = str(failed.value)
    assert "throttled" in said
    assert f"{PREFIX}requestDeadlineS" in said
    assert "operation=BatchWriteItem table=dynastate-snapshot-group" in said
    assert at.clock.now == pytest.approx(10)
    assert at.meter.items_written == 0


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
        at.tables.write(parts("s", 1), at.meter)
    assert f"table=dynastate-delta tries={at.meter.requests} " in str(failed.value)
    assert f"reasons=TableWriteKeyRangeThroughputExceeded:{arn}" in str(failed.value)
    assert at.meter.throttles == at.meter.requests > 3


def test_retries_are_told_in_the_log_but_not_each(rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    """What a table throttles at is said at the first retry, and then every ten seconds, table by table."""
    reason = {"reason": "TableWriteMaxOnDemandThroughputExceeded", "resource": "arn"}
    at = rig(wire_error("ProvisionedThroughputExceededException", ThrottlingReasons=[reason]), request_deadline_s=35)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            at.tables.write(parts("s", 1), at.meter)
    throttled = (
        "DynamoDB throttles reasons=TableWriteMaxOnDemandThroughputExceeded:arn; retried operation=BatchWriteItem "
        "table=dynastate-delta"
    )
    assert [record.getMessage() for record in caplog.records] == [throttled] * 7
    assert at.meter.requests > 20
    caplog.clear()
    at.wire._answers = [(500, {})]
    with pytest.raises(UnavailableError):
        at.tables.put_new(GROUP, layout.item_key(GROUP), at.meter)
    assert "DynamoDB gives no proper answer: " in caplog.records[0].getMessage()
    assert caplog.records[0].getMessage().endswith("retried operation=PutItem table=dynastate-snapshot-group")


def test_the_pause_stays_bounded_however_often_it_fails(rig: Callable[..., Rig]) -> None:
    """An hour of failures ends at its deadline, not a pause before, with the same error as a second of them."""
    at = rig(THROTTLED, request_deadline_s=3600)
    at.tables._random = random.Random(1)  # noqa: S311  # jitter is no secret; shorter pauses than the longest
    with pytest.raises(UnavailableError, match=r"tries=1\d\d\d "):
        at.tables.write(parts("s", 1), at.meter)
    assert at.meter.requests > 1100, "more doublings than a float can hold"
    assert at.clock.now == pytest.approx(3600)


def test_unprocessed_keys_are_asked_for_again_and_consistently(rig: Callable[..., Rig]) -> None:
    """Keys not processed are read again, strongly consistent as the first time, until all items are there."""
    items = parts("s", 3)
    keys = [key for key, _ in items]
    wires = [to_wire(item_key(key)) for key in keys]

    def answer(found: list[int], left: list[int]) -> tuple[int, dict[str, Any]]:
        rest = {"dynastate-delta": {"Keys": [wires[n] for n in left]}} if left else {}
        return 200, {"Responses": {"dynastate-delta": [wires[n] for n in found]}, "UnprocessedKeys": rest}

    at = rig(answer([], [0, 1, 2]), answer([1], [0, 2]), answer([2], [0]), answer([], [0]), answer([0], []))
    assert at.tables.get(keys, at.meter) == {key: item_key(key) for key in keys}
    assert [len(body["RequestItems"]["dynastate-delta"]["Keys"]) for _, body in at.wire.requests] == [3, 3, 2, 1, 1]
    assert all(body["RequestItems"]["dynastate-delta"]["ConsistentRead"] for _, body in at.wire.requests)
    assert [bound for _, bound in at.chance.bounds] == [BACK_OFF_FIRST_S * factor for factor in (1, 1, 1, 2)]


def test_the_deadline_ends_a_read_that_makes_no_progress(rig: Callable[..., Rig]) -> None:
    """Keys that stay unprocessed until the deadline are an UnavailableError, and no smaller answer."""
    rest = {"dynastate-delta": {"Keys": [to_wire(item_key(key)) for key, _ in parts("s", 1)]}}
    at = rig((200, {"Responses": {}, "UnprocessedKeys": rest}), request_deadline_s=3)
    with pytest.raises(UnavailableError, match="operation=BatchGetItem table=dynastate-delta"):
        at.tables.get([key for key, _ in parts("s", 1)], at.meter)


def test_queries_are_consistent_and_read_empty_pages(rig: Callable[..., Rig]) -> None:
    """A page without items is not the end while it has a LastEvaluatedKey; every page is strongly consistent."""
    wire = to_wire(item_key(GROUP))
    at = rig(
        (200, {"Items": [], "LastEvaluatedKey": wire}),
        THROTTLED,
        (200, {"Items": [wire], "LastEvaluatedKey": wire}),
        (200, {"Items": []}),
    )
    assert at.tables.query("snapshot", GROUP.store_shard, "a", "z", at.meter) == [(GROUP, item_key(GROUP))]
    assert [body.get("ExclusiveStartKey") for _, body in at.wire.requests] == [None, wire, wire, wire]
    assert all(body["ConsistentRead"] for _, body in at.wire.requests)


def test_stores_are_looked_for_behind_empty_pages(rig: Callable[..., Rig]) -> None:
    """A scan's page without items is not the end either."""
    key = to_wire(item_key(GROUP))
    found = to_wire({"store_shard": GROUP.store_shard})
    at = rig(
        (200, {"Items": [], "LastEvaluatedKey": key}),
        (200, {"Items": [found], "LastEvaluatedKey": key}),
        (200, {"Items": []}),
    )
    assert list(at.tables.find_stores(at.meter)) == [GROUP.store_shard.removesuffix("#0")]
    assert [body.get("ExclusiveStartKey", {}).get("entry") for _, body in at.wire.requests] == [
        None,
        key["entry"],
        {"S": "\U0010ffff"},
    ]


@pytest.mark.parametrize("verb", ["write", "delete"])
def test_a_500_on_a_write_is_sent_again(rig: Callable[..., Rig], verb: str) -> None:
    """A write that DynamoDB failed to answer may have happened; puts and deletes are idempotent, so it is repeated."""
    at = rig(wire_error("InternalServerError", status=500), (503, "no JSON"), lost_answer(), OK)
    VERBS[verb](at.tables, GROUP)
    assert [operation for operation, _ in at.wire.requests] == ["BatchWriteItem"] * 4
    assert len(at.clock.slept) == 3


def test_500s_until_the_deadline_are_unavailable(rig: Callable[..., Rig]) -> None:
    """A DynamoDB that fails until the deadline is unavailable, and the error says what it said."""
    at = rig(wire_error("InternalServerError", "it broke", status=500), request_deadline_s=5).has_answered()
    with pytest.raises(UnavailableError, match=r"no proper answer until the deadline: .*it broke"):
        at.tables.write(parts("s", 1), at.meter)
    assert at.clock.now == pytest.approx(5)


# ------------------------------------------------------------------------------------------------- the commit's answer


@pytest.fixture
def group(store: str) -> Key:
    """The key of the test's own version list."""
    return layout.group_key(store, 1)


def entries(tables: BotoTables, group: Key) -> list[bytes]:
    """Read a version list."""
    found = tables.get([group], Meter()).get(group, {}).get("versions", [])
    assert isinstance(found, list)
    return found


def quickly(client: StruckClient, **settings: Any) -> tuple[BotoTables, Clock]:
    """Make tables on a client that may fail, with a clock of their own."""
    clock = Clock()
    return BotoTables(
        Settings(region=REGION, **settings), clock=clock, sleep=clock.sleep, randomness=Longest(), client=client
    ), clock


@pytest.mark.parametrize("error", [lost_answer(), client_error("InternalServerError", 500)], ids=["cut", "500"])
def test_a_lost_answer_that_was_applied_is_found_in_the_list(
    struck_client: StruckClient, group: Key, error: Exception
) -> None:
    """The append happened and its answer is lost: the list is read, consistently, and nothing is appended again."""
    tables, _ = quickly(struck_client)
    meter = Meter()
    tables.append_version(group, b"before", Meter())
    struck_client.strike("update_item", Strike(error, applied=True))
    tables.append_version(group, b"entry", meter)
    assert entries(tables, group) == [b"before", b"entry"]
    reads = [arguments for operation, arguments in struck_client.requests if operation == "get_item"]
    assert [read["ConsistentRead"] for read in reads] == [True]
    assert (meter.requests, meter.retries, meter.write_units, meter.read_units) == (2, 1, 1, 1)


def test_a_lost_answer_that_was_not_applied_is_sent_again(struck_client: StruckClient, group: Key) -> None:
    """The append did not happen and its answer is lost: the list does not hold it, so it is appended."""
    tables, _ = quickly(struck_client)
    struck_client.strike("update_item", Strike(lost_answer()), Strike(lost_answer()))
    tables.append_version(group, b"entry", Meter())
    assert entries(tables, group) == [b"entry"]


def test_reading_the_list_is_retried_too(struck_client: StruckClient, group: Key) -> None:
    """The read that resolves a lost answer may be throttled or lost itself; it is repeated until it says."""
    tables, _ = quickly(struck_client)
    struck_client.strike("update_item", Strike(lost_answer(), applied=True))
    struck_client.strike("get_item", Strike(client_error("ThrottlingException")), Strike(lost_answer()))
    tables.append_version(group, b"entry", Meter())
    assert entries(tables, group) == [b"entry"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_append_whose_fate_stays_unknown_says_so(struck_client: StruckClient, group: Key, applied: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """When the list cannot be read until the deadline, the outcome is unknown, and not 'nothing was committed'."""
    tables, clock = quickly(struck_client, request_deadline_s=20)
    tables._answered = True
    struck_client.strike("update_item", Strike(lost_answer(), applied=applied))
    struck_client.strike("get_item", *[Strike(lost_answer())] * 1000)
    with pytest.raises(UnknownOutcomeError, match=r"may have happened; retry the task: .*operation=UpdateItem"):
        tables.append_version(group, b"entry", Meter())
    assert clock.now == pytest.approx(20)


def test_an_append_that_is_refused_after_doubt_is_unknown(struck_client: StruckClient, group: Key) -> None:
    """Once an append may have happened, a later refusal does not make it undone: the outcome stays unknown."""
    tables, _ = quickly(struck_client)
    struck_client.strike("update_item", Strike(lost_answer(), applied=True))
    struck_client.strike("get_item", Strike(client_error("AccessDeniedException")))
    with pytest.raises(UnknownOutcomeError, match="AWS denies permission"):
        tables.append_version(group, b"entry", Meter())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (client_error("ThrottlingException"), UnavailableError),
        (boto_errors.EndpointConnectionError(endpoint_url="http://test"), UnavailableError),
        (boto_errors.ConnectTimeoutError(endpoint_url="http://test"), UnavailableError),
        (client_error("AccessDeniedException"), ConfigurationError),
    ],
)
def test_an_append_that_surely_did_not_happen_says_so(
    struck_client: StruckClient, group: Key, error: Exception, expected: type[DynastateError]
) -> None:
    """Throttled, never connected, or refused: nothing was committed, and the error is one that says it."""
    tables, _ = quickly(struck_client)
    tables._answered = True
    struck_client.strike("update_item", *[Strike(error)] * 1000)
    with pytest.raises(expected):
        tables.append_version(group, b"entry", Meter())
    assert [operation for operation, _ in struck_client.requests].count("get_item") == 0


def test_a_broken_tls_connection_may_have_carried_a_commit(struck_client: StruckClient, group: Key) -> None:
    """TLS can break after the request was sent, so an append is looked for before it is sent again."""
    tables, _ = quickly(struck_client)
    broken = boto_errors.SSLError(endpoint_url="https://test", error="unexpected end")
    struck_client.strike("update_item", Strike(broken, applied=True))
    tables.append_version(group, b"entry", Meter())
    assert entries(tables, group) == [b"entry"]


def test_conditional_writes_survive_a_lost_answer(struck_client: StruckClient, store: str) -> None:
    """An item or a run that went in though its answer was lost is found there at the second try: False, and in once."""
    tables, _ = quickly(struck_client)
    meta = layout.meta_key(store)
    struck_client.strike("put_item", Strike(lost_answer(), applied=True))
    item: Item = item_key(meta) | {"format": 1, "epoch": 1, "epochs": {"a": 1}}
    assert tables.put_new(meta, item, Meter()) is False
    struck_client.strike("update_item", Strike(lost_answer(), applied=True))
    assert tables.advance_epoch(meta, "b", 1, [], Meter()) is False
    assert tables.get([meta], Meter())[meta]["epochs"] == {"a": 1, "b": 2}


def test_an_epoch_that_is_not_known_is_no_unknown_commit(struck_client: StruckClient, store: str) -> None:
    """Only an append to the version list can leave a commit in doubt; an epoch without an answer commits nothing."""
    tables, _ = quickly(struck_client)
    tables._answered = True
    struck_client.strike("update_item", *[Strike(lost_answer())] * 1000)
    with pytest.raises(UnavailableError, match="no proper answer until the deadline"):
        tables.advance_epoch(layout.meta_key(store), "run", 1, [], Meter())


# -------------------------------------------------------------------------------------------- errors a user can mend


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            wire_error("ResourceNotFoundException"),
            rf"table dynastate-delta \({PREFIX}deltaTable\) does not exist at the Region us-east-1; make it with Terr",
        ),
        (
            wire_error("AccessDeniedException", "User: arn is not authorized"),
            "denies permission for BatchWriteItem on table dynastate-delta; grant it .*User: arn is not authorized",
        ),
        (wire_error("KMSAccessDeniedException"), "denies permission for BatchWriteItem"),
        (wire_error("UnrecognizedClientException", "invalid token"), "AWS refuses the credentials: invalid token"),
        (wire_error("InvalidSignatureException"), "AWS refuses the credentials"),
        (wire_error("ExpiredTokenException"), "AWS refuses the credentials"),
        (wire_error("MissingAuthenticationTokenException"), "AWS refuses the credentials"),
        (wire_error("IncompleteSignatureException"), "AWS refuses the credentials"),
        (
            wire_error("ValidationException", "Missing the key part"),
            r"'dynastate tables check' tells whether table dynastate-delta .* has the right keys: Missing the key part",
        ),
        (
            wire_error("SomethingNewException", "what it says"),
            "refuses the request: SomethingNewException: what it says",
        ),
        ((404, "<html>Not found</html>"), "refuses the request: 404"),
    ],
)
def test_refusals_are_configuration_errors_at_once(rig: Callable[..., Rig], answer: Any, said: str) -> None:
    """What trying again does not mend is said after one request, with operation, table and what to do."""
    at = rig(answer)
    with pytest.raises(ConfigurationError, match=said) as refused:
        at.tables.write(parts("s", 1), at.meter)
    assert str(refused.value).endswith("operation=BatchWriteItem table=dynastate-delta")
    assert (at.meter.requests, at.clock.slept) == (1, [])


def test_a_missing_snapshot_group_table_names_its_own_setting(rig: Callable[..., Rig]) -> None:
    """Each table has its own setting, and the error names the right one, with the endpoint that was asked."""
    at = rig(wire_error("ResourceNotFoundException"), endpoint="http://127.0.0.1:1", snapshot_table="other")
    said = rf"table other \({PREFIX}snapshotTable\) .* at http://127\.0\.0\.1:1; "
    with pytest.raises(ConfigurationError, match=said):
        at.tables.query("snapshot", "s", "a", "b", at.meter)


def test_no_credentials_is_said_at_once(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials nothing is sent, and the error says where they are looked for."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    tables, meter = BotoTables(Settings(region=REGION)), Meter()
    with pytest.raises(ConfigurationError, match="no AWS credentials: boto3's standard chain found none"):
        tables.write(parts("s", 1), meter)
    tables.close()
    assert meter.requests == 1


def test_credentials_that_cannot_be_read_are_said_at_once(
    dummy_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a pod's token is not mounted: the error names the file, and nothing of it is a defect."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/spark")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    tables, meter = BotoTables(Settings(region=REGION)), Meter()
    with pytest.raises(ConfigurationError, match=f"AWS credentials cannot be read, .*{tmp_path / 'token'}.*BatchWrite"):
        tables.write(parts("s", 1), meter)
    tables.close()
    assert meter.requests == 1


def test_no_region_is_said_when_the_client_is_made(dummy_credentials: None) -> None:
    """Without a Region no client is made, and the error names the setting and the variable."""
    with pytest.raises(ConfigurationError, match=rf"no AWS Region is known; set {PREFIX}region .*AWS_REGION"):
        BotoTables(Settings())


def test_region_of_the_environment(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting wins, then AWS_REGION, then what boto3 finds."""
    found = []
    for name, value, region in [
        ("AWS_DEFAULT_REGION", "eu-north-1", ""),
        ("AWS_REGION", "eu-west-1", ""),
        ("AWS_REGION", "eu-west-1", "eu-central-1"),
    ]:
        monkeypatch.setenv(name, value)
        client = make_client(Settings(region=region))
        found.append(client.meta.region_name)
        client.close()
    assert found == ["eu-north-1", "eu-west-1", "eu-central-1"]


def test_a_wrong_profile_is_said_when_the_client_is_made(
    dummy_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AWS profile that does not exist is a configuration error."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match=r"check .*the AWS profile: .*nobody"):
        BotoTables(Settings(region=REGION))


@pytest.mark.parametrize(
    "error",
    [
        boto_errors.EndpointConnectionError(endpoint_url="http://test"),
        boto_errors.ConnectTimeoutError(endpoint_url="http://test"),
        boto_errors.SSLError(endpoint_url="http://test", error="wrong version number"),
        lost_answer(),
        wire_error("ServiceUnavailable", status=503),
    ],
)
def test_at_first_contact_an_unreachable_endpoint_is_said_within_seconds(rig: Callable[..., Rig], error: Any) -> None:
    """Before DynamoDB has answered once, its absence is a wrong setting: said in six seconds, not at the deadline."""
    at = rig(error, endpoint="http://127.0.0.1:9", request_deadline_s=3600)
    expected = UnavailableError if isinstance(error, tuple) else ConfigurationError
    at.clock.answer_s = 0.01
    with pytest.raises(expected) as failed:
        at.tables.check()
    if expected is ConfigurationError:
        assert f"cannot be reached at http://127.0.0.1:9; check {PREFIX}endpoint" in str(failed.value)
        assert at.clock.now <= FIRST_CONTACT_DEADLINE_S + 0.1


def test_after_first_contact_the_deadline_is_the_users(rig: Callable[..., Rig]) -> None:
    """Once DynamoDB has answered, an outage is waited for until the deadline, and is no configuration error."""
    gone = boto_errors.EndpointConnectionError(endpoint_url="http://test")
    at = rig(OK, gone, request_deadline_s=100)
    at.tables.write(parts("s", 1), at.meter)
    with pytest.raises(UnavailableError, match="no proper answer until the deadline: Could not connect"):
        at.tables.write(parts("s", 1), at.meter)
    assert at.clock.now == pytest.approx(100)


def test_an_endpoint_that_hangs_is_given_up_in_time(rig: Callable[..., Rig]) -> None:
    """Time that passes in the request itself counts: two timeouts of two seconds each, and the third is the last."""
    at = rig(boto_errors.ConnectTimeoutError(endpoint_url="http://test"), answer_s=2.0, endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        at.tables.check()
    assert len(at.wire.requests) <= 4


@pytest.mark.parametrize("body", [{}, {"hello": "world"}, "<html>hello</html>"])
def test_an_endpoint_that_is_no_dynamodb_is_said(rig: Callable[..., Rig], body: Any) -> None:
    """Something else that answers 200 at the endpoint is told from DynamoDB, and the setting named."""
    at = rig((200, body), endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=rf"http://127\.0\.0\.1:9.* check {PREFIX}endpoint"):
        at.tables.check()


@pytest.mark.parametrize(
    ("hash_key", "range_key", "kind", "status", "said"),
    [
        ("store_shard", "part", "S", "ACTIVE", []),
        ("store_shard", "part", "S", "UPDATING", []),
        ("store_shard", "part", "S", "CREATING", ["is CREATING, needed is ACTIVE"]),
        ("store_shard", "part", "B", "ACTIVE", [r"part (RANGE, B), needed are store_shard (HASH, S), part (RANGE, S)"]),
        ("store", "part", "S", "ACTIVE", ["has keys store (HASH, S), part (RANGE, S), needed"]),
        ("store_shard", None, "S", "ACTIVE", ["has keys store_shard (HASH, S), needed"]),
    ],
)
def test_check_tells_how_a_table_differs(
    rig: Callable[..., Rig], hash_key: str, range_key: str | None, kind: str, status: str, said: list[str]
) -> None:
    """Wrong names, kinds or number of keys, and a table that is not ready, are told with what is needed."""
    keys = [(hash_key, "HASH", "S"), *([(range_key, "RANGE", kind)] if range_key else [])]
    delta = {
        "TableStatus": status,
        "KeySchema": [{"AttributeName": name, "KeyType": role} for name, role, _ in keys],
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": data} for name, _, data in keys],
    }
    names = ("store_shard", "HASH"), ("entry", "RANGE")
    snapshot = {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": name, "KeyType": role} for name, role in names],
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name, _ in names],
    }
    drift = rig((200, {"Table": delta}), (200, {"Table": snapshot})).tables.check()
    assert len(drift) == len(said)
    for line, part in zip(drift, said, strict=True):
        assert line.startswith("table dynastate-delta ")
        assert part in line


@pytest.mark.parametrize(
    "value",
    [{"BOOL": True}, {"NULL": True}, {"NS": ["1"]}, {"N": "1.5"}, {"L": [{"S": "a"}]}, {"M": {"a": {"S": "b"}}}],
)
def test_values_that_dynastate_never_writes_are_refused(value: dict[str, Any]) -> None:
    """An item with a value of another kind is someone else's; the error names the attribute."""
    with pytest.raises(CorruptStateError, match="never writes attribute=strange"):
        from_wire({"fine": {"S": "text"}, "strange": value})


def test_a_request_that_boto3_cannot_send_is_said(rig: Callable[..., Rig]) -> None:
    """An error of boto3 itself, that no retry mends, is a configuration error and not a loop."""
    at = rig(boto_errors.UnknownRegionError(region_name="x", error_msg="what it says"))
    with pytest.raises(ConfigurationError, match="boto3 cannot send this request"):
        at.tables.write(parts("s", 1), at.meter)
    assert at.meter.requests == 1


def test_meters_add_up() -> None:
    """Two meters together hold the sum of each figure."""
    one, other = Meter(requests=1, write_units=2), Meter(requests=10, items_deleted=5)
    one.add(other)
    assert (one.requests, one.write_units, one.items_deleted) == (11, 2, 5)


def test_the_memory_fake_keeps_copies() -> None:
    """What a test does to an item it has read or written does not change the one in memory."""
    tables = MemoryTables()
    key = layout.group_key("s", 1)
    tables.append_version(key, b"one", Meter())
    versions = tables.get([key], Meter())[key]["versions"]
    assert isinstance(versions, list)
    versions.append(b"two")
    assert tables.get([key], Meter())[key]["versions"] == [b"one"]
